"""What the hot statements read, whatever the statistics say: plans are a part of the product."""

from __future__ import annotations

from collections.abc import AsyncIterator

import psycopg
import pytest
import pytest_asyncio

from aaiclick_queue.client import connect
from aaiclick_queue.postgres import FLOW_PLANS, Database
from aaiclick_queue.settings import Settings
from aaiclick_queue.streams import Streams
from tests.plans.backlog import FILL, JOB_TABLES, LEASED, NO_AUTOVACUUM, OPERATE_TABLES, SCHEDULE_TABLES
from tests.plans.explain import Explained, ExplainingDatabase, Node
from tests.plans.rounds import STATEMENTS, Round
from tests.servers import Databases

pytestmark = pytest.mark.timeout(500)  # half a million rows are written first, and every statement is explained
BATCH = 50
STATES = ("empty", "stale", "fresh")
OTHERS_WORKER_ROWS = 200  # workers are few, and the reaper may look at all of them
LOOK_AT_EVERY_LEASE = {"reaper.TAKE_OVERDUE_RUNS", "detect.OVERDUE_LEASES"}
Rounds = dict[str, dict[str, list[Explained]]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rounds(databases: Databases, template: str, redis_url: str) -> AsyncIterator[Rounds]:
    """A round on empty tables; one on full tables with plans and statistics of the empty ones; one after ANALYZE."""
    with databases.new(template) as name, psycopg.connect(databases.url(name), autocommit=True) as admin:
        settings = Settings.load({}, postgres_url=databases.url(name), lease_seconds=1)
        for statement in NO_AUTOVACUUM:
            admin.execute(statement)
        # A reaper marks nobody before the server has been up for a lease period.
        admin.execute("SELECT pg_sleep(extract(epoch FROM pg_postmaster_start_time() + interval '1.1 s' - now()))")
        streams = Streams(redis_url, prefix=name)
        done: Rounds = {}
        async with ExplainingDatabase(settings, flow=True) as flow, ExplainingDatabase(settings) as application:
            for worker_id in range(-6, 0):  # as often as it takes until Postgres settles for a generic plan
                await Round(flow, application, streams, worker_id=worker_id, batch=1).run()
            done["empty"] = await Round(flow, application, streams, worker_id=-7, batch=BATCH).run()
            for statement in FILL:
                admin.execute(statement)
            done["stale"] = await Round(flow, application, streams, worker_id=-8, batch=BATCH).run()
            admin.execute("ANALYZE")
            done["fresh"] = await Round(flow, application, streams, worker_id=-9, batch=BATCH).run()
        await streams.close()
        yield done


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("statement", STATEMENTS)
def test_a_hot_statement_reads_little_more_than_it_takes(rounds: Rounds, statement: str, state: str) -> None:
    explained = rounds[state][statement]
    assert explained, "the round did not come to this statement"
    for one in explained:
        broken = [complaint for node in one.plan.walk() for complaint in _complaints(node, statement)]
        assert not broken, f"{broken}\n{one.plan}"


def _complaints(node: Node, statement: str) -> list[str]:
    over = f"{node.node_type} {node.relation_name or ''}"
    every_lease = LEASED if statement in LOOK_AT_EVERY_LEASE else 0
    most_rows = 20 * BATCH + OTHERS_WORKER_ROWS + 2 * every_lease  # a round holds some 18 batches of runs
    complaints = []
    if node.read > most_rows:
        complaints.append(f"{over} read {node.read:g} rows")
    if node.buffers > 60 * BATCH + every_lease:
        complaints.append(f"{over} touched {node.buffers} buffers")
    never = {"tasks", "ready", "delayed", "held", "slots", *JOB_TABLES, *SCHEDULE_TABLES, *OPERATE_TABLES}
    forbidden = never | (set() if every_lease else {"leases"})
    if node.node_type == "Seq Scan" and node.relation_name in forbidden and node.read:
        complaints.append(over)
    if node.node_type == "Sort" and node.read > BATCH:
        complaints.append(f"{over} of {node.read:g} rows")
    return complaints


async def test_a_clients_connections_plan_as_the_flows_do(settings: Settings) -> None:
    async with connect(settings=settings) as client:
        db = await client.database()
        assert {name: await db.fetchval(f"SHOW {name}") for name in FLOW_PLANS} == FLOW_PLANS


async def test_an_applications_connection_is_planned_as_it_wants(settings: Settings) -> None:
    async with Database(settings, size=1) as db:
        assert await db.fetchval("SHOW enable_seqscan") == "on"
