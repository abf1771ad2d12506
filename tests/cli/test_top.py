"""`top`: on a real terminal, without one, and through trouble with Postgres."""

from __future__ import annotations

import io
import json
import re
import subprocess
from datetime import UTC, datetime

import msgspec
import psycopg
import pytest
from rich.console import Console

from aaiclick_queue.cli.frame import SORTS, Seen, draw_frame, sorted_queues, sparkline
from aaiclick_queue.cli.topping import Top
from aaiclick_queue.glance import Glance, History, take_glance
from aaiclick_queue.postgres import Database
from aaiclick_queue.queue_views import QueueView, WorkerView
from aaiclick_queue.settings import Settings
from tests.cli.conftest import Invoke
from tests.cli.running import PROJECT, command, environment, program, run, worker
from tests.cli.terminal import Terminal
from tests.cli.test_worker import enqueue
from tests.servers import Databases
from tests.tools import claim, put, register_worker

LEFT = b"\x1b[?1049l"  # the screen before ours is back
SHOWN = b"\x1b[?25h"  # and the cursor


def queue(name: str, **given: object) -> QueueView:
    plain = QueueView(name, 0, None, 0, False, 0, 0, None, 1, None, None, None)
    return msgspec.structs.replace(plain, **given)


def one_worker(number: int, **given: object) -> WorkerView:
    now = datetime.now(UTC)
    plain = WorkerView(
        f"461168601842738{number:04}", "ACTIVE", "host", 4711, ["mail"], 10, 1, 0.5, 0, 0, 0, "1", None, now, None
    )
    return msgspec.structs.replace(plain, **given)


def glance(at: float, queues: list[QueueView], workers: list[WorkerView] | None = None, **given: object) -> Glance:
    plain = Glance(at, queues, workers or [], {}, False, 0)
    return msgspec.structs.replace(plain, **given)


def text_of(seen: Seen, width: int = 140, height: int = 40) -> str:
    shown = io.StringIO()
    Console(width=width, height=height, color_system=None, file=shown).print(draw_frame(seen, width, height))
    return shown.getvalue()


def test_the_screen_shows_queues_workers_and_what_changes(settings: Settings, invoke: Invoke) -> None:
    with (
        worker(settings, "-Q", "mail,default") as started,
        Terminal("top", "--interval", "0.2", env=environment(settings)) as screen,
    ):
        screen.wait_for(r"mail +0 ")
        enqueue(invoke, "nap", "--kwargs", '{"seconds": 90}', "--queue", "mail")
        screen.wait_for(r"mail +0 +– +0 +0 +1 ")
        invoke("queue", "pause", "reports")
        for _ in range(3):
            enqueue(invoke, "add", "--queue", "reports")
        enqueue(invoke, "add", "--queue", "reports", "--countdown", "600")
        screen.wait_for(r"reports +3 +[\d.]+ m?s +0 +1 +0 .*PAUSED")
        screen.wait_for(r"ready 3   held 0   delayed 1   running 1/100   workers 1")
        assert re.search(r"WORKER +STATUS +RUNNING +DONE/S +HEARTBEAT", screen.text)
        assert re.search(r"…\d{8}  ACTIVE +1/100 .* mail,default", screen.text)
        assert "q quit" in screen.text
        assert started.process.poll() is None


def test_keys_select_sort_explain_pause_and_leave(settings: Settings, invoke: Invoke) -> None:
    for name, count in (("aaa", 1), ("bbb", 3)):
        for _ in range(count):
            enqueue(invoke, "add", "--queue", name)
    with Terminal("top", "--interval", "0.2", env=environment(settings)) as screen:
        screen.wait_for(r"QUEUE▾ (.|\n)*\naaa +1 (.|\n)*bbb +3 (.|\n)*no worker has been here")
        screen.press("p")
        screen.wait_for("select a queue with")
        screen.press("s")
        screen.wait_for(r"READY▾(.|\n)*\nbbb +3 (.|\n)*\naaa +1 ")
        screen.press("\x1b[B\x1b[B")
        screen.wait_for(lambda: any(line.startswith("aaa") for line in screen.reversed_lines()))
        screen.press("k")
        screen.wait_for(lambda: any(line.startswith("bbb") for line in screen.reversed_lines()))
        screen.press("?")
        screen.wait_for("any key leaves it")
        screen.press("q")  # leaves the page alone
        screen.wait_for("bbb")
        screen.press("p")
        screen.wait_for(r"pause bbb\? y / n")
        screen.press("n")
        screen.wait_for("q quit")
        assert "PAUSED" not in screen.text
        screen.press("py")
        screen.wait_for(r"bbb .*PAUSED")
        assert json.loads(invoke("queue", "list", "--json").stdout)[1]["paused_by"]
        screen.press("p")
        screen.wait_for(r"resume bbb\? y / n")
        screen.press("y")
        screen.wait_for(lambda: "PAUSED" not in screen.text)
        screen.press("q")
        assert screen.ends() == 0
        screen.wait_for(lambda: LEFT in screen.raw)
        assert screen.raw.rindex(SHOWN) > screen.raw.rindex(b"\x1b[?25l")
        assert screen.modes == screen.modes_before


@pytest.mark.parametrize("end", ["Ctrl-C", "SIGTERM"])
def test_however_it_ends_the_terminal_is_as_it_was(settings: Settings, end: str) -> None:
    with Terminal("top", "--interval", "0.2", env=environment(settings)) as screen:
        screen.wait_for("workers 0")
        assert screen.modes != screen.modes_before
        screen.press("\x1a")  # Ctrl-Z does not leave our screen to the shell
        screen.press("?")
        screen.wait_for("any key leaves it")
        screen.interrupt() if end == "Ctrl-C" else screen.terminate()
        assert screen.ends() == (130 if end == "Ctrl-C" else 143)
        screen.wait_for(lambda: LEFT in screen.raw)
        assert screen.modes == screen.modes_before
        assert b"Traceback" not in screen.raw


def test_it_fits_every_terminal_and_follows_its_size(settings: Settings, invoke: Invoke) -> None:
    for number in range(30):
        enqueue(invoke, "add", "--queue", f"queue-{number:02}")
    with Terminal("top", "--interval", "0.2", env=environment(settings)) as screen:
        screen.wait_for(r"queue-00 (.|\n)*… \d+ more")
        assert "q quit" in screen.text
        screen.resize(140, 50)
        screen.wait_for(r"READY, LATELY(.|\n)*queue-29 (.|\n)*q quit")
        assert "more" not in screen.text
        screen.resize(30, 8)
        screen.wait_for(lambda: len(screen.text.splitlines()) == 8 and "aaiclick-queue top" in screen.text)
        assert screen.process.poll() is None


def test_no_color_takes_away_the_colour_alone(settings: Settings, invoke: Invoke) -> None:
    enqueue(invoke, "add", "--queue", "mail")  # nobody serves it: that is red
    with Terminal("top", "--interval", "0.2", env=environment(settings)) as screen:
        screen.wait_for("no worker")
        screen.wait_for(lambda: "red" in screen.colours())
    with Terminal("top", "--interval", "0.2", env=environment(settings) | {"NO_COLOR": "1"}) as screen:
        screen.wait_for("no worker")
        assert screen.colours() == set()


def test_an_outage_of_postgres_is_a_note_until_it_is_over(
    settings: Settings, invoke: Invoke, databases: Databases
) -> None:
    enqueue(invoke, "add", "--queue", "mail")
    assert settings.postgres_url
    with psycopg.connect(databases.url("postgres"), autocommit=True) as admin:
        name = psycopg.conninfo.conninfo_to_dict(settings.postgres_url)["dbname"]
        assert isinstance(name, str)
        with Terminal("top", "--interval", "0.2", env=environment(settings)) as screen:
            screen.wait_for(r"mail +1 ")
            try:
                admin.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
                admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])
                screen.wait_for(r"nothing new since \d\d:\d\d:\d\d, trying again: ")
                assert "mail" in screen.text  # as it was
            finally:
                admin.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')
            screen.wait_for("q quit")
            enqueue(invoke, "add", "--queue", "mail")
            screen.wait_for(r"mail +2 ")


def test_once_prints_one_frame(settings: Settings, invoke: Invoke) -> None:
    enqueue(invoke, "add", "--queue", "mail")
    ran = run("top", "--once", "--interval", "0.2", env=environment(settings))
    assert (ran.returncode, ran.stderr) == (0, "")
    assert re.search(r"^mail +1 .*no worker$", ran.stdout, re.MULTILINE)
    assert "\x1b" not in ran.stdout
    assert "q quit" not in ran.stdout


def test_without_a_terminal_frames_follow_each_other(settings: Settings) -> None:
    with program("top", "--interval", "0.2", env=environment(settings)) as printing:
        printing.wait_for(lambda: printing.stdout.count("aaiclick-queue top") >= 3)
        assert "\x1b" not in printing.stdout


def test_json_is_a_line_a_look(settings: Settings, invoke: Invoke) -> None:
    enqueue(invoke, "add", "--queue", "mail")
    with program("top", "--json", "--interval", "0.2", env=environment(settings)) as printing:
        printing.wait_for(lambda: len(printing.lines()) >= 2)
        enqueue(invoke, "add", "--queue", "mail")
        printing.wait_for(lambda: printing.lines()[-1]["totals"]["ready"] == 2)
        printing.wait_for(lambda: any(line["queues"][0]["in_per_second"] > 0 for line in printing.lines()))
        last = printing.lines()[-1]
        assert (last["queues"][0]["name"], last["queues"][0]["held"], last["workers"]) == ("mail", 0, [])
    whole = json.loads(run("top", "--json", "--once", "--interval", "0.2", env=environment(settings)).stdout)
    assert set(whole) == {"at", "totals", "queues", "workers"}


def test_a_closed_pipe_is_quiet(settings: Settings) -> None:
    given = command("top", "--json", "--interval", "0.2")
    with subprocess.Popen(
        given, env=environment(settings), cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as printing:
        assert printing.stdout is not None
        assert printing.stderr is not None
        assert printing.stdout.readline()
        printing.stdout.close()
        assert printing.stderr.read() == ""


def test_postgres_that_is_away_at_the_start_ends_with_69() -> None:
    ran = run("top", "--once", env=environment(POSTGRES_URL="postgresql://ada:secret@127.0.0.1:1/shop"))
    assert (ran.returncode, ran.stdout) == (69, "")
    assert "secret" not in ran.stderr


# What follows from two moments.


def test_rates_are_what_came_and_what_left() -> None:
    history = History()
    history.add(glance(0.0, [queue("mail", ready=100, running=10)]))
    assert history.of_queue("mail").enqueued is None
    history.add(glance(2.0, [queue("mail", ready=60, running=10, delayed=4, held=6)], new={"mail": 20}))
    rates = history.of_queue("mail")
    assert (rates.enqueued, rates.done) == (10.0, 25.0)  # 110 and 20 more, less the 80 that are there
    assert history.total() == rates
    assert history.series("ready", "mail") == [100.0, 60.0]
    assert history.series("done") == [25.0]


def test_a_line_that_is_too_long_to_count_has_no_rate_but_the_workers_have() -> None:
    history = History()
    long = queue("mail", ready=10_000, ready_is_more=True)
    history.add(glance(0.0, [long], [one_worker(1, completed=10), one_worker(2, completed=5)]))
    history.add(glance(10.0, [long], [one_worker(1, completed=100, failed=10), one_worker(3, completed=7)]))
    assert history.of_queue("mail").done is None
    assert history.of_worker(one_worker(1).id) == 10.0
    assert history.of_worker(one_worker(3).id) is None
    assert history.total().done == 10.0  # of those that were there at both moments


def test_rates_are_of_the_last_seconds() -> None:
    history = History()
    for second in range(100):
        history.add(glance(float(second), [queue("mail", ready=0)], new={"mail": 1 if second < 90 else 10}))
    assert history.of_queue("mail").enqueued == 10.0
    assert len(history.series("enqueued")) == 99


async def test_a_glance_counts_what_is_new(db: Database) -> None:
    await put(db, queue="mail", count=3)
    first = await take_glance(db, None)
    assert first.new == {}
    await put(db, queue="mail", count=5)
    await put(db, queue="reports", count=2)
    await claim(db, await register_worker(db), 4, queues=["mail"])
    second = await take_glance(db, first)
    assert second.new == {"mail": 5, "reports": 2}
    assert {one.name: (one.ready, one.running) for one in second.queues if one.ready} == {
        "mail": (4, 4),
        "reports": (2, 0),
    }
    third = await take_glance(db, second)
    assert third.new == {}


async def test_a_glance_at_a_flood_is_bounded(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aaiclick_queue.glance.NEW_LIMIT", 10)
    first = await take_glance(db, None)
    await put(db, queue="mail", count=25)
    second = await take_glance(db, first)
    assert (second.new, second.new_is_more) == ({"mail": 10}, True)
    assert (await take_glance(db, second)).new == {}  # goes on at the end, not ever further behind


def test_sparklines_show_the_last_values_to_the_right() -> None:
    assert sparkline([0, 1, 2, 4], 6, samples=6) == "  ▁▃▅█"
    assert sparkline([], 4) == "    "
    assert sparkline([0, 0], 4, samples=4) == "  ▁▁"
    assert sparkline([0.0] * 50 + [8.0] * 10, 3, samples=30) == "▁▁█"


@pytest.mark.parametrize("sort", SORTS)
def test_queues_are_sorted_by_every_column(sort: str) -> None:
    history = History()
    queues = [queue("a"), queue("b", ready=5, oldest_seconds=90.0, running=3)]
    history.add(glance(0.0, [queue("a"), queue("b", ready=9, running=9)]))
    history.add(glance(1.0, queues, new={"b": 5}))
    seen = Seen(glance(1.0, queues), history, sort=sort)
    assert [one.name for one in sorted_queues(seen)] == (["a", "b"] if sort == "name" else ["b", "a"])


def test_names_cannot_steer_the_terminal() -> None:
    history = History()
    bad = glance(0.0, [queue("\x1b[2Jmail\n[red]x")], [one_worker(1, hostname="\x1b]0;x\x07", queues=["a\tb"])])
    history.add(bad)
    shown = text_of(Seen(bad, history, note="\x1b[31mred"))
    assert "\x1b" not in shown
    assert "[red]x" in shown


def test_a_thousand_queues_fit_any_screen() -> None:
    history = History()
    many = glance(0.0, [queue(f"q{n:03}") for n in range(100)], [one_worker(n) for n in range(100)])
    history.add(many)
    for width, height in ((80, 24), (140, 40), (20, 5), (1, 1), (300, 200)):
        for selected in ("q000", "q050", "q099"):
            shown = text_of(Seen(many, history, selected=selected), width, height)
            if height >= 24:
                assert selected in shown
                assert len(shown.splitlines()) <= height
                assert "q quit" in shown


async def test_keys_before_the_first_look_do_no_harm(db: Database) -> None:
    shown = Top(db, "", 1.0)
    for key in ("up", "down", "s", "p", "?", "x", "p", "y"):
        shown.press(key)
    assert not shown.over.is_set()
    shown.press("q")
    assert shown.over.is_set()
