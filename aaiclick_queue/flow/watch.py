"""Watch: who holds the loops looks at queues, for samples and alarms, counts long lines, and has the doctor look."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from ..meters import LABELS_LIMIT, METERS
from ..postgres import Database
from .detect import Detector, Found, keep_alarms
from .lines import FRESH_SECONDS, count_long_lines, look_at_queues
from .loop import Holder, Loop
from .sample import sample_once

WATCH_SECONDS = 15.0
DEPTHS_SECONDS = 5.0
DOCTOR_SECONDS = 300.0
WATCH_REST_SECONDS = 300.0
DEPTHS_REST_SECONDS = FRESH_SECONDS - 30  # for jitter and a count of 20 s: until it is there, the last one is shown
DOCTOR_REST_SECONDS = 3600.0
FIRST_LOOK_SECONDS = 60.0  # a short life has no doctor: his look at 120,000 tasks takes 0.7 s, when they wait to be run
SCHEDULE_NAMES = "SELECT name FROM aaiclick_queue.registered_jobs WHERE NOT is_gone ORDER BY id LIMIT $1"
INVARIANT, BROKEN = "invariant", "INVARIANT_BROKEN"
OTHERS_SECONDS = 2.0  # until somebody else may have become the holder


Examine = Callable[[Database], Awaitable[Sequence[Found]]]  # the doctor, who is not of the flow


class Watch:
    """The watch of one process; it rests while another process holds the loops."""

    def __init__(
        self, db: Database, holder: Holder, examine: Examine | None = None, *, rests: float = FIRST_LOOK_SECONDS
    ) -> None:
        """The doctor looks after `rests` seconds for the first time."""
        self._examines_at = time.monotonic() + rests
        self._db = db
        self._holder = holder
        self._detector = Detector(db.settings)
        self._watch = Loop("watch", self._watch_pass, longest_rest=WATCH_REST_SECONDS)
        self._depths = Loop("depths", self._depths_pass, longest_rest=DEPTHS_REST_SECONDS)
        self._examine = examine
        self._doctor = Loop("doctor", self._doctor_pass, longest_rest=DOCTOR_REST_SECONDS)
        self.loops = (self._watch, self._depths, self._doctor)

    async def _watch_pass(self) -> float:
        if not self._holder.holds:
            return OTHERS_SECONDS
        queues = await look_at_queues(self._db)
        if METERS.on:
            await self._name_meters(queues)
        sampled = await sample_once(self._db, queues)
        raised, cleared = await self._detector.detect_once(self._db, queues)
        self._watch.counts.did("wrote or cleared {} samples and alarms", sampled + raised + cleared)
        return WATCH_SECONDS

    async def _name_meters(self, queues: Sequence[Any]) -> None:
        """Who holds the loops takes back runs of every queue and fires every schedule, whatever else it serves."""
        schedules = await self._db.fetch(SCHEDULE_NAMES, LABELS_LIMIT)
        METERS.know(queues=(row["name"] for row in queues), schedules=(row["name"] for row in schedules))

    async def _depths_pass(self) -> float:
        if not self._holder.holds:
            return OTHERS_SECONDS
        self._depths.counts.did("counted {} long lines", await count_long_lines(self._db))
        return DEPTHS_SECONDS

    async def _doctor_pass(self) -> float:
        if self._examine is None:
            return DOCTOR_SECONDS
        if not self._holder.holds or time.monotonic() < self._examines_at:
            return OTHERS_SECONDS
        found = await self._examine(self._db)
        await keep_alarms(self._db, INVARIANT, found, event=BROKEN)
        self._doctor.counts.did("found {} invariants broken", len(found))
        return DOCTOR_SECONDS
