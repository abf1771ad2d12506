"""Reads for people: what the background loops do, in whatever processes run them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta

import msgspec

from .postgres import Database

LIVE_SECONDS = 35.0  # rows are written every ten
PROCESSES_LIMIT = 1000
DISPATCHING = ("due", "scheduler", "admission", "resolver")  # what these do makes tasks ready
ORCHESTRATORS = """
SELECT o.id::text AS id, o.hostname, o.pid, o.version, o.started_at, o.seen_at, o.loops, now() AS read_at,
       EXISTS (SELECT FROM aaiclick_queue.loops l WHERE l.holder = o.id AND l.expires_at > now()) AS is_holder
FROM aaiclick_queue.orchestrators o WHERE o.seen_at > now() - make_interval(secs => $1::float8)
ORDER BY o.started_at, o.id LIMIT $2
"""


class LoopCounts(msgspec.Struct, frozen=True):
    """One loop of one process as its row has it; ages are seconds before the row was written."""

    cycles: int = 0
    cycle_ago: float | None = None
    seconds: float = 0.0  # that the last cycle took
    worked: int = 0
    folded: int = 0
    errors: int = 0
    last_error: str | None = None
    error_ago: float | None = None
    did: str | None = None
    did_ago: float | None = None


class LoopView(msgspec.Struct, frozen=True):
    """One loop, over all processes; `worked` counts in its own unit: rows relayed, runs taken back, rows pruned."""

    name: str
    cycles_completed: int
    last_cycle_at: datetime | None
    last_cycle_seconds: float
    worked: int
    tasks_dispatched: int  # made ready
    results_processed: int  # arrivals folded
    errors: int
    last_error: str | None
    last_error_at: datetime | None


class OrchestratorProcess(msgspec.Struct, frozen=True):
    """One process that runs the loops; the holder is the one that polls fast."""

    id: str
    hostname: str
    pid: int
    version: str
    started_at: datetime
    seen_at: datetime
    is_holder: bool


class Orchestrator(msgspec.Struct, frozen=True):
    """The loops summed up, by loop, and by whom they are run."""

    is_running: bool
    started_at: datetime
    uptime_seconds: float
    cycles_completed: int
    last_cycle_at: datetime | None
    tasks_dispatched: int
    results_processed: int
    errors: int
    last_error: str | None
    last_error_at: datetime | None
    loops: list[LoopView]
    processes: list[OrchestratorProcess]


class Activity(msgspec.Struct, frozen=True):
    """What a loop of a process did last."""

    loop: str
    did: str
    at: datetime
    process_id: str
    hostname: str


class _Row(msgspec.Struct, frozen=True):
    process: OrchestratorProcess
    loops: dict[str, LoopCounts]
    read_at: datetime

    def at(self, ago: float | None) -> datetime | None:
        return None if ago is None else self.process.seen_at - timedelta(seconds=ago)


async def read_orchestrator(db: Database) -> Orchestrator | None:
    """What the loops have done since their processes started; None when no process runs them."""
    rows = await _rows(db)
    if not rows:
        return None
    names = dict.fromkeys(name for row in rows for name in row.loops)
    loops = [_loop(name, rows) for name in names]
    cycled = [loop.last_cycle_at for loop in loops if loop.last_cycle_at is not None]
    failed = max(
        ((loop.last_error_at, loop) for loop in loops if loop.last_error_at), key=lambda one: one[0], default=None
    )
    started = min(row.process.started_at for row in rows)
    return Orchestrator(
        is_running=True,
        started_at=started,
        uptime_seconds=(rows[0].read_at - started).total_seconds(),
        cycles_completed=sum(loop.cycles_completed for loop in loops),
        last_cycle_at=max(cycled, default=None),
        tasks_dispatched=sum(loop.tasks_dispatched for loop in loops),
        results_processed=sum(loop.results_processed for loop in loops),
        errors=sum(loop.errors for loop in loops),
        last_error=failed[1].last_error if failed else None,
        last_error_at=failed[0] if failed else None,
        loops=loops,
        processes=[row.process for row in rows],
    )


async def read_activity(db: Database) -> list[Activity]:
    """What each loop of each process did last, the latest first."""
    found = [
        Activity(name, counts.did, at, row.process.id, row.process.hostname)
        for row in await _rows(db)
        for name, counts in row.loops.items()
        if counts.did is not None and (at := row.at(counts.did_ago)) is not None
    ]
    return sorted(found, key=lambda one: one.at, reverse=True)


async def _rows(db: Database) -> list[_Row]:
    rows = []
    for row in await db.fetch(ORCHESTRATORS, LIVE_SECONDS, PROCESSES_LIMIT):
        values = dict(row)
        text, read_at = values.pop("loops"), values.pop("read_at")
        with suppress(msgspec.ValidationError):  # of a process that counts in another way
            loops = msgspec.json.decode(text, type=dict[str, LoopCounts])
            rows.append(_Row(OrchestratorProcess(**values), loops, read_at))
    return rows


def _loop(name: str, rows: Sequence[_Row]) -> LoopView:
    some = [(row, row.loops[name]) for row in rows if name in row.loops]
    cycled = [(at, counts.seconds) for row, counts in some if (at := row.at(counts.cycle_ago)) is not None]
    failed = [(at, counts.last_error) for row, counts in some if (at := row.at(counts.error_ago)) is not None]
    last, seconds = max(cycled, default=(None, 0.0))
    error_at, error = max(failed, key=lambda one: one[0], default=(None, None))
    worked = sum(counts.worked for _, counts in some)
    return LoopView(
        name=name,
        cycles_completed=sum(counts.cycles for _, counts in some),
        last_cycle_at=last,
        last_cycle_seconds=seconds,
        worked=worked,
        tasks_dispatched=worked if name in DISPATCHING else 0,
        results_processed=sum(counts.folded for _, counts in some),
        errors=sum(counts.errors for _, counts in some),
        last_error=error,
        last_error_at=error_at,
    )
