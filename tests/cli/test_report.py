"""Log lines of a worker: what they say, how many there are, in both formats."""

from __future__ import annotations

import io
import json
import logging
import re
import sysconfig
from collections.abc import Iterator
from typing import Any

import pytest

from aaiclick_queue.flow.claim import Claimed
from aaiclick_queue.flow.execute import Run
from aaiclick_queue.logs import LogFormat, set_up
from aaiclick_queue.outcome import Error, Failed, Later, Released, Succeeded
from aaiclick_queue.report import UNKNOWN_SECONDS, Report, one_line, short, span
from aaiclick_queue.settings import Settings
from tests.cli.cli_tasks import add

ID = 7527949060557252234
SETTINGS = Settings.load({})


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def root() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level, raising = root.handlers[:], root.level, logging.raiseExceptions
    yield
    root.handlers[:], logging.raiseExceptions = handlers, raising
    root.setLevel(level)


@pytest.fixture
def lines(root: None, request: pytest.FixtureRequest) -> io.StringIO:
    stream = io.StringIO()
    set_up(request.param, "INFO", stream=stream)
    return stream


def lines_as(log_format: LogFormat) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("lines", [log_format], indirect=True, ids=[log_format])


def run_of(task_id: int = ID, **given: Any) -> Run:
    values: dict[str, Any] = {"attempt": 1, "queue": "mail", "entrypoint": "shop.mail.send", "name": None, **given}
    claimed = Claimed(
        task_id=task_id,
        run_epoch=1,
        lost_count=0,
        snoozes=0,
        kwargs="{}",
        timeout_seconds=None,
        max_attempts=3,
        correlation_id="order-7",
        priority=0,
        waited=0.002,
        expired=False,
        **values,
    )
    return Run(claimed, add, SETTINGS, 42)


@lines_as("pretty")
def test_a_success_is_one_aligned_line(lines: io.StringIO) -> None:
    report = Report()
    report.ended(run_of(), Succeeded(None), 0.005)
    report.ended(run_of(name="a" * 40, queue="m"), Succeeded(None), 75)
    first, second = lines.getvalue().splitlines()
    assert re.fullmatch(r"\d\d:\d\d:\d\d ← send +…57252234  mail +attempt 1/3  waited +2.0 ms  ran +5.0 ms", first), (
        first
    )
    assert first.index("…57252234") == second.index("…57252234")
    assert first.index("ran") == second.index("ran")
    assert f"{'a' * 23}… …57252234" in second


@lines_as("pretty")
def test_what_went_wrong_is_on_the_line_without_breaking_it(lines: io.StringIO) -> None:
    report = Report()
    report.ended(run_of(), Later("RETRYING", Error("ValueError", "first\nsecond\x1b[31m")), 0.005)
    report.ended(run_of(attempt=3), Failed(Error("shop.Broken", "gone")), 0.005)
    retried, failed = lines.getvalue().splitlines()
    assert " ↻ send " in retried
    assert retried.endswith("ValueError: first second [31m")
    assert " ! send " in failed
    assert failed.endswith("attempt 3/3  waited   2.0 ms  ran   5.0 ms  shop.Broken: gone")


TRACE = f"""Traceback (most recent call last):
  File "/shop/tasks.py", line 9, in raises
    json.loads(text)
  File "{sysconfig.get_path("stdlib")}/json/decoder.py", line 355, in raw_decode
ValueError: no \x1b[31m
"""


@pytest.mark.parametrize("tracebacks", [False, True])
def test_a_failure_names_the_user_s_line_and_on_demand_all_of_them(root: None, tracebacks: bool) -> None:
    stream = io.StringIO()
    set_up("pretty", "INFO", stream=stream, tracebacks=tracebacks)
    Report().ended(run_of(), Failed(Error("ValueError", "no", TRACE, "tasks.py:9 in raises")), 0.005)
    first, *rest = stream.getvalue().splitlines()
    assert first.endswith("ValueError: no  tasks.py:9 in raises")
    assert len(rest) == (5 if tracebacks else 0)
    assert "\x1b" not in stream.getvalue()


@lines_as("json")
def test_the_json_line_of_a_failure_has_its_traceback(lines: io.StringIO) -> None:
    Report(lines_a_second=None).ended(run_of(), Failed(Error("ValueError", "no", TRACE)), 0.005)
    assert json.loads(lines.getvalue())["traceback"] == TRACE


@lines_as("json")
def test_a_json_line_has_the_agreed_keys_and_ids_as_texts(lines: io.StringIO) -> None:
    Report(lines_a_second=None).ended(run_of(), Failed(Error("ValueError", "first\nsecond")), 0.005)
    line = json.loads(lines.getvalue())
    assert line.pop("ts").endswith("+00:00")
    assert line == {
        "level": "error",
        "event": "task failed",
        "task_id": str(ID),
        "entrypoint": "shop.mail.send",
        "queue": "mail",
        "attempt": 1,
        "run_epoch": 1,
        "wait_s": 0.002,
        "worker_id": "42",
        "correlation_id": "order-7",
        "duration_s": 0.005,
        "outcome": "failed",
        "error_type": "ValueError",
        "error": "first\nsecond",
    }


@lines_as("pretty")
def test_beyond_fifty_lines_a_second_successes_are_summed_up_and_failures_still_told(lines: io.StringIO) -> None:
    clock = Clock()
    report = Report(clock=clock)
    for _ in range(1284):
        report.ended(run_of(), Succeeded(None), 0.005)
    report.ended(run_of(), Failed(Error("ValueError", "no")), 0.005)
    report.tick()
    assert len(lines.getvalue().splitlines()) == 51
    for _ in range(2):
        clock.now += 2
        report.tick()
    assert len(lines.getvalue().splitlines()) == 52
    assert lines.getvalue().splitlines()[-1].endswith("← … and 1,234 more succeeded")


@lines_as("json")
def test_for_machines_every_event_is_a_line(lines: io.StringIO) -> None:
    report = Report(lines_a_second=None)
    for _ in range(300):
        report.ended(run_of(), Succeeded(None), 0.005)
    assert len(lines.getvalue().splitlines()) == 300


@lines_as("json")
def test_a_million_unknown_tasks_are_one_line_a_minute_with_their_number(lines: io.StringIO) -> None:
    clock = Clock()
    report = Report(lines_a_second=None, clock=clock)
    for number in range(1000):
        report.unknown(run_of(number).claimed)
    report.unknown(run_of(entrypoint="shop.other").claimed)
    report.tick()
    assert [json.loads(line)["entrypoint"] for line in lines.getvalue().splitlines()] == [
        "shop.mail.send",
        "shop.other",
    ]
    clock.now += UNKNOWN_SECONDS
    report.tick()
    last = json.loads(lines.getvalue().splitlines()[-1])
    assert (last["event"], last["entrypoint"], last["count"]) == ("task unknown", "shop.mail.send", 999)


@lines_as("json")
def test_what_user_code_logs_reaches_the_lines_whatever_it_holds(lines: io.StringIO) -> None:
    log = logging.getLogger("shop")
    log.info("bought %s", "it", extra={"thing": object(), "numbers": [1, 2], "odd": "\ud800"})
    log.error("it broke", exc_info=RuntimeError("boom"))
    odd, broken = (json.loads(line) for line in lines.getvalue().splitlines())
    assert "bought it" in odd["event"]
    assert (broken["event"], broken["logger"], broken["level"]) == ("it broke", "shop", "error")
    assert "RuntimeError: boom" in broken["traceback"]


@lines_as("pretty")
def test_other_lines_name_their_logger_unless_it_is_ours(lines: io.StringIO) -> None:
    logging.getLogger("shop").warning("careful")
    logging.getLogger("aaiclick_queue.worker").info("renewed the lease")
    theirs, ours = lines.getvalue().splitlines()
    assert theirs[8:] == " ! shop  careful"
    assert ours[8:] == " · renewed the lease"


def test_lines_below_the_level_are_not_even_counted(root: None) -> None:
    stream = io.StringIO()
    set_up("pretty", "WARNING", stream=stream)
    clock = Clock()
    report = Report(clock=clock)
    for _ in range(100):
        report.ended(run_of(), Succeeded(None), 0.005)
        report.ended(run_of(), Released(), 0.005)
    clock.now += 2
    report.tick()
    assert stream.getvalue() == ""
    assert report.finished == 200


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0004, "0.4 ms"), (0.012, "12 ms"), (1.25, "1.2 s"), (150, "2.5 min"), (9000, "2.5 h"), (216_000, "2.5 d")],
)
def test_a_duration_reads_as_a_person_says_it(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_a_short_id_is_the_end_of_the_long_one() -> None:
    assert str(ID).endswith(short(ID)[1:])
    assert short(5) == "…00000005"


def test_a_long_text_is_cut_to_one_line() -> None:
    assert one_line("a" * 500, 10) == "a" * 9 + "…"
    assert one_line("a\r\nb") == "a  b"
