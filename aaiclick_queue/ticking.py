"""Which ticks of a schedule fire now: those that are due, by its rules for late ones and for runs that overlap.

Pure: what is known of the schedule in, what is to be written out. Part of the scheduler.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Literal

import msgspec

from .fires import Schedule

Misfire = Literal["skip", "coalesce", "catch_up"]
Overlap = Literal["allow", "skip", "queue", "replace"]
Outcome = Literal["FIRED", "QUEUED", "SKIPPED", "MISSED"]

MOMENT = timedelta(microseconds=1)
LATE = timedelta(seconds=60)  # later than that is a misfire
MOST_SEEN = 10_000
_seen: dict[tuple[int, datetime], tuple[Schedule, bool, datetime | None]] = {}
MOST_COUNTED = 1000  # of those that were missed: a schedule of every second may have been away for a month


class Due(msgspec.Struct, frozen=True):
    """A schedule whose tick is due, or that has left something to do; times are those of its own clock."""

    schedule: Schedule | None  # None: it fires no more by itself
    fire_at: datetime | None  # its first tick that has not fired
    now: datetime
    misfire: Misfire = "coalesce"
    misfire_limit: int = 100
    overlap: Overlap = "allow"
    open_runs: Sequence[int] = ()  # asked for only where they matter
    queued: datetime | None = None  # a tick that waits for the end of the run before it


class Tick(msgspec.Struct, frozen=True):
    """One tick, and what became of it; it stands for `missed` others."""

    fire_at: datetime
    outcome: Outcome = "FIRED"
    missed: int = 0
    reason: str | None = None


class Decision(msgspec.Struct):
    """What is to be written: ticks in order, runs to be cancelled, and what is next."""

    ticks: list[Tick]
    next_fire_at: datetime | None
    queued: datetime | None = None
    replaced: Sequence[int] = ()


def decide(due: Due) -> Decision:
    """What becomes of all ticks up to now."""
    ticks, next_fire_at = _due_ticks(due)
    return _over_open_runs(due, ticks, next_fire_at)


def _due_ticks(due: Due) -> tuple[list[Tick], datetime | None]:
    if due.schedule is None or due.fire_at is None or due.fire_at > due.now:
        return [], due.fire_at
    late_until = due.now - LATE  # a tick of that moment is in time
    is_still, next_fire_at = _around(due.schedule, due.fire_at)
    if due.fire_at >= late_until and (next_fire_at is None or next_fire_at > due.now):  # nearly always
        return [Tick(due.fire_at)] if is_still else [], next_fire_at
    in_time = due.schedule.between(max(due.fire_at, late_until), due.now + MOMENT)
    ticks = [Tick(one) for one in in_time]
    if due.fire_at < late_until:
        ticks = _after_misfires(due, due.schedule, late_until, ticks)
    return ticks, due.schedule.after(due.now)


def _around(schedule: Schedule, fire_at: datetime) -> tuple[bool, datetime | None]:
    """Whether it fires then, for the rules of its zone may have changed, and when next; many schedules are alike."""
    known = _seen.get((id(schedule), fire_at))
    if known is None or known[0] is not schedule:
        if len(_seen) >= MOST_SEEN:
            _seen.clear()
        is_still = schedule.after(fire_at - MOMENT) == fire_at
        known = _seen[id(schedule), fire_at] = (schedule, is_still, schedule.after(fire_at))
    return known[1], known[2]


def _after_misfires(due: Due, schedule: Schedule, late_until: datetime, timely: list[Tick]) -> list[Tick]:
    """The ticks in time, with what the policy makes of those that are late."""
    assert due.fire_at is not None
    late = sum(1 for _ in islice(schedule.between(due.fire_at, late_until), MOST_COUNTED))
    if not late:
        return timely
    why = "late by more than a minute: nothing ran"
    if due.misfire == "skip":
        [last] = newest(schedule, due.fire_at, late_until, 1)
        return [Tick(last, "MISSED", missed=late, reason=why), *timely]
    if due.misfire == "coalesce":
        if timely:  # the next one in time is also theirs
            return [msgspec.structs.replace(timely[0], missed=late), *timely[1:]]
        [last] = newest(schedule, due.fire_at, late_until, 1)
        return [Tick(last, missed=late - 1, reason=_for_many(late - 1))]
    kept = newest(schedule, due.fire_at, late_until, due.misfire_limit + 1)
    ticks = [Tick(one) for one in kept[-due.misfire_limit :]]
    if len(kept) > due.misfire_limit:
        beyond = max(1, late - due.misfire_limit)
        what = f"beyond the {due.misfire_limit:,} that are caught up"
        ticks.insert(0, Tick(kept[0], "MISSED", missed=beyond, reason=what))
    return [*ticks, *timely]


def _for_many(others: int) -> str | None:
    return f"for {others:,} that were missed too" if others else None


def newest(schedule: Schedule, start: datetime, end: datetime, count: int) -> list[datetime]:
    """The last ticks before `end`, in order; without a walk over all of them."""
    few, many, window = timedelta(0), end - start, LATE
    most = 2 * count + 60
    while True:
        window = min(window, many)
        found = list(islice(schedule.between(end - window, end), most))
        if len(found) == most:  # every second of last January, say: somewhere between too few and too many
            many = window
            window = (few + many) / 2
        elif len(found) >= count or window == many:
            return found[-count:]
        else:
            few = window
            window = (few + many) / 2 if many < end - start else 2 * window


def _over_open_runs(due: Due, ticks: list[Tick], next_fire_at: datetime | None) -> Decision:
    decision = Decision([], next_fire_at, due.queued)
    ticks = [tick for tick in ticks if tick.fire_at != due.queued]
    is_open = bool(due.open_runs)
    if due.queued is not None and (not is_open or due.overlap != "queue"):
        decision.ticks.append(Tick(due.queued, reason="waited for the end of the run before it"))
        decision.queued, is_open = None, True
    last = next((tick for tick in reversed(ticks) if tick.outcome == "FIRED"), None)
    for tick in ticks:
        if tick.outcome != "FIRED" or due.overlap == "allow":
            decision.ticks.append(tick)
        elif due.overlap == "replace":
            decision.ticks.append(tick if tick is last else _skipped(tick, "a later tick was due too"))
        elif not is_open:
            decision.ticks.append(tick)
            is_open = True
        elif due.overlap == "queue" and decision.queued is None:
            decision.ticks.append(msgspec.structs.replace(tick, outcome="QUEUED", reason="waits for the run before it"))
            decision.queued = tick.fire_at
        else:
            why = "another tick waits already" if due.overlap == "queue" else "the run before it has not ended"
            decision.ticks.append(_skipped(tick, why))
    if due.overlap == "replace" and last is not None:
        decision.replaced = due.open_runs
    return decision


def _skipped(tick: Tick, why: str) -> Tick:
    return msgspec.structs.replace(tick, outcome="SKIPPED", reason=why)
