"""Queues without limits do the same, statement by statement, whether or not there are limits elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aaiclick_queue.flow.claim import CLAIM_NEXT_IN_LINE
from aaiclick_queue.flow.complete import COMPLETE_SUCCEEDED, complete
from aaiclick_queue.flow.enqueue import ENQUEUE
from aaiclick_queue.flow.limits import NewLimit, set_limit
from aaiclick_queue.flow.operate import work_once
from aaiclick_queue.outcome import Ended, Succeeded
from aaiclick_queue.postgres import Database
from tests.tools import claim, put, register_worker


class Recorder:
    """Runs statements and keeps their texts."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self.ran: list[str] = []

    async def fetch(self, sql: str, *args: Any) -> Sequence[Any]:
        self.ran.append(sql)
        return await self._db.fetch(sql, *args)


async def _one_task(db: Database, worker_id: int) -> list[str]:
    recorder = Recorder(db)
    await put(recorder, queue="free")
    [run] = await claim(recorder, worker_id, 1, queues=["free"])
    ended = Ended(run.task_id, run.run_epoch, Succeeded(None), 0.0, 0.0, flags=run.flags)
    assert await complete(recorder, [ended], worker_id=worker_id) == {run.task_id}
    return recorder.ran


async def test_the_statements_are_the_same_beside_limits(db: Database) -> None:
    worker_id = await register_worker(db)
    before = await _one_task(db, worker_id)
    assert [sql for sql in before if sql in (ENQUEUE, CLAIM_NEXT_IN_LINE, COMPLETE_SUCCEEDED)] == [
        ENQUEUE,
        CLAIM_NEXT_IN_LINE,
        COMPLETE_SUCCEEDED,
    ]
    for name in ("narrow", "narrower"):
        await set_limit(db, NewLimit("queue", name, "running", 1), by="a test")
    while await work_once(db):
        pass
    await put(db, count=10, queue="narrow")
    assert await _one_task(db, worker_id) == before
