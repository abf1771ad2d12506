"""The part of a round that operators cause: figures, samples, alarms, the books of loops, and what forgets them."""

from __future__ import annotations

from aaiclick_queue.flow.books import Books
from aaiclick_queue.flow.detect import Detector
from aaiclick_queue.flow.loop import Loop
from aaiclick_queue.flow.prune_operate import prune_operate
from aaiclick_queue.flow.sample import sample_once
from aaiclick_queue.flow.tally import COMPLETED, Tallied, Tally
from aaiclick_queue.postgres import Database
from aaiclick_queue.settings import Settings

FORGET = """
WITH alarm AS (DELETE FROM aaiclick_queue.alarms)
DELETE FROM aaiclick_queue.samples WHERE minute = date_trunc('minute', now())
"""


class OperateRound:
    """Does once what the books, the watch and a beat do, `batch` rows in a step."""

    def __init__(self, flow: Database, *, worker_id: int, batch: int) -> None:
        self._flow = flow
        self._worker_id = worker_id
        self._batch = batch

    async def run(self) -> None:
        """All of it once."""
        figures = Tally()
        for _ in range(2):  # into new rows, and into those that are there
            figures.count([Tallied("default", f"task {n}", 0.1, 0.1, COMPLETED) for n in range(self._batch)])
            assert await figures.flush(self._flow, patience=60)
        loop = Loop("due", self._never)
        loop.counts.failed(ValueError("no"))
        books = Books(self._worker_id, [loop], version="1")
        assert await books.write_once(self._flow) == 1
        await books.close(self._flow)
        counts = dict.fromkeys(("ready", "share", "running", "delayed", "held"), 1)
        row = {**counts, "oldest_seconds": 1.0, "counted_seconds": None}
        await sample_once(self._flow, [row | {"name": f"queue {n}"} for n in range(self._batch)])
        # Of the jobs that are there nothing is on its way, so that all tasks of those that are looked at are read.
        given = self._flow.settings.model_dump(exclude_unset=True) | {"stall_seconds": 0.001, "zombie_seconds": 1}
        detector = Detector(Settings.load({}, **given))
        for _ in range(2):
            await detector.detect_once(self._flow, [], jobs=max(1, self._batch // 10))
        await prune_operate(self._flow, rows=self._batch)
        await self._flow.fetch(FORGET)

    async def _never(self) -> float:
        raise NotImplementedError
