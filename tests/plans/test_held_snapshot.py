"""A snapshot that somebody holds open keeps every claimed row in the index: claims must not walk over them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import psycopg
import pytest
import pytest_asyncio

from aaiclick_queue.flow.claim import CLAIM_NEXT_IN_LINE, HEAD, Claimed, Line, Wanted
from aaiclick_queue.flow.complete import complete
from aaiclick_queue.flow.enqueue import NewTask, Spec, enqueue, id_source
from aaiclick_queue.flow.heartbeat import Identity, register
from aaiclick_queue.flow.prune import PRUNE_PAGE, ROWS, Policy, Walk
from aaiclick_queue.flow.reaper import MOVE_DUE, Reaper
from aaiclick_queue.outcome import Ended, Succeeded
from aaiclick_queue.postgres import Database
from aaiclick_queue.schema import Transaction
from aaiclick_queue.settings import Settings
from tests.plans.explain import Explained, ExplainingDatabase

WORKER = 7
CLAIM = 100
CLAIMED_BEFORE = 50_000
MOVED_BEFORE = 30_000
ROWS_A_PAGE = 150
LINE = """
WITH new AS (
    INSERT INTO aaiclick_queue.tasks (id, queue, entrypoint, kwargs)
    SELECT i, 'default', 'shop.mail.send', '{}' FROM generate_series(1, %s) AS i RETURNING id)
INSERT INTO aaiclick_queue.ready (queue, rank, order_key, task_id) SELECT 'default', 0, id, id FROM new
"""
SPEC = Spec("shop.mail.send", "default")
WANTED = Wanted(CLAIM, WORKER, 3600, 30)


class Counting:
    """Passes statements on and counts claims by where they start."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self.from_head = self.from_mark = 0

    async def fetch(self, sql: str, *args: Any) -> Sequence[Any]:
        if sql == CLAIM_NEXT_IN_LINE:
            if args[1] == [HEAD[0]]:
                self.from_head += 1
            else:
                self.from_mark += 1
        return await self._db.fetch(sql, *args)


@pytest_asyncio.fixture
async def line(settings: Settings, db: Database) -> AsyncIterator[Line]:
    """A line of which the first 50,000 tasks were claimed and completed while a snapshot was held, as it still is."""
    await register(db, Identity(WORKER, 1, CLAIM, "here", "1", ("default",)), lease_seconds=86400)
    with psycopg.connect(settings.postgres_url or "", autocommit=True) as admin:
        admin.execute(LINE, [CLAIMED_BEFORE + 10 * CLAIM])
        admin.execute("ANALYZE aaiclick_queue.ready")
    with psycopg.connect(settings.postgres_url or "") as holder:
        holder.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        holder.execute("SELECT count(*) FROM aaiclick_queue.queues")
        line = Line({"default": 1})
        async with Database(settings, size=1, flow=True) as flow:
            counting = Counting(flow)
            for _ in range(CLAIMED_BEFORE // 500):
                claimed = await line.claim(counting, Wanted(500, WORKER, 3600, 30))
                assert len(claimed) == 500
                await _complete(flow, claimed)
            assert counting.from_head <= counting.from_mark / 4
        yield line


async def test_a_claim_from_the_mark_touches_what_it_takes_and_one_from_the_head_all_that_is_dead(
    settings: Settings, line: Line
) -> None:
    async with ExplainingDatabase(settings, flow=True) as flow:
        while not flow.explained or flow.explained[-1].args[1] == [HEAD[0]]:
            flow.explained.clear()
            assert len(await line.claim(flow, WANTED)) == CLAIM
        [from_mark] = flow.explained
        assert _walked(from_mark, "ready") < CLAIM

        flow.explained.clear()
        assert len(await Line({"default": 1}).claim(flow, WANTED)) == CLAIM
        [from_head] = flow.explained
        assert _walked(from_head, "ready") > CLAIMED_BEFORE / ROWS_A_PAGE


async def test_short_claims_do_not_scan_from_the_head_each_time(settings: Settings, db: Database, line: Line) -> None:
    """At a normal load every claim is short; a look from the head at each would cost more than all else."""
    take = (await id_source(db)).take
    async with Database(settings, size=1, flow=True) as flow:
        counting = Counting(flow)
        while len(claimed := await line.claim(counting, WANTED)) == CLAIM:
            await _complete(flow, claimed)
        counting.from_head = counting.from_mark = 0
        rounds = 200
        for _ in range(rounds):
            written = await enqueue(db, SPEC, [NewTask("{}") for _ in range(3)], take)
            claimed = await line.claim(counting, WANTED)
            assert [one.task_id for one in claimed] == written.ids
            await _complete(flow, claimed)
        assert counting.from_mark >= rounds - counting.from_head
        assert counting.from_head < rounds / 4


@pytest.mark.usefixtures("line")
async def test_due_tasks_are_found_from_the_mark_without_walking_over_those_moved_before(
    settings: Settings, db: Database
) -> None:
    take = (await id_source(db)).take
    async with ExplainingDatabase(settings, flow=True) as flow:
        reaper = Reaper(flow)
        for _ in range(MOVED_BEFORE // 1000):
            await enqueue(db, SPEC, [NewTask("{}", countdown=0.0001) for _ in range(1000)], take)
            while (await reaper.due_once(1000))[0]:
                pass
        walked = [_walked(one, "delayed") for one in flow.explained if one.sql == MOVE_DUE]
        assert max(walked) > MOVED_BEFORE / ROWS_A_PAGE / 2, "the snapshot was not held"
        assert min(walked[-10:]) < 60, walked


def _walked(one: Explained, table: str) -> int:
    """Pages that the scan of the table's index has touched, dead rows included."""
    return max(n.buffers for n in one.plan.walk() if n.node_type.startswith("Index") and n.relation_name == table)


async def _complete(tx: Transaction, claimed: Sequence[Claimed]) -> None:
    runs = [Ended(one.task_id, one.run_epoch, Succeeded(None), 0.0, 0.0) for one in claimed]
    assert len(await complete(tx, runs, worker_id=WORKER)) == len(claimed)


@pytest.mark.usefixtures("line")
async def test_pruning_goes_on_from_where_it_was_over_all_that_it_has_deleted(settings: Settings, db: Database) -> None:
    """Dead rows stay in the index as long as the snapshot is held: a page must not begin at the first of them."""
    policy = Policy(0.0, 0.0)
    async with ExplainingDatabase(settings, flow=True) as flow:
        walk = Walk(0.0)
        while walk.over_at is None:
            await walk.step(flow, policy)
        touched = [one.plan.buffers for one in flow.explained if one.sql == PRUNE_PAGE]
        assert len(touched) >= CLAIMED_BEFORE // ROWS
        assert max(touched[-11:-1]) < 2 * min(touched[:10]), touched
        again = Walk(0.0)
        await again.step(flow, policy)
        assert flow.explained[-1].plan.buffers > CLAIMED_BEFORE / ROWS_A_PAGE, "the snapshot was not held"
