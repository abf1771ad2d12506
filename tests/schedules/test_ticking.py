"""Which ticks fire, as a pure function: tables of what is late and of what overlaps, and laws that hold for all."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import get_args

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from aaiclick_queue.cron import Cron
from aaiclick_queue.fires import Schedule
from aaiclick_queue.intervals import Interval
from aaiclick_queue.ticking import LATE, MOST_COUNTED, Decision, Due, Misfire, Overlap, Tick, decide, newest

NOON = datetime(2027, 3, 27, 12, tzinfo=UTC)
HOUR, MINUTE, SECOND = timedelta(hours=1), timedelta(minutes=1), timedelta(seconds=1)
HOURLY = Schedule(crons=(Cron.parse("0 * * * *"),))
EVERY_SECOND = Schedule(crons=(Cron.parse("* * * * * *"),))
EVERY_20_SECONDS = Schedule(crons=(Cron.parse("* * * * * */20"),))
MISFIRES: tuple[Misfire, ...] = get_args(Misfire)
OVERLAPS: tuple[Overlap, ...] = get_args(Overlap)


def written(decision: Decision) -> list[tuple[int, str, int]]:
    """Ticks as hours from noon, what became of them, and for how many others they stand."""
    return [((tick.fire_at - NOON) // HOUR, tick.outcome, tick.missed) for tick in decision.ticks]


def hourly(hours: int, *, late: timedelta = SECOND, **given: object) -> Due:
    """An hourly schedule whose tick of noon has not fired, so many hours later."""
    return Due(HOURLY, NOON, NOON + hours * HOUR + late, **given)  # type: ignore[arg-type]


# Late ticks.

LATE_TICKS: dict[tuple[Misfire, timedelta], list[tuple[int, str, int]]] = {
    ("skip", SECOND): [(2, "MISSED", 3), (3, "FIRED", 0)],
    ("coalesce", SECOND): [(3, "FIRED", 3)],
    ("catch_up", SECOND): [(0, "FIRED", 0), (1, "FIRED", 0), (2, "FIRED", 0), (3, "FIRED", 0)],
    ("skip", 2 * MINUTE): [(3, "MISSED", 4)],
    ("coalesce", 2 * MINUTE): [(3, "FIRED", 3)],
    ("catch_up", 2 * MINUTE): [(0, "FIRED", 0), (1, "FIRED", 0), (2, "FIRED", 0), (3, "FIRED", 0)],
}


@pytest.mark.parametrize(("misfire", "late"), LATE_TICKS)
def test_of_ticks_that_are_late_the_policy_says_which_fire(misfire: Misfire, late: timedelta) -> None:
    decision = decide(hourly(3, late=late, misfire=misfire))
    assert written(decision) == LATE_TICKS[misfire, late]
    assert decision.next_fire_at == NOON + 4 * HOUR


@pytest.mark.parametrize("misfire", MISFIRES)
def test_a_tick_of_a_minute_ago_is_in_time_and_one_of_a_moment_more_is_not(misfire: Misfire) -> None:
    assert written(decide(hourly(0, late=LATE, misfire=misfire))) == [(0, "FIRED", 0)]
    [tick] = decide(hourly(0, late=LATE + timedelta(microseconds=1), misfire=misfire)).ticks
    assert tick.outcome == ("MISSED" if misfire == "skip" else "FIRED")


def test_no_more_than_the_limit_are_caught_up_and_the_newest_are() -> None:
    decision = decide(hourly(9, misfire="catch_up", misfire_limit=3))
    assert written(decision) == [
        (5, "MISSED", 6), (6, "FIRED", 0), (7, "FIRED", 0), (8, "FIRED", 0), (9, "FIRED", 0)
    ]  # fmt: skip


def test_what_is_not_due_changes_nothing() -> None:
    assert decide(Due(HOURLY, NOON + HOUR, NOON)) == Decision([], NOON + HOUR)
    assert decide(Due(None, None, NOON)) == Decision([], None)


def test_the_last_tick_before_the_end_is_followed_by_none() -> None:
    ending = Schedule(crons=HOURLY.crons, ends_at=NOON + HOUR)
    decision = decide(Due(ending, NOON, NOON + 5 * SECOND))
    assert decision == Decision([Tick(NOON)], None)


# Runs that overlap.

ONE_DUE: dict[tuple[Overlap, bool], tuple[str, bool, bool]] = {  # outcome, waits, replaces
    ("allow", False): ("FIRED", False, False),
    ("allow", True): ("FIRED", False, False),
    ("skip", False): ("FIRED", False, False),
    ("skip", True): ("SKIPPED", False, False),
    ("queue", False): ("FIRED", False, False),
    ("queue", True): ("QUEUED", True, False),
    ("replace", False): ("FIRED", False, False),
    ("replace", True): ("FIRED", False, True),
}


@pytest.mark.parametrize(("overlap", "is_open"), ONE_DUE)
def test_a_tick_over_a_run_goes_as_its_policy_says(overlap: Overlap, *, is_open: bool) -> None:
    decision = decide(hourly(0, overlap=overlap, open_runs=[7] if is_open else []))
    outcome, waits, replaces = ONE_DUE[overlap, is_open]
    assert written(decision) == [(0, outcome, 0)]
    assert (decision.queued is not None, list(decision.replaced)) == (waits, [7] if replaces else [])


SEVERAL: dict[tuple[Overlap, bool], list[str]] = {
    ("allow", False): ["FIRED", "FIRED", "FIRED"],
    ("allow", True): ["FIRED", "FIRED", "FIRED"],
    ("skip", False): ["FIRED", "SKIPPED", "SKIPPED"],
    ("skip", True): ["SKIPPED", "SKIPPED", "SKIPPED"],
    ("queue", False): ["FIRED", "QUEUED", "SKIPPED"],
    ("queue", True): ["QUEUED", "SKIPPED", "SKIPPED"],
    ("replace", False): ["SKIPPED", "SKIPPED", "FIRED"],
    ("replace", True): ["SKIPPED", "SKIPPED", "FIRED"],
}


@pytest.mark.parametrize(("overlap", "is_open"), SEVERAL)
def test_ticks_that_come_together_overlap_each_other(overlap: Overlap, *, is_open: bool) -> None:
    decision = decide(hourly(2, misfire="catch_up", overlap=overlap, open_runs=[7] if is_open else []))
    assert [tick.outcome for tick in decision.ticks] == SEVERAL[overlap, is_open]


TOGETHER = {
    ("skip", "skip"): ["MISSED", "SKIPPED"],
    ("skip", "queue"): ["MISSED", "QUEUED"],
    ("skip", "replace"): ["MISSED", "FIRED"],
    ("skip", "allow"): ["MISSED", "FIRED"],
    ("coalesce", "skip"): ["SKIPPED"],
    ("coalesce", "queue"): ["QUEUED"],
    ("coalesce", "replace"): ["FIRED"],
    ("coalesce", "allow"): ["FIRED"],
    ("catch_up", "skip"): ["SKIPPED", "SKIPPED", "SKIPPED"],
    ("catch_up", "queue"): ["QUEUED", "SKIPPED", "SKIPPED"],
    ("catch_up", "replace"): ["SKIPPED", "SKIPPED", "FIRED"],
    ("catch_up", "allow"): ["FIRED", "FIRED", "FIRED"],
}


@pytest.mark.parametrize(("misfire", "overlap"), TOGETHER)
def test_lateness_is_judged_before_overlap(misfire: Misfire, overlap: Overlap) -> None:
    decision = decide(hourly(2, misfire=misfire, overlap=overlap, open_runs=[7]))
    assert [tick.outcome for tick in decision.ticks] == TOGETHER[misfire, overlap]


def test_the_tick_that_waits_fires_when_nothing_runs_and_the_next_one_waits_for_it() -> None:
    waits = hourly(1, overlap="queue", queued=NOON - HOUR, misfire="skip")
    decision = decide(waits)
    assert written(decision) == [(-1, "FIRED", 0), (0, "MISSED", 1), (1, "QUEUED", 0)]
    assert decision.queued == NOON + HOUR


def test_the_tick_that_waits_goes_on_waiting_while_the_run_goes_on() -> None:
    decision = decide(Due(HOURLY, NOON, NOON - HOUR, overlap="queue", queued=NOON - HOUR, open_runs=[7]))
    assert decision == Decision([], NOON, NOON - HOUR)


@pytest.mark.parametrize("overlap", ["allow", "skip", "replace"])
def test_the_tick_that_waits_fires_at_once_when_the_policy_is_another(overlap: Overlap) -> None:
    decision = decide(Due(HOURLY, NOON, NOON - HOUR, overlap=overlap, queued=NOON - HOUR, open_runs=[7]))
    assert (written(decision), decision.queued) == ([(-1, "FIRED", 0)], None)


def test_a_tick_that_waits_fires_without_any_schedule() -> None:
    assert written(decide(Due(None, None, NOON, overlap="queue", queued=NOON - HOUR))) == [(-1, "FIRED", 0)]


def test_a_tick_that_waits_and_is_due_again_is_written_once() -> None:
    for open_runs in ([], [7]):
        decision = decide(hourly(0, overlap="queue", queued=NOON, open_runs=open_runs))
        fires = [tick.fire_at for tick in decision.ticks]
        assert len(fires) == len({*fires}) <= 1


# Laws.

ZONES = ("UTC", "Europe/Berlin", "Australia/Lord_Howe", "America/New_York", "Pacific/Apia")
CRONS = ("* * * * * *", "*/7 * * * *", "30 2 * * *", "0 */3 * * *", "0 0 29 2 *", "* * * * * */13", "0 0 L * *")
SCHEDULES = st.builds(
    lambda words, zone: Schedule(crons=tuple(Cron.parse(one, zone) for one in words)),
    st.lists(st.sampled_from(CRONS), min_size=1, max_size=2, unique=True),
    st.sampled_from(ZONES),
) | st.builds(
    lambda every: Schedule(interval=Interval(every, NOON - 17 * SECOND)), st.sampled_from([1, 7.5, 60, 86400])
)
AWAY = st.timedeltas(timedelta(0), timedelta(minutes=3)) | st.timedeltas(timedelta(0), timedelta(days=2))


@st.composite
def dues(draw: st.DrawFn) -> Due:
    schedule = draw(SCHEDULES)
    fire_at = schedule.after(NOON)
    assert fire_at is not None
    queued = draw(st.sampled_from([None, NOON - HOUR]))
    return Due(
        schedule,
        fire_at,
        fire_at + draw(AWAY),
        misfire=draw(st.sampled_from(MISFIRES)),
        misfire_limit=draw(st.sampled_from([1, 5, 100])),
        overlap=draw(st.sampled_from(OVERLAPS)),
        open_runs=draw(st.sampled_from([[], [7, 8]])),
        queued=queued,
    )


def due_ticks(due: Due) -> Iterator[datetime]:
    assert due.schedule is not None
    assert due.fire_at is not None
    fire: datetime | None = due.fire_at
    while fire is not None and fire <= due.now:
        yield fire
        fire = due.schedule.after(fire)


@settings(max_examples=150, deadline=None)
@given(dues())
def test_every_decision_keeps_the_laws(due: Due) -> None:
    assert due.schedule is not None
    decision = decide(due)
    fires = [tick.fire_at for tick in decision.ticks]
    assert fires == sorted({*fires})  # none twice, in order
    assert all(fire <= due.now for fire in fires)
    assert decision.next_fire_at == due.schedule.after(due.now)
    first = itertools.islice(due_ticks(due), 5 * MOST_COUNTED)
    expected = [*first]
    assume(len(expected) < 5 * MOST_COUNTED)
    assert {*fires} - {due.queued} <= {*expected}
    late = [fire for fire in expected if fire < due.now - LATE]
    timely = expected[len(late) :]
    assert {*timely} <= {*fires}
    if due.overlap == "allow":
        fired = [tick.fire_at for tick in decision.ticks if tick.outcome == "FIRED" and tick.fire_at != due.queued]
        assert fired == _allowed(due, late, timely)
    if not due.queued:
        stand_for = sum(tick.missed + (tick.outcome != "MISSED") for tick in decision.ticks)
        assert stand_for == min(len(late), max(MOST_COUNTED, due.misfire_limit)) + len(timely)


def _allowed(due: Due, late: Sequence[datetime], timely: list[datetime]) -> list[datetime]:
    match due.misfire:
        case "skip":
            return timely
        case "coalesce":
            return timely or [*late[-1:]]
        case "catch_up":
            return [*late[-due.misfire_limit :], *timely]


@settings(max_examples=150, deadline=None)
@given(SCHEDULES, st.timedeltas(SECOND, timedelta(hours=5)), st.integers(1, 200))
def test_newest_is_what_a_walk_over_all_ends_with(schedule: Schedule, length: timedelta, count: int) -> None:
    assert newest(schedule, NOON, NOON + length, count) == list(schedule.between(NOON, NOON + length))[-count:]


class Counting(Schedule, frozen=True, kw_only=True):
    """Counts the fires that are asked for."""

    asked: list[int]

    def between(self, start: datetime, end: datetime) -> Iterator[datetime]:
        for fire in super().between(start, end):
            self.asked.append(1)
            yield fire


@pytest.mark.parametrize("misfire", MISFIRES)
@pytest.mark.parametrize("words", ["* * * * * *", "* * * 1 * *", "* * 1-20 1,2 * *", "0 0 29 2 *"])
def test_a_schedule_of_every_second_that_was_away_for_a_year_costs_little(words: str, misfire: Misfire) -> None:
    schedule = Counting(crons=(Cron.parse(words),), asked=[])
    fire_at = schedule.after(datetime(2027, 1, 1, tzinfo=UTC) - SECOND)
    assert fire_at is not None
    decision = decide(Due(schedule, fire_at, fire_at + timedelta(days=365.2), misfire=misfire))
    assert len(schedule.asked) < 10_000
    assert len(decision.ticks) <= 162
