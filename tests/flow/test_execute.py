"""Execute: a run comes to a value, whatever the task does; what to do about it is decided from that value."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from typing import Any

import pytest

from aaiclick_queue import Cancel, Fail, Retry, Settings, Snooze, Task, task
from aaiclick_queue.flow.claim import Claimed
from aaiclick_queue.flow.execute import SNOOZE_LIMIT, Run, Stop, decide, execute, timed_out
from aaiclick_queue.outcome import Cancelled, Error, Failed, Later, Outcome, Released, Succeeded

SETTINGS = Settings.load({}, result_max_bytes=100)
calls: list[Any] = []


class OfThePast(Exception):
    pass


class Broken(Exception):
    def __str__(self) -> str:
        raise ValueError("no text either")


def raising(error: BaseException, **options: Any) -> Task[..., Any]:
    """A task that raises that."""

    async def body() -> None:
        raise error

    return Task(
        body, "tests.execute.raising", task(entrypoint="tests.execute.options", **options)(nothing).defaults, None
    )


async def nothing() -> None:
    pass


@task(entrypoint="tests.execute.echo")
async def echo(value: Any = None) -> Any:
    calls.append(value)
    return value


@task(entrypoint="tests.execute.typed")
async def typed(n: int) -> int:
    calls.append(n)
    return n + 1


def run_of(definition: Task[..., Any], kwargs: str = "{}", **claimed: Any) -> Run:
    given = {"attempt": 1, "lost_count": 0, "snoozes": 0, "max_attempts": 3, "expired": False} | claimed
    return Run(
        Claimed(
            task_id=7,
            run_epoch=1,
            queue="default",
            entrypoint=definition.entrypoint,
            kwargs=kwargs,
            name=None,
            timeout_seconds=None,
            correlation_id=None,
            priority=0,
            waited=0.0,
            **given,
        ),
        definition,
        SETTINGS,
        worker_id=1,
    )


async def call(function: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
    return await function(**kwargs)


async def outcome_of(definition: Task[..., Any], kwargs: str = "{}", **claimed: Any) -> Outcome | None:
    calls.clear()
    return await execute(run_of(definition, kwargs, **claimed), call)


async def test_a_return_value_is_a_success_with_its_json() -> None:
    assert await outcome_of(typed, '{"n": 1}') == Succeeded("2")
    assert await outcome_of(echo) == Succeeded(None)


@pytest.mark.parametrize(
    ("options", "attempt", "kind"),
    [
        ({}, 1, Later),
        ({}, 2, Later),
        ({}, 3, Failed),
        ({"retry_on": (KeyError,)}, 1, Failed),
        ({"retry_on": (LookupError, OfThePast)}, 1, Later),
        ({"give_up_on": OfThePast}, 1, Failed),
        ({"give_up_on": (Exception,), "retry_on": (OfThePast,)}, 1, Failed),
        ({"give_up_on": KeyError}, 1, Later),
    ],
)
async def test_an_exception_is_retried_while_attempts_are_left_and_the_task_wants_it(
    options: dict[str, Any], attempt: int, kind: type[Outcome]
) -> None:
    outcome = await outcome_of(raising(OfThePast("gone"), **options), attempt=attempt)
    assert isinstance(outcome, kind)
    assert isinstance(outcome, Later | Failed)
    assert outcome.error.type == f"{__name__}.OfThePast"
    assert outcome.error.message == "gone"
    assert "raise error" in outcome.error.traceback
    if isinstance(outcome, Later):
        assert (outcome.kind, outcome.seconds) == ("RETRYING", None)  # the row's own backoff decides


async def test_how_many_attempts_there_are_says_the_row_then_the_task_then_the_settings() -> None:
    assert run_of(echo, max_attempts=7).max_attempts == 7
    assert run_of(raising(OfThePast(), max_attempts=5), max_attempts=None).max_attempts == 5
    assert run_of(echo, max_attempts=None).max_attempts == SETTINGS.max_attempts


async def test_retry_chooses_its_own_time_and_spends_an_attempt() -> None:
    outcome = await outcome_of(raising(Retry(in_=5, reason="busy")))
    assert isinstance(outcome, Later)
    assert (outcome.kind, outcome.seconds, outcome.error.message) == ("RETRYING", 5, "busy")
    assert isinstance(await outcome_of(raising(Retry(in_=5)), attempt=3), Failed)
    assert isinstance(await outcome_of(raising(Retry(), give_up_on=(Exception,))), Later)


async def test_snooze_is_not_an_attempt_and_has_a_limit_of_its_own() -> None:
    outcome = await outcome_of(raising(Snooze(in_=5)), attempt=3)
    assert isinstance(outcome, Later)
    assert (outcome.kind, outcome.seconds) == ("SNOOZED", 5)
    last = await outcome_of(raising(Snooze(in_=5)), snoozes=SNOOZE_LIMIT)
    assert isinstance(last, Failed)
    assert last.error.type == "SnoozedTooOften"


async def test_cancel_and_fail_end_the_task_whatever_attempts_are_left() -> None:
    cancelled, failed = await outcome_of(raising(Cancel("no need"))), await outcome_of(raising(Fail("no use")))
    assert isinstance(cancelled, Cancelled)
    assert cancelled.error.message == "no need"
    assert isinstance(failed, Failed)
    assert failed.error.message == "no use"


async def test_an_expired_task_is_cancelled_and_not_called() -> None:
    outcome = await outcome_of(echo, expired=True)
    assert isinstance(outcome, Cancelled)
    assert outcome.error.type == "Expired"
    assert calls == []


@pytest.mark.parametrize("kwargs", ['{"n": "one"}', "{}", '{"m": 1}', '{"n": 1, "m": 1}', "[]", "null", "no JSON"])
async def test_arguments_that_no_longer_fit_fail_at_once_and_name_the_parameter(kwargs: str) -> None:
    outcome = await outcome_of(typed, kwargs)
    assert isinstance(outcome, Failed)
    assert outcome.error.type == "ArgumentsDoNotFit"
    assert "typed" in outcome.error.message
    assert calls == []


async def test_an_annotation_that_cannot_be_looked_up_fails_the_task_and_says_which() -> None:
    async def body(when: Nowhere) -> None:  # type: ignore[name-defined]  # noqa: F821
        calls.append(when)

    outcome = await outcome_of(Task(body, "tests.execute.body", echo.defaults, None), '{"when": 1}')
    assert isinstance(outcome, Failed)
    assert outcome.error.type == "BadTask"
    assert "'when'" in outcome.error.message


@pytest.mark.parametrize("value", [object(), {1, object()}, float("nan"), "\ud800", "a\x00b", lambda: None])
async def test_a_result_that_cannot_be_stored_fails_its_task_at_once(value: Any) -> None:
    async def body() -> Any:
        return value

    outcome = await outcome_of(Task(body, "tests.execute.body", echo.defaults, None))
    assert isinstance(outcome, Failed)
    assert outcome.error.type == "ResultDoesNotEncode"


@pytest.mark.parametrize(("size", "fits"), [(98, True), (99, False), (34, True), (10_000, False)])
async def test_a_result_beyond_the_limit_fails_its_task_and_says_what_to_do(size: int, fits: bool) -> None:
    outcome = await outcome_of(echo, f'{{"value": "{"x" * size}"}}')
    if fits:
        assert isinstance(outcome, Succeeded)
        return
    assert isinstance(outcome, Failed)
    assert outcome.error.type == "PayloadTooLarge"
    assert f"{size + 2:,} bytes, the limit is 100" in outcome.error.message
    assert "AAICLICK_QUEUE_RESULT_MAX_BYTES" in outcome.error.message


async def test_the_limit_of_a_result_counts_bytes_and_not_characters() -> None:
    assert isinstance(await outcome_of(echo, f'{{"value": "{"x" * 40}"}}'), Succeeded)
    assert isinstance(await outcome_of(echo, f'{{"value": "{"€" * 40}"}}'), Failed)


async def test_an_exception_of_ten_megabytes_is_cut_in_the_middle() -> None:
    outcome = await outcome_of(raising(OfThePast("a" * 5_000_000 + "b" * 5_000_000)))
    assert isinstance(outcome, Later)
    assert len(outcome.error.text()) < 150_000
    assert outcome.error.message.startswith("aaa")
    assert outcome.error.message.endswith("bbb")
    assert "characters left out" in outcome.error.message


async def test_an_exception_whose_own_text_raises_is_told_all_the_same() -> None:
    outcome = await outcome_of(raising(Broken()))
    assert isinstance(outcome, Later)
    assert outcome.error.message == "<the exception's own text raised ValueError>"


@pytest.mark.parametrize("error", [SystemExit(3), SystemExit(), GeneratorExit()])
async def test_a_task_that_wants_to_end_the_process_ends_its_run_alone(error: BaseException) -> None:
    outcome = await outcome_of(raising(error))
    assert isinstance(outcome, Later)
    assert type(error).__name__ in outcome.error.message


async def test_a_task_that_calls_sys_exit_fails_like_any_other() -> None:
    async def body() -> None:
        sys.exit("bad usage")

    outcome = await outcome_of(Task(body, "tests.execute.body", echo.defaults, None), attempt=3)
    assert isinstance(outcome, Failed)
    assert "bad usage" in outcome.error.message


async def test_a_task_that_cancels_itself_has_failed() -> None:
    outcome = await outcome_of(raising(asyncio.CancelledError("me")))
    assert isinstance(outcome, Later)
    assert "the task cancelled itself" in outcome.error.message


@pytest.mark.parametrize("reason", [Released(), None, Failed(Error("Boom"))])
async def test_a_run_that_was_told_to_stop_comes_to_what_it_was_told(reason: Outcome | None) -> None:
    run = run_of(raising(asyncio.CancelledError()))
    run.stop = Stop(reason)
    assert await execute(run, call) == reason


async def test_a_timeout_is_an_exception_like_any_other() -> None:
    run = run_of(echo)
    run.timeout = 5
    outcome = timed_out(run)
    assert isinstance(outcome, Later)
    assert outcome.error.type == "TimedOut"
    assert outcome.error.message == "timeout of 5 s passed in attempt 1"
    assert isinstance(timed_out(run_of(echo, attempt=3)), Failed)
    assert isinstance(timed_out(run_of(raising(OfThePast(), give_up_on=(TimeoutError,)))), Failed)


async def test_a_run_that_its_transaction_has_completed_records_nothing_more(caplog: pytest.LogCaptureFixture) -> None:
    run = run_of(echo, '{"value": 1}')
    run.committed = True
    assert await execute(run, call) is None
    assert "returned a value after its transaction had completed it: dropped" in caplog.text
    caplog.clear()
    assert decide(OfThePast("late"), run) is None
    [record] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "raised after its transaction had completed it" in record.message
    assert record.exc_info
