"""The statements of keda.yaml on the real tables: what they count, what they may read, and how much."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from urllib.parse import urlsplit

import msgspec
import psycopg
import pytest

from aaiclick_queue.fleet.file import read
from aaiclick_queue.flow.pause import pause_queue
from aaiclick_queue.flow.reaper import ensure_partitions
from aaiclick_queue.postgres import Database
from aaiclick_queue.queue_views import list_queues
from tests.plans.explain import Node
from tests.project.deployables import FLEET, PROJECT
from tests.project.test_kubernetes import scaled
from tests.project.test_readme import fences
from tests.tools import age, claim, put, register_worker

QUERIES = {trigger.name: trigger.metadata.query for trigger in scaled().triggers}
TARGETS = {trigger.name: int(trigger.metadata.target_query_value) for trigger in scaled().triggers}
DEPTHS = [name for name in QUERIES if name.endswith("-depth")]
MANY = 1_000_000
CAP, RUNS_CAP = 10_000, 100_000
PAGE = PROJECT / "docs" / "deploying.md"


async def value(db: Database, name: str) -> int:
    """What the trigger gets: one row of one whole number."""
    [row] = await db.fetch(QUERIES[name])
    [found] = row.values()
    assert isinstance(found, int)
    return found


def queues(name: str) -> list[str]:
    [given] = re.findall(r"ARRAY\[([^]]*)\]", QUERIES[name])
    return [text.strip(" '") for text in given.split(",")]


def test_the_triggers_look_at_the_queues_of_the_fleet() -> None:
    groups = read(FLEET, {}).groups
    assert {name.rsplit("-", 1)[0] for name in QUERIES} == set(groups)
    for name in QUERIES:
        assert queues(name) == list(groups[name.rsplit("-", 1)[0]].queues or {})


@pytest.mark.parametrize("name", DEPTHS)
def test_a_pod_more_is_asked_for_when_its_slots_are_full_and_up_to_the_most_that_may_be(name: str) -> None:
    group = read(FLEET, {}).groups[name.removesuffix("-depth")]
    assert TARGETS[name] == max(group.slots or 0, group.threads or 0) * group.count
    assert TARGETS[name] * scaled().max_replica_count <= CAP
    assert f"LIMIT {CAP})" in QUERIES[name]
    assert f"LIMIT {RUNS_CAP})" in QUERIES[name]


async def test_an_empty_database_asks_for_nothing(db: Database) -> None:
    assert {name: await value(db, name) for name in QUERIES} == dict.fromkeys(QUERIES, 0)


async def test_depth_is_what_waits_in_line_and_what_runs(db: Database) -> None:
    await put(db, queue="mail", count=5)
    await put(db, queue="default", count=3)
    await put(db, queue="reports", count=2)
    await put(db, queue="other", count=40)
    await claim(db, await register_worker(db), 4, queues=["mail"])
    await claim(db, await register_worker(db), 7, queues=["other"])
    assert {name: await value(db, name) for name in DEPTHS} == {"mail-depth": 8, "reports-depth": 2}


async def test_age_is_that_of_the_oldest_whatever_its_priority(db: Database) -> None:
    await put(db, queue="mail", priority=-5)
    await age(db, "ready", "ready_at", 600)
    await put(db, queue="mail", count=200, priority=5)
    await put(db, queue="default")
    await age(db, "ready", "ready_at", 60)
    await put(db, queue="reports")
    assert 660 <= await value(db, "mail-age") < 960
    assert await value(db, "reports-age") < 300
    [mail] = await list_queues(db, limit=1, name="mail")
    assert mail.oldest_seconds is not None
    assert abs(await value(db, "mail-age") - mail.oldest_seconds) < 60


async def test_a_paused_queue_asks_for_pods_only_for_what_runs(db: Database) -> None:
    await ensure_partitions(db)
    await put(db, queue="mail", count=5)
    await put(db, queue="default", count=3)
    await claim(db, await register_worker(db), 2, queues=["mail"])
    await age(db, "ready", "ready_at", 60)
    await pause_queue(db, "mail", by="a test", reason=None)
    assert await value(db, "mail-depth") == 3 + 2
    await pause_queue(db, "default", by="a test", reason=None)
    assert await value(db, "mail-depth") == 2
    assert await value(db, "mail-age") == 0


async def test_tasks_that_wait_for_their_time_ask_for_nothing(db: Database) -> None:
    await put(db, queue="mail", count=5)
    await db.fetch(
        """WITH gone AS (DELETE FROM aaiclick_queue.ready RETURNING task_id, order_key, rank, queue)
           INSERT INTO aaiclick_queue.delayed (task_id, not_before, order_key, rank, queue, reason)
           SELECT task_id, now() + interval '1 h', order_key, rank, queue, 'eta' FROM gone"""
    )
    assert {name: await value(db, name) for name in QUERIES} == dict.fromkeys(QUERIES, 0)


@pytest.fixture
def scaler_url(postgres_url: str) -> Iterator[str]:
    """The database, as seen by the login that the page makes."""
    [(_, script)] = fences(PAGE, "sql")
    role = f"scaler_{uuid.uuid4().hex}"
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(script.replace("scaler", role).encode())
        yield urlsplit(postgres_url)._replace(netloc=f"{role}:change-me@{_host(postgres_url)}").geturl()
        admin.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())


def _host(url: str) -> str:
    return urlsplit(url).netloc.rpartition("@")[2]


def test_the_login_that_the_page_makes_may_do_this_and_nothing_else(scaler_url: str) -> None:
    with psycopg.connect(scaler_url, autocommit=True) as scaler:
        for query in QUERIES.values():
            assert scaler.execute(query.encode()).fetchone() == (0,)
        for forbidden in ("SELECT FROM aaiclick_queue.tasks", "DELETE FROM aaiclick_queue.ready"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                scaler.execute(forbidden.encode())


# Others' tasks lie before ours on the disk: a scan that does not follow the index would read them all.
LONG_LINES = f"""
INSERT INTO aaiclick_queue.ready (queue, rank, order_key, task_id)
SELECT CASE WHEN i <= {MANY} / 2 THEN 'other' ELSE 'mail' END, i % 3, i, i FROM generate_series(1, {MANY}) AS i
"""
MANY_RUNS = f"""
INSERT INTO aaiclick_queue.leases (task_id, worker_id, order_key, ready_at, deadline_at, rank, run_epoch, attempt,
                                   lost_count, snoozes, flags, queue)
SELECT i, 1, i, now(), now(), 0, 1, 1, 0, 0, 0, 'mail' FROM generate_series(1, 2 * {RUNS_CAP}) AS i
"""


def explained(connection: psycopg.Connection[tuple[object, ...]], query: str) -> Node:
    row = connection.execute(f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {query}".encode()).fetchone()
    assert row is not None
    [found] = row
    assert isinstance(found, list)
    return msgspec.convert(found[0]["Plan"], Node, strict=False)


def complaints(url: str) -> list[str]:
    """The statements that read more than they may, with their plans."""
    with psycopg.connect(url, autocommit=True) as connection:
        plans = {name: explained(connection, query) for name, query in QUERIES.items()}
    found = []
    for name, plan in plans.items():
        for node in plan.walk():
            most = RUNS_CAP if node.relation_name == "leases" else 2 * CAP
            if node.relation_name is not None and node.read > most:
                found.append(f"{name}: {node.node_type} {node.relation_name}\n{plan}")
    return found


def test_a_line_of_a_million_costs_no_more_than_one_of_ten_thousand(postgres_url: str, scaler_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        for table in ("ready", "leases"):
            admin.execute(f"ALTER TABLE aaiclick_queue.{table} SET (autovacuum_enabled = off)".encode())
        for statement in (LONG_LINES, MANY_RUNS):
            admin.execute(statement.encode())
        assert complaints(scaler_url) == [], "with the statistics of empty tables"
        admin.execute("ANALYZE aaiclick_queue.ready, aaiclick_queue.leases")
        assert complaints(scaler_url) == []
        assert complaints(postgres_url) == [], "as another login"
        assert admin.execute(QUERIES["mail-depth"].encode()).fetchone() == (CAP + RUNS_CAP,)
