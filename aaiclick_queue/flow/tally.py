"""Tally: what runs came to, counted in the process by minute, queue and entrypoint, added up in Postgres.

Before: outcomes that have landed, runs that the reaper took. After: figures. A run is counted where its end was
written, once; only an answer that the network swallowed can make its minute count twice.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from bisect import bisect_left
from collections.abc import Sequence

import msgspec

from ..buckets import RUN_BUCKETS, WAIT_BUCKETS
from ..outcome import Cancelled, Failed, Later, Lost, Outcome, Skipped, Succeeded
from ..postgres import DATA_ERRORS
from ..schema import Transaction

log = logging.getLogger(__name__)

COUNTS = ("completed", "failed", "retried", "lost", "cancelled", "snoozed")
COMPLETED, FAILED, RETRIED, LOST, CANCELLED, SNOOZED = range(len(COUNTS))
OTHER = "other"
ENTRYPOINTS_A_QUEUE = 200  # in a minute, of one process
FLUSH_ROWS = 1000

_WAIT, _RUN = len(COUNTS), len(COUNTS) + 1
_WAITS = len(COUNTS) + 2
_RUNS = _WAITS + len(WAIT_BUCKETS) + 1
_WIDTH = _RUNS + len(RUN_BUCKETS) + 1
_NOTHING = [0] * _WIDTH
_PLACES: dict[type, int] = {Succeeded: COMPLETED, Failed: FAILED, Lost: LOST, Cancelled: CANCELLED, Skipped: CANCELLED}


def _added(column: str, size: int) -> str:
    places = (f"f.{column}[{place}] + excluded.{column}[{place}]" for place in range(1, size + 1))
    return f"{column} = ARRAY[{', '.join(places)}]"


# One statement a beat, its rows in the order of their key: two processes that add to the same rows meet in one order.
ADD_FIGURES = f"""
INSERT INTO aaiclick_queue.figures AS f (minute, queue, entrypoint, {", ".join(COUNTS)}, wait_seconds, run_seconds,
                                         waits, runs)
SELECT to_timestamp(run.minute * 60), run.queue, run.entrypoint, run.completed, run.failed, run.retried, run.lost,
       run.cancelled, run.snoozed, run.wait_seconds, run.run_seconds,
       ($12::int[])[(run.n - 1) * {_RUNS - _WAITS} + 1 : run.n * {_RUNS - _WAITS}],
       ($13::int[])[(run.n - 1) * {_WIDTH - _RUNS} + 1 : run.n * {_WIDTH - _RUNS}]
FROM unnest($1::bigint[], $2::text[], $3::text[], $4::int[], $5::int[], $6::int[], $7::int[], $8::int[], $9::int[],
            $10::float8[], $11::float8[])
     WITH ORDINALITY AS run(minute, queue, entrypoint, {", ".join(COUNTS)}, wait_seconds, run_seconds, n)
ON CONFLICT (minute, queue, entrypoint) DO UPDATE SET
    {", ".join(f"{name} = f.{name} + excluded.{name}" for name in (*COUNTS, "wait_seconds", "run_seconds"))},
    {_added("waits", _RUNS - _WAITS)},
    {_added("runs", _WIDTH - _RUNS)}
"""

Key = tuple[int, str, str]
Rows = dict[Key, list[float]]


class Tallied(msgspec.Struct, frozen=True):
    """A run that is over; `place` is what it came to, an index of COUNTS."""

    queue: str
    entrypoint: str
    waited: float
    seconds: float
    place: int


def place_of(outcome: Outcome) -> int | None:
    """Where an outcome is counted; None: nowhere, the run was handed back."""
    place = _PLACES.get(type(outcome))
    if place is None and type(outcome) is Later:
        return {"RETRYING": RETRIED, "SNOOZED": SNOOZED}.get(outcome.kind)
    return place


class Tally:
    """The counts of one process that are not in Postgres yet; counted on one thread, taken on another."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: Rows = {}
        self._names: dict[tuple[int, str], set[str]] = {}  # of this minute and the one before
        self._offset = time.time() - time.monotonic()

    def set_clock(self, offset: float) -> None:
        """The database's clock is this much ahead of `time.monotonic()`."""
        self._offset = offset

    def count(self, runs: Sequence[Tallied]) -> None:
        """Count runs that have ended just now."""
        if not runs:
            return
        minute = int((time.monotonic() + self._offset) // 60)
        with self._lock:
            for run in runs:
                row = self._rows.get((minute, run.queue, run.entrypoint)) or self._row(
                    minute, run.queue, run.entrypoint
                )
                waited, seconds = run.waited, run.seconds
                row[run.place] += 1
                row[_WAIT] += waited
                row[_RUN] += seconds
                row[_WAITS + bisect_left(WAIT_BUCKETS, waited)] += 1
                row[_RUNS + bisect_left(RUN_BUCKETS, seconds)] += 1

    def take(self) -> Rows:
        """What was counted since the last call, to be flushed or given back."""
        with self._lock:
            rows, self._rows = self._rows, {}
            last = max((minute for minute, _ in self._names), default=0)
            self._names = {key: names for key, names in self._names.items() if key[0] >= last - 1}
        return rows

    def give_back(self, rows: Rows) -> None:
        """It did not land: it is counted again."""
        with self._lock:
            for key, row in rows.items():
                into = self._row(*key)
                into[:] = [one + other for one, other in zip(into, row, strict=True)]

    def _row(self, minute: int, queue: str, entrypoint: str) -> list[float]:
        row = self._rows.get((minute, queue, entrypoint))
        if row is not None:
            return row
        names = self._names.setdefault((minute, queue), set())
        if len(names) < ENTRYPOINTS_A_QUEUE:
            names.add(entrypoint)
        elif entrypoint not in names:
            entrypoint = OTHER
        return self._rows.setdefault((minute, queue, entrypoint), list(_NOTHING))

    async def flush(self, tx: Transaction, *, patience: float) -> bool:
        """Add what was counted to the figures; what does not land is given back. Says whether anything was written."""
        rows = self.take()
        if not rows:
            return False
        ordered = sorted(rows.items())
        left = 0
        try:
            async with asyncio.timeout(patience):
                for left in range(0, len(ordered), FLUSH_ROWS):
                    await _add(tx, ordered[left : left + FLUSH_ROWS])
        except BaseException:
            self.give_back(dict(ordered[left:]))
            raise
        return True


async def _add(tx: Transaction, rows: Sequence[tuple[Key, list[float]]]) -> None:
    try:
        await tx.fetch(ADD_FIGURES, *_arguments(rows))
    except DATA_ERRORS as error:
        # What somebody wrote there cannot be added to. Kept for another try it would spoil every beat to come.
        if len(rows) == 1:
            log.warning("the figures of %s in queue %s are dropped: %s", rows[0][0][2], rows[0][0][1], error)
            return
        for row in rows:
            await _add(tx, [row])


def _arguments(rows: Sequence[tuple[Key, list[float]]]) -> list[Sequence[object]]:
    keys = [[key[at] for key, _ in rows] for at in range(3)]
    numbers = [[row[at] for _, row in rows] for at in range(_WAITS)]
    waits = [count for _, row in rows for count in row[_WAITS:_RUNS]]
    return [*keys, *numbers, waits, [count for _, row in rows for count in row[_RUNS:]]]
