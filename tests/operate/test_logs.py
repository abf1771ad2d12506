"""Logs of runs: what each attempt printed and logged is in its own file, bounded, and read page by page."""

from __future__ import annotations

import logging
import os
import shutil
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aaiclick_queue import Handle, Settings, TaskFailed, connect
from aaiclick_queue.flow.execute import Run
from aaiclick_queue.log_files import HEAD_LINES, LogFile, file_of, files_of, parts_of
from aaiclick_queue.log_lines import LogLine, parse, read_records, write_line
from aaiclick_queue.log_recorder import Recorder
from aaiclick_queue.log_sink import Sink
from aaiclick_queue.log_sweep import Sweep
from aaiclick_queue.task_logs import (
    LogPage,
    download_log,
    list_log_attempts,
    read_last_logs,
    read_logs,
)
from tests.operate import log_tasks as tasks
from tests.tools import changed, running_worker, until

MODULE = "tests.operate.log_tasks"


def texts(page: LogPage) -> list[str]:
    return [line.text for line in page.lines]


async def logged(settings: Settings, task_id: int, count: int, **asked: Any) -> LogPage:
    """The page when it has so many lines: they are there a moment after the end."""
    page: LogPage = await until(lambda: len((page := read_logs(settings, task_id, **asked)).lines) >= count and page)
    return page


async def ended(handle: Handle[None]) -> int:
    await handle.result(30)
    return handle.id


async def test_a_run_keeps_what_it_printed_and_logged_with_level_and_time(settings: Settings) -> None:
    async with connect(settings=settings) as client, running_worker(settings):
        task_id = await ended(await tasks.talk.enqueue(client=client))
        page = await logged(settings, task_id, 5)
    first, warned, stderr, broke, last = page.lines
    assert (first.text, first.stream, first.level) == ("hello ada", "stdout", "INFO")
    assert (warned.text, warned.logger, warned.level) == ("careful\nwith ada", "shop.mail", "WARNING")
    assert (stderr.text, stderr.stream, stderr.level) == ("to stderr", "stderr", "WARNING")
    assert broke.level == "ERROR"
    assert broke.text.startswith("it broke\nTraceback")
    assert broke.text.endswith("ZeroDivisionError: no way")
    assert last.text == "no newline"
    assert [line.at for line in page.lines] == sorted(line.at for line in page.lines)
    assert (page.is_end, page.source, page.attempt) == (True, "file", 1)
    least = read_logs(settings, task_id, least="ERROR")
    assert least.lines == [broke]


async def test_runs_beside_each_other_keep_their_lines_apart(settings: Settings) -> None:
    names = [f"run{number}" for number in range(8)]
    async with connect(settings=settings) as client, running_worker(settings):
        loops = [await tasks.own_name.enqueue(name=name, client=client) for name in names]
        threads = [await tasks.in_thread.enqueue(name=name, client=client) for name in names]
        for handle in (*loops, *threads):
            await ended(handle)
        for name, handle in zip(names, loops, strict=True):
            page = await logged(settings, handle.id, 40)
            assert texts(page) == [f"{name} {number}" for number in range(20) for _ in range(2)]
        for name, handle in zip(names, threads, strict=True):
            assert texts(await logged(settings, handle.id, 20)) == [f"{name} {number}" for number in range(20)]


async def test_each_attempt_has_a_log_of_its_own(settings: Settings) -> None:
    async with connect(settings=settings) as client, running_worker(settings):
        task_id = await ended(await tasks.third_time.enqueue(client=client))
        await logged(settings, task_id, 1, attempt=3)
    assert [one.attempt for one in list_log_attempts(settings, task_id)] == [1, 2, 3]
    assert texts(read_logs(settings, task_id)) == ["attempt 3"]
    assert texts(read_logs(settings, task_id, attempt=2)) == ["attempt 2"]


async def test_a_run_that_says_nothing_makes_no_file(settings: Settings) -> None:
    async with connect(settings=settings) as client, running_worker(settings):
        task_id = await ended(await tasks.quiet.enqueue(client=client))
    assert list(settings.log_folder.iterdir()) == []
    assert read_logs(settings, task_id) == LogPage([], 0, True, "none", None)
    assert download_log(settings, task_id) is None


async def test_nothing_is_kept_where_capture_is_off(settings: Settings) -> None:
    settings = changed(settings, log_capture=False)
    stdout = sys.stdout
    async with connect(settings=settings) as client, running_worker(settings):
        assert sys.stdout is stdout
        await ended(await tasks.talk.enqueue(client=client))
    assert list(settings.log_folder.iterdir()) == []


async def test_what_runs_print_goes_where_it_went_before(
    settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    stdout = sys.stdout
    async with connect(settings=settings) as client, running_worker(settings):
        assert sys.stdout is not stdout
        await ended(await tasks.talk.enqueue(client=client))
    assert sys.stdout is stdout
    shown = capsys.readouterr()
    assert "hello ada\n" in shown.out
    assert "to stderr\n" in shown.err


async def test_a_child_that_is_killed_loses_none_of_its_words(settings: Settings) -> None:
    settings = changed(settings, lost_limit=1)
    async with connect(settings=settings) as client, running_worker(settings, modules=(MODULE,)):
        handle = await tasks.killed.enqueue(client=client)
        with pytest.raises(TaskFailed):
            await handle.result(60)
    assert texts(read_logs(settings, handle.id)) == ["first word", "last word"]


async def test_a_child_writes_the_log_of_its_run(settings: Settings) -> None:
    async with connect(settings=settings) as client, running_worker(settings, modules=(MODULE,)):
        task_id = await ended(await tasks.apart.enqueue(lines=30, client=client))
    assert texts(read_logs(settings, task_id)) == [f"apart {number}" for number in range(30)]


@pytest.mark.parametrize("lines", [10_000, 25_000])
async def test_a_flood_is_kept_by_its_head_and_tail_with_a_mark(settings: Settings, lines: int) -> None:
    async with connect(settings=settings) as client, running_worker(settings):
        task_id = await ended(await tasks.many.enqueue(lines=lines, client=client))
        last = f"{lines - 1:08d}"
        await until(lambda: texts(read_last_logs(settings, task_id, limit=1)) == [last])
    page = read_last_logs(settings, task_id, limit=20_000)
    said = [line for line in page.lines if line.stream != "mark"]
    marks = [line for line in page.lines if line.stream == "mark"]
    numbers = [int(line.text) for line in said]
    assert numbers[:4_999] == list(range(4_999))
    assert numbers == sorted(numbers)
    assert len(numbers) <= 10_000
    gone = lines - len(numbers)
    assert numbers[-3_900:] == list(range(lines - 3_900, lines))
    if lines > 10_000:
        assert [mark.text.split()[1] for mark in marks] == [f"{gone:,}"]
    else:
        assert (gone, marks) == (0, []) or gone <= 1_001
    whole = b"".join(download_log(settings, task_id) or [])
    assert whole.count(b"\n") <= 10_010
    assert b"left out" in whole or lines == 10_000


def test_pages_go_on_where_the_last_one_ended(settings: Settings) -> None:
    path = file_of(settings.log_folder, "2026-11-16", 7, 1)
    file = LogFile(path, "2026-11-16T00:00:00Z task=7 epoch=1")
    records = [write_line(1e9 + n, "INFO", "shop", f"line {n}\nmore") for n in range(25)]
    file.append(records[:20])
    page = read_logs(settings, 7, limit=15)
    assert (len(page.lines), page.is_end) == (15, False)
    page = read_logs(settings, 7, after=page.after)
    assert texts(page) == [f"line {n}\nmore" for n in range(15, 20)]
    assert page.is_end
    assert read_logs(settings, 7, after=page.after).lines == []
    file.append(records[20:])
    assert texts(read_logs(settings, 7, after=page.after)) == [f"line {n}\nmore" for n in range(20, 25)]
    assert texts(read_last_logs(settings, 7, limit=2)) == ["line 23\nmore", "line 24\nmore"]


def test_no_part_of_a_log_is_for_everybody(settings: Settings) -> None:
    path = file_of(settings.log_folder, "2026-11-16", 7, 1)
    before = os.umask(0)
    try:
        LogFile(path, "2026-11-16T00:00:00Z task=7 epoch=1").append([write_line(1e9, "INFO", "shop", "one")] * 12_000)
    finally:
        os.umask(before)
    parts = [one for one in files_of(Path(path)) if one.exists()]
    assert len(parts) > 2
    assert {stat.S_IMODE(one.stat().st_mode) for one in parts} == {0o640}


def test_a_live_reader_that_is_too_slow_goes_on_with_what_is_left(settings: Settings) -> None:
    path = file_of(settings.log_folder, "2026-11-16", 7, 1)
    file = LogFile(path, "2026-11-16T00:00:00Z task=7 epoch=1")
    numbers = iter(range(100_000))

    def say(count: int) -> None:
        file.append([write_line(1e9, "INFO", "shop", str(next(numbers))) for _ in range(count)])

    say(6_000)
    page = read_last_logs(settings, 7, limit=1)
    assert texts(page) == ["5999"]
    say(20_000)
    rest = read_logs(settings, 7, after=page.after, limit=10_000)
    assert rest.lines[0].stream == "mark"
    assert "left out" in rest.lines[0].text
    kept = [int(line.text) for line in rest.lines[1:]]
    assert kept == list(range(kept[0], 26_000))
    assert len(kept) >= 4_000


def test_a_later_run_of_the_same_attempt_goes_on_in_its_file(settings: Settings) -> None:
    path = file_of(settings.log_folder, "2026-11-16", 7, 1)
    LogFile(path, "2026-11-16T00:00:00Z task=7 epoch=1").append([write_line(1e9, "INFO", "shop", "one")] * 6_000)
    LogFile(path, "2026-11-16T01:00:00Z task=7 epoch=4").append([write_line(1e9, "INFO", "shop", "two")] * 2)
    page = read_last_logs(settings, 7, limit=3)
    assert texts(page) == ["run again, epoch 4", "two", "two"]
    assert sum(part.size for part in parts_of(path)) == page.after


@pytest.mark.parametrize(
    "text",
    [
        "plain",
        "",
        "a\nb",
        "\ttab\n\ttab",
        "# no remark",
        "a\n# b",
        "a\r\nb",
        "2026-11-16T14:03:45.102Z INFO a b",
        "é\x00\x1b[31m",
        "\n\n",
    ],
)
def test_what_is_written_is_read_back_as_it_was(text: str) -> None:
    record = write_line(1e9 + 0.5, "ERROR", "shop.mail", text)
    [(end, lines)] = read_records(record + b"unfinished")
    assert end == len(record)
    line = parse(lines)
    assert isinstance(line, LogLine)
    assert (line.text, line.level, line.logger, line.stream) == (text, "ERROR", "shop.mail", "log")
    assert line.at.timestamp() == 1e9 + 0.5


def test_a_long_line_is_cut_with_a_mark() -> None:
    record = write_line(1e9, "INFO", "shop", "é" * 10_000)
    assert len(record) <= 4097
    assert record.decode().endswith("… cut at 4 KB\n")
    many = write_line(1e9, "INFO", "shop", "x\n" * 10_000)
    assert many.count(b"\n") == 501


async def test_a_folder_that_cannot_be_written_costs_the_lines_and_nothing_else(
    settings: Settings, caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, lost = Recorder._write, set[int]()

    def watched(self: Recorder, sink: Sink) -> None:
        write(self, sink)
        if sink.lost:
            lost.add(sink.about.task_id)

    monkeypatch.setattr(Recorder, "_write", watched)
    folder = tmp_path / "logs"
    folder.write_text("in the way")
    settings = changed(settings, log_dir=folder)
    async with connect(settings=settings) as client, running_worker(settings):
        for _ in range(3):
            await ended(await tasks.talk.enqueue(client=client))
        file = tmp_path / "now"
        handle = await tasks.until_told.enqueue(file=str(file), client=client)
        await until(lambda: handle.id in lost)  # its first line was tried
        folder.unlink()
        file.touch()
        page = await logged(settings, await ended(handle), 2)
    assert len([one for one in caplog.records if "cannot write logs" in one.getMessage()]) == 1
    assert texts(page) == ["… 1 lines were lost: they could not be written …", "told"]


async def test_a_secret_is_in_no_line_of_its_run(settings: Settings, capfd: pytest.CaptureFixture[str]) -> None:
    async with connect(settings=settings) as client, running_worker(settings):
        task_id = await ended(await tasks.tell_secret.enqueue("hunter-2-of-ada", client=client))
        page = await logged(settings, task_id, 2)
    assert texts(page) == ["the password is ••••", "logged ••••"]
    assert "hunter-2" not in "".join(capfd.readouterr())


@pytest.fixture
def days(settings: Settings) -> Iterator[Path]:
    for day, size in (("2026-11-01", 100), ("2026-11-10", 300_000), ("2026-11-16", 900_000)):
        path = file_of(settings.log_folder, day, 7, 1)
        path.parent.mkdir()
        path.write_bytes(b"x" * size)
    (settings.log_folder / "notes").mkdir()
    (settings.log_folder / "2026-11-01" / "mine.txt").touch()
    yield settings.log_folder
    shutil.rmtree(settings.log_folder)


NOW = 1794834000.0  # 2026-11-16T13:00:00Z


def test_old_days_are_deleted_and_nothing_that_is_not_ours(settings: Settings, days: Path) -> None:
    assert Sweep(settings).once(NOW) == 100
    left = sorted(path.name for path in days.iterdir())
    assert left == ["2026-11-01", "2026-11-10", "2026-11-16", "notes"]
    assert [path.name for path in (days / "2026-11-01").iterdir()] == ["mine.txt"]
    assert Sweep(changed(settings, log_retention_days="forever")).once(NOW) == 0


def test_the_oldest_days_go_where_all_take_too_much_room(settings: Settings, days: Path) -> None:
    assert Sweep(changed(settings, log_max_bytes=1 << 20)).once(NOW) == 300_100
    assert [path.name for path in (days / "2026-11-16").iterdir()] == ["7.1.log"]


def test_warnings_of_a_program_without_logging_are_still_seen(settings: Settings) -> None:
    from aaiclick_queue.log_capture import Handler, _has_others

    handler = Handler()
    lonely = logging.getLogger("lonely.one")
    lonely.propagate = False
    lonely.addHandler(handler)
    try:
        assert not _has_others("lonely.one", handler)
        lonely.addHandler(logging.NullHandler())
        assert _has_others("lonely.one", handler)
    finally:
        lonely.handlers.clear()


def test_a_progress_bar_is_one_line() -> None:
    said: list[str] = []

    class Told(Sink):
        def __init__(self) -> None:
            self._partial = {}

        def say(self, level: str, logger: str, text: str, stream: object = "log", at: float | None = None) -> None:
            said.append(text)

    sink = Told()
    for percent in range(0, 101, 10):
        sink.print("stderr", f"\r{percent}%")
    sink.print("stderr", "\nwhole\nhalf")
    assert said == ["100%", "whole"]


def test_what_a_run_says_last_is_one_tail_with_what_was_said_before(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Recorder, "start", lambda _: None)  # written here, when the test wants it
    shipped: list[int] = []
    recorder = Recorder(settings, ship=lambda _about, _first, records: shipped.append(len(records)))
    claimed = SimpleNamespace(task_id=1, job_id=None, attempt=1, run_epoch=1, entrypoint="a.b")
    sink = Sink(recorder, cast("Run", SimpleNamespace(claimed=claimed, worker_id=1, secrets=())))
    for number in range(3 * HEAD_LINES):
        sink.say("INFO", "", str(number))
    take = sink.take

    def ends_meanwhile() -> Any:
        taken = take()
        monkeypatch.setattr(sink, "take", take)
        sink.say("INFO", "", "the last")
        sink.end()
        return taken

    monkeypatch.setattr(sink, "take", ends_meanwhile)
    recorder.flush()
    recorder.flush()
    assert shipped == [HEAD_LINES, 1, HEAD_LINES]  # the first lines, how many are left out, the last lines
