"""Whatever is given from Python, arguments, options, settings or schedules, is taken as it is or clearly refused."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaiclick_queue import Settings, task
from aaiclick_queue.codec import Signature
from aaiclick_queue.errors import ArgumentsDoNotFit, BadJob, BadSchedule, BadTask, SettingsError
from aaiclick_queue.job_options import JobOptions
from aaiclick_queue.proof import difference
from aaiclick_queue.retry import CELERY_OPTIONS
from aaiclick_queue.schedule_options import ScheduleOptions
from aaiclick_queue.settings import PREFIX
from aaiclick_queue.spec import CHECKS, ONLY_ON_TASK
from aaiclick_queue.tasks import by_name
from tests.hostile.values import BOUNDED, GARBAGE, ODD, texts, values

DEFAULTS = Settings.load({})
NOW = datetime(2026, 1, 1, tzinfo=UTC)
RETRIES = ("retry_delay", "retry_factor", "retry_max_delay", "retry_jitter")
OPTIONS = [*CHECKS, *CELERY_OPTIONS, *RETRIES, *ONLY_ON_TASK, "nonsense"]
CRON_WORDS = [
    *("*", "0", "59", "60", "*/5", "*/0", "1-5", "5-1", "MON", "L", "15W", "2#3", "31", "2", "29", "1,2", "-1"),
    *("\u0663", "1/2/3", ",", "**", "JAN-DEC", "@daily"),
]
crons = st.text("0123456789*/-,?LW#@ MONJA\x00\ud800٣", max_size=25) | st.lists(
    st.sampled_from(CRON_WORDS), min_size=4, max_size=7
).map(" ".join)


def anything(x: Any) -> None: ...


def number(x: int) -> None: ...


def fraction(x: float) -> None: ...


def text(x: str) -> None: ...


def blob(x: bytes) -> None: ...


def moment(x: datetime) -> None: ...


def either(x: int | str | list[float] | None) -> None: ...


def nested(x: dict[str, list[tuple[int, str]]]) -> None: ...


@task(entrypoint="test_given.plain")
async def plain(x: int = 0) -> None: ...


@pytest.mark.parametrize("function", [anything, number, fraction, text, blob, moment, either, nested])
def test_an_argument_arrives_as_it_was_or_is_refused_by_name(function: Any) -> None:
    signature = Signature.of(function)

    @BOUNDED
    @given(values)
    def one(value: Any) -> None:
        _arrives_or_is_refused(signature, value)

    for value in ODD:
        _arrives_or_is_refused(signature, value)
    one()


def _arrives_or_is_refused(signature: Signature, value: Any) -> None:
    try:
        payload = signature.encode((value,), {})
    except ArgumentsDoNotFit as error:
        assert error.parameter == "x" or "an argument of" in str(error)  # noqa: PT017
        return
    assert "\\u0000" not in payload.replace("\\\\", "")
    payload.encode()  # it is Unicode
    arrived = signature.decode(payload)["x"]
    assert signature.encode((arrived,), {}) == payload
    if signature.name.endswith(anything.__name__):
        assert difference(value, arrived) is None
    elif isinstance(value, datetime):  # moments of two zones are never equal where one of them has a gap
        assert (arrived.replace(tzinfo=None), arrived.utcoffset()) == (value.replace(tzinfo=None), value.utcoffset())
    elif type(arrived) is type(value):
        assert arrived == value


def test_an_option_is_taken_or_refused_by_name() -> None:
    for name, value in itertools.product(OPTIONS, ODD):
        _is_taken_or_refused(name, value)

    @BOUNDED
    @given(st.sampled_from(OPTIONS), values)
    def one(name: str, value: Any) -> None:
        _is_taken_or_refused(name, value)

    one()


def _is_taken_or_refused(name: str, value: Any) -> None:
    try:
        spec, new, _ = plain.options(**{name: value}).prepare((), {}, DEFAULTS)
    except (BadTask, ArgumentsDoNotFit) as error:
        refusal = str(error)
        assert name in refusal or (name in ("autoretry_for", "dont_autoretry_for") and "retry_on" in refusal)
        return
    for one in (spec.name, spec.queue, spec.retry, spec.hooks, new.metadata, new.correlation_id, new.concurrency_key):
        assert "\x00" not in (one or "")
        (one or "").encode()


def test_an_option_of_a_job_is_taken_or_refused_by_name() -> None:
    for name, value in itertools.product([*JobOptions.__struct_fields__, "nonsense"], ODD):
        try:
            JobOptions.given({name: value})
        except BadTask as error:
            assert name in str(error)  # noqa: PT017 - most are refused, some are taken


@pytest.mark.parametrize("entrypoint", ["", "a\x00b", "\ud800", None, 7, b"a.b"])
def test_a_task_by_a_name_that_no_row_can_hold_is_refused(entrypoint: Any) -> None:
    with pytest.raises(BadTask, match="entrypoint"):
        by_name(entrypoint)


def test_a_schedule_runs_ever_later_or_is_refused() -> None:
    for name, value in itertools.product([*ScheduleOptions.__struct_fields__, "nonsense"], ODD):
        _runs_ever_later_or_is_refused({name: value})

    @BOUNDED
    @given(st.sampled_from(ScheduleOptions.__struct_fields__), values)
    def any_option(name: str, value: Any) -> None:
        _runs_ever_later_or_is_refused({name: value})

    @BOUNDED
    @given(crons, st.sampled_from(["UTC", "Europe/Berlin", "Pacific/Apia", "Mars/Olympus"]) | texts)
    def cron(expression: str, zone: str) -> None:
        _runs_ever_later_or_is_refused({"schedule": expression, "timezone": zone})
        _runs_ever_later_or_is_refused({"schedule": expression})

    @BOUNDED
    @given(st.text("0123456789.smhdw -e", max_size=12))
    def interval(every: str) -> None:
        _runs_ever_later_or_is_refused({"interval": every})

    any_option()
    cron()
    interval()


def _runs_ever_later_or_is_refused(options: Mapping[str, Any]) -> None:
    try:
        made = ScheduleOptions.given(options)
    except BadSchedule:
        return
    except BadTask as error:  # an option that jobs have too
        assert any(name in str(error) for name in options)  # noqa: PT017
        return
    runs, schedule = [NOW], made.on_clock(NOW) if made.is_scheduled else None
    while schedule is not None and len(runs) < 4 and (run := schedule.after(runs[-1])) is not None:
        runs.append(run)
    assert runs == sorted(set(runs))


@pytest.mark.parametrize("garbage", GARBAGE, ids=ascii)
def test_every_setting_of_garbage_is_one_error_that_names_its_variable(garbage: str) -> None:
    refused = set()
    names = list(Settings.model_fields)
    try:
        Settings.load(dict.fromkeys((PREFIX + name.upper() for name in names), garbage))
    except SettingsError as error:
        refused = {name for name in names if f"{PREFIX}{name.upper()}" in str(error)}
    assert refused, "no setting refuses it"
    for name in set(names) - refused:
        try:
            Settings.load({PREFIX + name.upper(): garbage})
        except SettingsError as error:  # of two that do not fit together
            assert f"{PREFIX}{name.upper()}" in str(error)  # noqa: PT017


def test_a_job_option_that_cannot_be_shown_is_refused_as_one() -> None:
    with pytest.raises(BadJob, match="retention"):
        JobOptions.given({"retention": 10**5000})
