"""Options of a task: what is taken, what is refused, and that every refusal says what, why and how."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest

from aaiclick_queue import Cancel, Fail, Retry, Snooze, task
from aaiclick_queue.errors import BadTask
from aaiclick_queue.retry import CELERY_OPTIONS
from aaiclick_queue.retry import Retry as Policy
from aaiclick_queue.spec import NAME_LIMIT, Options
from aaiclick_queue.tasks import registry

MOMENT = datetime(2030, 1, 1, 12, tzinfo=UTC)


def nothing() -> None:
    pass


@pytest.mark.parametrize(
    ("given", "field", "value"),
    [
        ({"queue": "mail"}, "queue", "mail"),
        ({"queue": "q" * NAME_LIMIT}, "queue", "q" * NAME_LIMIT),
        ({"priority": -32768}, "priority", -32768),
        ({"priority": 32767}, "priority", 32767),
        ({"countdown": 5}, "countdown", 5.0),
        ({"countdown": 0}, "countdown", 0.0),
        ({"countdown": timedelta(minutes=2)}, "countdown", 120.0),
        ({"eta": MOMENT}, "eta", MOMENT),
        ({"eta": MOMENT.astimezone(timezone(timedelta(hours=5)))}, "eta", MOMENT),
        ({"expires": 60}, "expires", 60.0),
        ({"expires": timedelta(hours=1)}, "expires", 3600.0),
        ({"expires": MOMENT}, "expires", MOMENT),
        ({"timeout": 0.5}, "timeout", 0.5),
        ({"max_attempts": 1}, "max_attempts", 1),
        ({"retry_on": KeyError}, "retry_on", (KeyError,)),
        ({"give_up_on": [KeyError, ValueError]}, "give_up_on", (KeyError, ValueError)),
        ({"dedupe_key": "k", "dedupe": "skip"}, "dedupe", "skip"),
        ({"dedupe_until": timedelta(days=1)}, "dedupe_until", 86400.0),
        ({"dedupe_until": "final"}, "dedupe_until", None),
        ({"metadata": {"by": "ada"}}, "metadata", {"by": "ada"}),
        ({"name": "greet"}, "name", "greet"),
        ({"queue": None}, "queue", None),
        ({"retry_delay": 5}, "retry", Policy(delay=5.0)),
        ({"retry_jitter": False, "retry_factor": 1}, "retry", Policy(factor=1.0, jitter=False)),
        ({"max_retries": 4}, "max_attempts", 5),
        ({"autoretry_for": (KeyError,)}, "retry_on", (KeyError,)),
        ({"dont_autoretry_for": (KeyError,)}, "give_up_on", (KeyError,)),
        ({"default_retry_delay": 180}, "retry", Policy(delay=180.0)),
        ({"retry_backoff": True}, "retry", Policy(delay=1.0, factor=2.0)),
        ({"retry_backoff": 3, "retry_backoff_max": 60}, "retry", Policy(delay=3.0, factor=2.0, max_delay=60.0)),
        ({"retry_backoff": False}, "retry", Policy(factor=1.0)),
        ({"soft_time_limit": 10}, "timeout", 10.0),
        ({"time_limit": 10}, "timeout", 10.0),
    ],
)
def test_what_is_given_is_what_is_meant(given: dict[str, Any], field: str, value: Any) -> None:
    assert getattr(Options.given(given), field) == value


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"queue": ""}, "queue='': give a text of 1 to 200"),
        ({"queue": 7}, "queue=7: give a text"),
        ({"queue": "q" * (NAME_LIMIT + 1)}, "1 to 200"),
        ({"queue": "a\x00b"}, "without NUL"),
        ({"name": "\ud800"}, "lone surrogates"),
        ({"priority": 40_000}, "priority=40000: give a whole number from -32768 to 32767"),
        ({"priority": 1.5}, "whole number"),
        ({"priority": True}, "whole number"),
        ({"countdown": -1}, "countdown=-1: give seconds or a timedelta from 0"),
        ({"countdown": "5"}, "give seconds"),
        ({"countdown": True}, "give seconds"),
        ({"countdown": float("nan")}, "give seconds"),
        ({"countdown": float("inf")}, "give seconds"),
        ({"countdown": timedelta(days=1000)}, "to 366 days"),
        ({"timeout": 0}, "timeout=0: give seconds or a timedelta from 0.001"),
        ({"eta": datetime(2030, 1, 1)}, "has no time zone.*datetime.now\\(UTC\\)"),  # noqa: DTZ001 - what is refused
        ({"eta": 5}, "eta=5: give a datetime with a time zone"),
        ({"expires": datetime(2030, 1, 1)}, "has no time zone"),  # noqa: DTZ001
        ({"expires": "soon"}, "expires='soon'"),
        ({"countdown": 5, "eta": MOMENT}, "both given: give one of them"),
        ({"max_attempts": 0}, "max_attempts=0: give a whole number from 1 to 1000"),
        ({"retry_on": "KeyError"}, "give exception classes, e.g. retry_on="),
        ({"give_up_on": (KeyError, 7)}, "give exception classes"),
        ({"dedupe": "drop"}, "give one of raise, skip, replace, debounce"),
        ({"metadata": ["a"]}, "give a dict with text keys"),
        ({"metadata": {1: 2}}, "give a dict with text keys"),
        ({"retry_factor": 0.5}, "retry_factor=0.5: give seconds or a timedelta from 1 to 100"),
        ({"retry_delay": -1}, "retry_delay=-1"),
        ({"retry_max_delay": "1m"}, "retry_max_delay='1m'"),
        ({"max_retries": -1}, "max_retries=-1: give a whole number from 0 to 999"),
        ({"max_retries": "3"}, "max_retries='3': give a whole number"),
        ({"retry_backoff": "yes"}, "retry_backoff='yes'"),
        ({"prioriti": 1}, "unknown option 'prioriti': did you mean 'priority'"),
        ({"max_retry": 1}, "did you mean 'max_retries'"),
        ({"retry": Policy()}, "unknown option 'retry'"),
        ({"isolatoin": "process"}, "unknown option 'isolatoin': did you mean 'isolation'"),
        ({"schedule": "0 8 * * *"}, r"schedule is no option of a task: register_job\('name', the_task, schedule=…\)"),
        (
            {"heartbeat_timeout": 5},
            "heartbeat_timeout belongs to the code that runs, not to one enqueue: give it to @task",
        ),
        ({"zzz": 1}, "unknown option 'zzz': known are .*countdown.*"),
    ],
)
def test_a_refusal_says_what_and_what_would_be_right(given: dict[str, Any], words: str) -> None:
    with pytest.raises(BadTask, match=words):
        Options.given(given)


def test_options_of_one_enqueue_stand_over_those_of_the_task() -> None:
    below = Options.given({"queue": "mail", "priority": 3, "retry_delay": 5, "retry_factor": 3})
    over = Options.given({"priority": 0, "retry_delay": 7}, below=below).over(below)
    assert (over.queue, over.priority) == ("mail", 0)
    assert over.retry == Policy(delay=7.0, factor=3.0)
    assert Options.given({}).over(below) == below


def test_a_policy_is_written_without_its_defaults() -> None:
    assert Policy().text() is None
    written = Policy(delay=3.0, jitter=False).text()
    assert written is not None
    assert msgspec.json.decode(written) == {"delay": 3.0, "jitter": False}


def test_every_name_of_celery_becomes_an_option_that_is_known() -> None:
    values: dict[str, Any] = {"autoretry_for": (KeyError,), "dont_autoretry_for": (KeyError,)}
    for name in CELERY_OPTIONS:
        Options.given({name: values.get(name, 3)})
        Options.given({name: None})


# The decorator.


def test_a_task_still_is_the_function_it_was() -> None:
    @task(entrypoint="tests.spec.double", queue="mail")
    def double(n: int) -> int:
        """Twice as much."""
        return 2 * n

    assert double(4) == 8
    assert (double.function.__name__, double.__doc__) == ("double", "Twice as much.")
    assert repr(double) == "<task tests.spec.double>"
    assert registry["tests.spec.double"] is double


def test_a_task_is_found_under_its_own_name_and_its_aliases() -> None:
    @task(aliases=["tests.spec.old_name"])
    def renamed() -> None:
        pass

    name = f"{__name__}.{renamed.function.__qualname__}"
    assert registry[name] is registry["tests.spec.old_name"] is renamed
    assert renamed.entrypoint == name


def test_two_tasks_of_one_name_are_refused_with_both_places() -> None:
    @task(entrypoint="tests.spec.taken")
    def one() -> None:
        pass

    with pytest.raises(BadTask, match=r"two tasks are called 'tests.spec.taken'.*entrypoint='…'"):

        @task(entrypoint="tests.spec.taken")
        def two() -> None:
            pass

    assert registry["tests.spec.taken"] is one


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dedupe_key": "k"}, "belong to one enqueue"),
        ({"eta": MOMENT}, "belong to one enqueue"),
        ({"heartbeat_timeout": 0}, "heartbeat_timeout=0"),
        ({"quue": "mail"}, "did you mean 'queue'"),
    ],
)
def test_a_decorator_that_cannot_work_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(BadTask, match=words):
        task(**options)(nothing)


@pytest.mark.parametrize("function", [7, int, print, "nothing"])
def test_only_functions_are_tasks(function: Any) -> None:
    with pytest.raises(BadTask):
        task(function)


# What a task may raise to steer its run.


def test_directives_carry_when_and_why() -> None:
    assert Retry().in_seconds is None
    assert Retry(in_=timedelta(minutes=1)).in_seconds == 60
    snooze = Snooze(5, reason="busy")
    assert (snooze.in_seconds, snooze.reason, str(snooze)) == (5, "busy", "busy")
    assert (str(Cancel("why")), str(Fail("why"))) == ("why", "why")


@pytest.mark.parametrize("seconds", [-1, 1e12, float("nan"), timedelta(days=-1)])
@pytest.mark.parametrize("kind", [Retry, Snooze])
def test_directives_into_the_past_or_beyond_a_year_are_refused(kind: Any, seconds: Any) -> None:
    with pytest.raises(ValueError, match=rf"{kind.__name__}\(in_=.*give 0 to 366 days"):
        kind(seconds)
