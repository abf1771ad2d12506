"""What processes say arrives whole and named, and nobody waits for a reader that is slow."""

from __future__ import annotations

import os
import subprocess

from aaiclick_queue.fleet.lines import LINE_BYTES, ROOM_BYTES, Screen, Sink, Speech
from aaiclick_queue.settings import Settings
from tests.cli.running import PROJECT, command
from tests.faults.fleet import Console, wait_for
from tests.fleet import fleet_tasks
from tests.fleet.running import LONGEST, trial

TWO = """
[groups.mail]
modules = ["MODULE"]

[groups.reports]
modules = ["MODULE"]
queues = ["slow"]
"""


class Paper:
    """A sink that keeps what is written."""

    def __init__(self) -> None:
        self.text = b""

    def write(self, lines: bytes) -> None:
        self.text += lines


async def test_lines_are_named_and_whole_however_they_come() -> None:
    paper = Paper()
    speech = Speech(paper, b"mail-1 | ")  # type: ignore[arg-type]
    for part in (b"fir", b"st\nsecond\n\nth", b"ird\nlast words"):
        speech.data_received(part)
    assert paper.text == b"mail-1 | first\nmail-1 | second\nmail-1 | \nmail-1 | third\n"
    speech.connection_lost(None)
    assert paper.text.endswith(b"mail-1 | third\nmail-1 | last words\n")
    assert list(speech.tail)[-2:] == [b"third", b"last words"]


async def test_a_line_without_end_is_cut() -> None:
    paper = Paper()
    speech = Speech(paper, b"")  # type: ignore[arg-type]
    speech.data_received(b"x" * (LINE_BYTES - 1))
    assert paper.text == b""
    speech.data_received(b"xy")
    assert paper.text == b"x" * LINE_BYTES + b"y\n"


async def test_the_error_of_a_process_is_found_among_its_last_words() -> None:
    speech = Speech(Paper(), b"")  # type: ignore[arg-type]
    assert speech.told_error() == ""
    speech.data_received(b"Traceback\n  ValueError: no\n\n")
    assert speech.told_error() == "ValueError: no"
    speech.data_received(b"error: there is no module 'x'\nfix: -A y\nbye\n")
    assert speech.told_error() == "there is no module 'x': -A y"


def test_what_nobody_reads_is_dropped_and_counted_and_keeps_nobody_waiting() -> None:
    reading, writing = os.pipe()
    sink = Sink(writing, lambda count: b"%d dropped\n" % count)
    block = b"%s\n" % (b"x" * 1023) * 64
    blocks = 3 * ROOM_BYTES // len(block)
    for _ in range(blocks):
        sink.write(block)
    read, written, dropped = b"", 0, 0
    while written + dropped < blocks * 64:  # in one piece or, where the thread was late, in two
        *lines, read = (read + os.read(reading, 1 << 20)).split(b"\n")
        told = [line for line in lines if b"dropped" in line]
        assert {len(line) for line in lines if line not in told} <= {1023}
        written, dropped = written + len(lines) - len(told), dropped + sum(int(line.split()[0]) for line in told)
    assert dropped
    assert (written + dropped, read) == (blocks * 64, b"")
    os.close(reading)
    sink.write(b"to nobody\n")
    sink.close()
    os.close(writing)


def test_a_fleet_whose_lines_nobody_reads_works_on(settings: Settings, look: Console) -> None:
    with trial(settings, TWO) as fleet:
        started = subprocess.Popen(
            command("fleet", "up", str(fleet.file)), env=fleet.env, cwd=PROJECT, stdout=subprocess.PIPE
        )
        try:
            fleet.enqueue(fleet_tasks.shout, [{"megabytes": 8}])
            wait_for(lambda: look.statuses() == {"COMPLETED": 1}, seconds=LONGEST)
            fleet.enqueue(fleet_tasks.tick, [{}])
            wait_for(lambda: look.statuses() == {"COMPLETED": 2}, seconds=LONGEST)
        finally:
            started.terminate()
            out, _ = started.communicate(timeout=LONGEST)
        assert b"lines dropped: whoever reads them is too slow" in out
        names = {line.split(" │ ")[0] for line in out.decode().splitlines() if "takes tasks" in line}
        assert names == {"mail-1   ", "reports-1"}
        assert started.returncode == 0


def test_a_screen_names_in_one_width_and_colours_where_they_are_welcome() -> None:
    plain, painted = Screen(), Screen(colour=True)
    plain.width = painted.width = 8
    assert plain.prefix("mail-1", 36).decode() == "mail-1   │ "
    assert painted.prefix("mail-1", 36).decode() == "\x1b[36mmail-1   │\x1b[0m "
    assert Screen(as_json=True).prefix("mail-1", 36) == b""
