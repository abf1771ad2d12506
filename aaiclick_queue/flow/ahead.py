"""Ahead: schedules that are due in a moment, read and decided before it. Part of the scheduler.

Nothing is locked meanwhile: a decision counts only for the very version of the row that it was made of.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

from ..schema import Transaction
from ..ticking import decide
from .firing import DUE_COLUMNS, UNREADABLE, Written, due_of, written

# Only where nothing but the row decides: a run that is open now may have ended by then.
READ_AHEAD = f"""
SELECT {DUE_COLUMNS}, r.xmin::text AS version FROM aaiclick_queue.registered_jobs r
WHERE r.next_run_at > now() AND r.next_run_at <= $1::timestamptz AND r.overlap = 'allow'
ORDER BY r.next_run_at, r.id LIMIT $2
"""
AHEAD_SECONDS = 0.08  # reading and deciding a thousand takes half of it
AT_MOST = 5000
LATE_SECONDS = 0.5  # by then more may be due of the same schedule


class Ahead:
    """What one scheduler knows of the next moment at which something is due."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, str], Written] = {}
        self._covers: datetime | None = None
        self._until = 0.0

    async def look(self, tx: Transaction, moment: datetime, *, seconds: float) -> None:
        """Read and decide what is due at that moment, so many seconds from now, and shortly after it."""
        if self._covers is not None and moment <= self._covers:
            return
        self._known.clear()
        self._covers = moment + timedelta(seconds=AHEAD_SECONDS)
        self._until = time.monotonic() + seconds + AHEAD_SECONDS + LATE_SECONDS
        for row in await tx.fetch(READ_AHEAD, self._covers, AT_MOST):
            with suppress(*UNREADABLE):  # told when it is due
                decision = decide(due_of(row, now=row["next_run_at"]))
                self._known[row["id"], row["version"]] = written(row, decision)

    def take(self, held: Sequence[Any]) -> tuple[list[Written], list[int]]:
        """What is known of the rows, locked by now, that are as they were; the ids of the others."""
        if time.monotonic() > self._until:
            self._known.clear()
        known = [self._known.pop((row["id"], row["version"]), None) for row in held]
        others = [row["id"] for row, one in zip(held, known, strict=True) if one is None]
        return [one for one in known if one is not None], others
