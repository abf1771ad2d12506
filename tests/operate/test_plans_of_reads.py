"""What people ask of one task, of failures and of arguments reads a bounded number of rows, by indexes."""

from __future__ import annotations

import pytest

from aaiclick_queue.explaining import explain_task
from aaiclick_queue.failing import get_failure, list_failures
from aaiclick_queue.postgres import Database
from aaiclick_queue.settings import Settings
from aaiclick_queue.status import Status
from aaiclick_queue.views import TaskFilter, list_tasks
from tests.plans.explain import Explained, ExplainingDatabase

MANY = 30_000
FILL = (
    f"""INSERT INTO aaiclick_queue.tasks (id, queue, entrypoint, kwargs)
        SELECT n, 'default', 'shop.mail.send', jsonb_build_object('n', n) FROM generate_series(1, {2 * MANY}) AS n""",
    f"""INSERT INTO aaiclick_queue.ready (queue, rank, order_key, task_id)
        SELECT 'default', 0, n, n FROM generate_series(1, {MANY}) AS n""",
    f"""UPDATE aaiclick_queue.tasks SET status = 'FAILED', finished_at = now(),
            error = jsonb_build_object('type', 'Error' || id % 20) WHERE id > {MANY}""",
    f"""INSERT INTO aaiclick_queue.slots (limit_id, key, task_id)
        SELECT n % 100 + 1000, '', n FROM generate_series(1, {MANY}) AS n""",
    "ANALYZE",
)
PLACES = {"leases", "delayed", "held", "waiting", "ready"}
LARGE = {"tasks", "ready", "failures", "slots"}


@pytest.mark.breaks_invariants
@pytest.mark.parametrize("flow", [True, False])
async def test_reads_for_people_are_bounded(settings: Settings, flow: bool) -> None:
    async with Database(settings, size=1) as db:
        for statement in FILL:
            await db.fetch(statement)
    async with ExplainingDatabase(settings, flow=flow) as db:
        for task_id in (MANY, MANY + 1):
            await explain_task(db, task_id)
        check(db.explained, "explain", 10_001)
        group = (await list_failures(db)).groups[0]
        check(db.explained, "list_failures", 2 * MANY)
        await get_failure(db, group.fingerprint)
        await list_tasks(db, TaskFilter(fingerprint=group.fingerprint))
        check(db.explained, "one group", MANY // 10)
        await list_tasks(db, TaskFilter(search="n=17"))
        [shown] = [
            one for one in db.explained if "unnest(" in one.sql and "looked" not in one.sql and "AS p" in one.sql
        ]
        assert max(node.read for node in shown.plan.walk()) <= 1, shown.plan
        check(db.explained, "search", 5 * MANY)
        for status in Status:
            await list_tasks(db, TaskFilter(status=status, queue="default"), limit=10)
            check_places(db.explained, 10, but={"QUEUED": "ready", "PENDING": "held"}.get(status))


def check_places(explained: list[Explained], most: int, *, but: str | None) -> None:
    """A task's places are looked up once it is on the page, not for all that were passed over."""
    for one in explained:
        for node in one.plan.walk():
            if node.relation_name in PLACES - {but}:
                assert node.actual_loops <= most, f"{node.relation_name}\n{one.plan}\n{one.sql}"
    explained.clear()


def check(explained: list[Explained], what: str, most: int) -> None:
    """Nothing of these was read as a whole, or more of it than is said."""
    for one in explained:
        for node in one.plan.walk():
            assert node.read <= most, f"{what}: {node.read:g} rows\n{one.plan}\n{one.sql}"
            if what != "search":
                assert not (node.node_type == "Seq Scan" and node.relation_name in LARGE), f"{what}\n{one.plan}"
    explained.clear()
