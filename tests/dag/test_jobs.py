"""Jobs written: rows, keys, lost answers, callers' transactions; and what a handle says of their ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import msgspec
import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from aaiclick_queue import Client, Middleware, Settings, connect, task
from aaiclick_queue.by_hand import add_task_to_job, apply, create_job, create_task
from aaiclick_queue.errors import (
    ArgumentsDoNotFit,
    BadJob,
    DuplicateTask,
    JobCancelled,
    JobEnded,
    JobFailed,
    TaskSkipped,
    UnknownJob,
    UpstreamFailed,
    WrongContext,
)
from aaiclick_queue.flow.reaper import SWEEP_KEYS
from aaiclick_queue.job_handles import JobHandle, job_handle
from aaiclick_queue.jobs import job
from aaiclick_queue.middleware import Enqueuing, Proceed
from aaiclick_queue.nodes import Group
from aaiclick_queue.postgres import Database, plain_dsn
from aaiclick_queue.routing import branch, when
from aaiclick_queue.starting import run_job
from aaiclick_queue.status import JobStatus
from tests.dag.written import tasks_of
from tests.tools import PATIENCE, Proxy, changed, count, running_worker


@task
def one(x: int) -> int:
    return x + 1


@task
def both(a: Any, b: Any = None) -> Any:
    return [a, b]


@task
def breaks(x: int) -> int:
    raise ValueError(f"broken {x}")


@job
def diamond(x: int) -> dict[str, Any]:
    a = one(x)
    return {"sum": both(one(a), one(a))}


@job("named", queue="other", priority=3, timeout=60, max_parallel=2, fail_fast=True, metadata={"team": "a"})
async def with_options(x: int = 1) -> None:
    await asyncio.sleep(0)
    one(x)
    both.options(queue="mine", priority=9)(x)


async def job_row(db: Database, job_id: int) -> dict[str, Any]:
    [row] = await db.fetch("SELECT * FROM aaiclick_queue.jobs WHERE id = $1", job_id)
    return dict(row)


async def test_a_job_is_written_with_its_nodes_arrows_and_what_it_returns(client: Client, db: Database) -> None:
    run = await diamond.enqueue(3, client=client)
    written = await job_row(db, run.id)
    tasks = {row["name"]: row for row in await tasks_of(db, run.id)}
    assert set(tasks) == {"one", "one#2", "one#3", "both"}
    assert (written["name"], written["entrypoint"]) == ("diamond", diamond.entrypoint)
    assert written["submitted_by"]
    assert msgspec.json.decode(written["kwargs"]) == {"x": 3}
    assert msgspec.json.decode(written["returns"]) == {"sum": {"$node": tasks["both"]["id"]}}
    assert msgspec.json.decode(tasks["both"]["kwargs"]) == {
        "a": {"$node": tasks["one#2"]["id"]},
        "b": {"$node": tasks["one#3"]["id"]},
    }
    assert await run.status() is JobStatus.PENDING
    deadline = written["deadline_at"] - written["created_at"]
    assert deadline.total_seconds() == client.settings.job_timeout_seconds


async def test_the_options_of_a_job_are_on_its_row_and_on_nodes_that_say_nothing(client: Client, db: Database) -> None:
    again = with_options.options(correlation_id="c", on_failure="shop.tell", priority=4)
    run = await again.enqueue(client=client)
    written = await job_row(db, run.id)
    assert (written["name"], written["priority"], written["max_parallel"]) == ("named", 4, 2)
    assert (written["fail_fast"], written["correlation_id"]) == (True, "c")
    assert msgspec.json.decode(written["metadata"]) == {"team": "a"}
    assert msgspec.json.decode(written["hooks"]) == {"failure": {"entrypoint": "shop.tell"}}
    assert (written["deadline_at"] - written["created_at"]).total_seconds() == 60
    rows = {row["name"]: (row["queue"], row["priority"], row["correlation_id"]) for row in await tasks_of(db, run.id)}
    assert rows == {"one": ("other", 4, "c"), "both": ("mine", 9, "c")}


def test_options_that_cannot_work_are_refused() -> None:
    with pytest.raises(BadJob, match="did you mean 'max_parallel'"):
        job(max_paralel=3)
    with pytest.raises(BadJob, match="can raise or skip"):
        diamond.options(dedupe_key="k", dedupe="replace")
    with pytest.raises(BadJob, match=r"give them to .options"):
        job(dedupe_key="k")
    with pytest.raises(BadJob, match="give one name"):
        job("a", name="b")
    anything: Any = 3
    with pytest.raises(BadJob, match="takes a function"):
        job()(anything)


async def test_arguments_of_a_job_are_checked_and_nothing_is_written(client: Client, db: Database) -> None:
    with pytest.raises(ArgumentsDoNotFit, match="parameter 'x'"):
        await diamond.enqueue("three", client=client)

    @job
    def cyclic() -> None:
        a, b = one(1), one(2)
        _ = a >> b >> a

    with pytest.raises(BadJob, match="one#2 → one → one#2"):
        await cyclic.enqueue(client=client)

    @job
    def returns_nonsense() -> object:
        return object()

    with pytest.raises(BadJob, match="cannot be stored"):
        await returns_nonsense.enqueue(client=client)
    assert await count(db, "jobs") == await count(db, "tasks") == 0


async def test_a_job_in_the_body_of_another_is_a_group_of_it(client: Client, db: Database) -> None:
    @job(priority=8)
    def plain() -> Any:
        return both.options(name="plain")(1)

    @job(queue="outer")
    async def outer(x: int) -> Any:
        first = diamond(x)
        await with_options(5)
        plain()
        return [first, diamond(one(x))]

    run = await outer.enqueue(1, client=client)
    groups = {row["id"]: row for row in await db.fetch("SELECT * FROM aaiclick_queue.groups")}
    rows = await tasks_of(db, run.id)
    names = {row["name"]: row["name"] for row in groups.values()}
    assert sorted(names) == ["diamond", "diamond#2", "named", "plain"]
    assert [(row["queue"], row["priority"]) for row in rows if row["name"] == "plain"] == [("outer", 8)]
    where = [(row["name"], groups[row["group_id"]]["name"], row["queue"]) for row in rows if row["group_id"]]
    assert ("one#4", "named", "other") in where
    assert ("one", "diamond", "outer") in where
    with pytest.raises(WrongContext, match=r"await diamond.enqueue"):
        diamond(1)


# Keys.


async def test_a_key_is_held_by_one_open_job_of_its_name(client: Client, db: Database) -> None:
    keyed = diamond.options(dedupe_key="k", client=client)
    run = await keyed.enqueue(1)
    with pytest.raises(DuplicateTask, match=f"a job with dedupe_key 'k' is already there .id {run.id}") as held:
        await keyed.enqueue(2)
    assert held.value.task_id == run.id
    assert (await keyed.options(dedupe="skip").enqueue(2)).id == run.id
    other = await with_options.options(dedupe_key="k", client=client).enqueue()
    assert other.id != run.id
    await db.fetch(SWEEP_KEYS, 100, "", "")
    assert await count(db, "dedupe") == 2, "the keys of open jobs stay"
    await db.fetch("UPDATE aaiclick_queue.jobs SET status = 'CANCELLED', finished_at = now() WHERE id = $1", run.id)
    again = await keyed.enqueue(3)
    assert again.id != run.id
    await db.fetch("UPDATE aaiclick_queue.jobs SET status = 'CANCELLED', finished_at = now()")
    await db.fetch(SWEEP_KEYS, 100, "", "")
    assert await count(db, "dedupe") == 0


async def test_of_many_that_come_at_once_with_one_key_a_single_job_is_written(settings: Settings, db: Database) -> None:
    async with connect(settings=settings) as first, connect(settings=settings) as second:
        keyed = diamond.options(dedupe_key="k", dedupe="skip")
        runs = await asyncio.gather(*(keyed.enqueue(n, client=(first, second)[n % 2]) for n in range(12)))
        assert len({run.id for run in runs}) == await count(db, "jobs") == 1
        raising = diamond.options(dedupe_key="other")
        tries = [raising.enqueue(n, client=(first, second)[n % 2]) for n in range(8)]
        ended = await asyncio.gather(*tries, return_exceptions=True)
    assert sum(isinstance(one, JobHandle) for one in ended) == 1
    assert sum(isinstance(one, DuplicateTask) for one in ended) == 7


# Postgres away, and callers' transactions.


@pytest.fixture
async def wired(settings: Settings) -> AsyncIterator[tuple[Proxy, Client]]:
    """A client whose wire can be broken."""
    assert settings.postgres_url
    async with Proxy(settings.postgres_url) as proxy:
        given = changed(settings, postgres_url=proxy.url, enqueue_timeout_seconds=5)
        async with connect(settings=given) as client:
            await one.enqueue(0, client=client)
            yield proxy, client


@pytest.mark.parametrize("carried_out", [True, False])
@pytest.mark.parametrize("key", [None, "k"])
async def test_a_job_whose_wire_broke_at_the_commit_is_written_once(
    wired: tuple[Proxy, Client], db: Database, carried_out: bool, key: str | None
) -> None:
    proxy, client = wired
    proxy.break_at(b"COMMIT;", carried_out=carried_out)
    run = await diamond.options(dedupe_key=key).enqueue(1, client=client)
    assert await count(db, "jobs") == 1
    assert len(await tasks_of(db, run.id)) == 4
    assert await count(db, "gates") == len({row["id"] for row in await db.fetch("SELECT id FROM aaiclick_queue.gates")})


@pytest.mark.parametrize("carried_out", [True, False])
async def test_what_is_added_over_a_wire_that_broke_is_written_once(
    wired: tuple[Proxy, Client], db: Database, carried_out: bool
) -> None:
    proxy, client = wired
    run = await diamond.enqueue(1, client=client)
    proxy.break_at(b"COMMIT;", carried_out=carried_out)
    added = await add_task_to_job(run.id, one, {"x": 5}, client=client)
    assert len(await tasks_of(db, run.id)) == 5
    gate = await db.fetchval("SELECT remaining FROM aaiclick_queue.gates WHERE id = $1", run.id)
    assert gate == 5
    assert added.id in {row["id"] for row in await tasks_of(db, run.id)}


async def test_a_job_in_the_callers_transaction_commits_and_rolls_back_with_it(
    client: Client, db: Database, settings: Settings
) -> None:
    dsn = plain_dsn(settings.postgres_url or "")
    engine = create_async_engine(dsn.replace("postgresql://", "postgresql+asyncpg://"))
    connection = await asyncpg.connect(dsn)
    try:
        async with AsyncSession(engine) as session:
            await diamond.enqueue(1, client=client, connection=session)
            await session.rollback()
            run = await diamond.enqueue(2, client=client, connection=session)
            with pytest.raises(WrongContext, match="which is not committed"):
                await run.result(timeout=5)
            await session.commit()
        transaction = connection.transaction()
        await transaction.start()
        other = await diamond.options(connection=connection).enqueue(3, client=client)
        await transaction.commit()
    finally:
        await connection.close()
        await engine.dispose()
    found = [row["id"] for row in await db.fetch("SELECT id FROM aaiclick_queue.jobs ORDER BY id")]
    assert found == [run.id, other.id]
    assert len(await tasks_of(db, run.id)) == 4


@pytest.mark.usefixtures("as_default")
def test_synchronous_code_enqueues_jobs_by_itself_and_in_its_own_transaction(settings: Settings) -> None:
    dsn = plain_dsn(settings.postgres_url or "")
    run = diamond.delay(1)
    assert not run.ready()
    named = with_options.apply_async((7,), priority=9)
    engine = sqlalchemy.create_engine(dsn.replace("postgresql://", "postgresql+psycopg://"))
    with Session(engine) as session:
        mine = diamond.options(connection=session).delay(2)
        session.commit()
    engine.dispose()
    with psycopg.connect(dsn) as connection:
        other = diamond.options(connection=connection).delay(3)
    with psycopg.connect(dsn) as connection:
        rows = connection.execute("SELECT id, priority FROM aaiclick_queue.jobs ORDER BY id").fetchall()
    assert sorted(rows) == sorted([(run.id, 0), (named.id, 9), (mine.id, 0), (other.id, 0)])


async def test_a_job_of_nothing_ends_at_once(client: Client, settings: Settings) -> None:
    @job
    def nothing() -> str:
        return "done"

    async with running_worker(settings):
        assert await (await nothing.enqueue(client=client)).result(PATIENCE) == "done"


# Middleware.


class Router(Middleware):
    """Sends one task elsewhere, and signs all of them."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []
        self.ids: list[int] = []

    async def enqueue(self, call: Enqueuing, proceed: Proceed[list[int]]) -> list[int]:
        await asyncio.sleep(0)
        self.seen.append((call.entrypoint.rpartition(".")[2], call.count))
        call.headers["signed"] = "yes"
        if call.entrypoint == both.entrypoint:
            call.change(queue="elsewhere")
        ids = await proceed()
        self.ids += ids
        return ids


class Refuses(Middleware):
    """Lets no `both` through."""

    async def enqueue(self, call: Enqueuing, proceed: Proceed[list[int]]) -> list[int]:
        if call.entrypoint == both.entrypoint:
            raise PermissionError("no")
        return await proceed()


async def test_middleware_sees_a_job_once_for_each_kind_of_task(settings: Settings, db: Database) -> None:
    router = Router()
    async with connect(settings=settings, middleware=[router]) as client:
        run = await diamond.enqueue(1, client=client)
    rows = await tasks_of(db, run.id)
    assert router.seen == [("one", 3), ("both", 1)]
    assert set(router.ids) == {row["id"] for row in rows}
    assert {(row["name"], row["queue"]) for row in rows if row["queue"] != "default"} == {("both", "elsewhere")}
    assert all(msgspec.json.decode(row["metadata"]) == {"$headers": {"signed": "yes"}} for row in rows)


async def test_middleware_that_refuses_one_kind_refuses_the_job(settings: Settings, db: Database) -> None:
    router = Router()
    async with connect(settings=settings, middleware=[router, Refuses()]) as client:
        with pytest.raises(PermissionError):
            await diamond.enqueue(1, client=client)
    assert (await count(db, "jobs"), router.ids) == (0, [])


async def test_a_job_of_very_many_kinds_goes_through_middleware(settings: Settings, db: Database) -> None:
    @job
    def wide() -> None:
        for x in range(700):
            one.options(timeout=x + 1)(x)

    router = Router()
    async with connect(settings=settings, middleware=[router]) as client:
        await wide.enqueue(client=client)
    assert len(router.seen) == len(set(router.ids)) == await count(db, "tasks") == 700


# By name, and by hand.


async def test_run_job_writes_the_job_and_one_entry_task(client: Client, db: Database) -> None:
    run = await run_job("named", {"x": 5}, client=client, priority=8)
    [entry] = await tasks_of(db, run.id)
    written = await job_row(db, run.id)
    assert (written["name"], written["entrypoint"], written["priority"]) == ("named", with_options.entrypoint, 8)
    assert (entry["entrypoint"], entry["queue"], msgspec.json.decode(entry["kwargs"])) == (
        with_options.entrypoint, "other", {"x": 5},
    )  # fmt: skip
    assert msgspec.json.decode(written["returns"]) == {"$node": entry["id"]}
    by_entrypoint = await run_job(diamond.entrypoint, {"x": 1}, client=client)
    assert (await job_row(db, by_entrypoint.id))["name"] == "diamond"
    elsewhere = await run_job("shop.jobs.nightly", {"day": 3}, client=client, queue="night")
    [entry] = await tasks_of(db, elsewhere.id)
    assert (entry["entrypoint"], entry["queue"], entry["max_attempts"]) == ("shop.jobs.nightly", "night", None)
    with pytest.raises(ArgumentsDoNotFit, match="parameter 'x'"):
        await run_job("named", {"x": "five"}, client=client)
    with pytest.raises(UnknownJob, match="no job 'nightly' is registered, or known here"):
        await run_job("nightly", client=client)


async def test_two_jobs_of_one_name_are_told_apart_by_their_entrypoints(client: Client) -> None:
    @job("same")
    def first() -> None: ...
    @job("same")
    def second() -> None: ...

    with pytest.raises(BadJob, match="2 jobs are called 'same'"):
        await run_job("same", client=client)
    assert await run_job(first.entrypoint, client=client)
    assert second.name == "same"


async def test_a_job_is_made_of_tasks_and_entrypoints_by_hand(client: Client, db: Database) -> None:
    a, b = create_task(one, {"x": 1}), create_task("shop.second", {"y": 2}, queue="far")
    _ = a >> b
    run = await create_job("by hand", [a, b, {"entrypoint": "shop.third", "kwargs": {"z": 3}}], client=client)
    rows = await tasks_of(db, run.id)
    assert [(row["name"], row["queue"]) for row in rows] == [
        ("one", "default"),
        ("second", "far"),
        ("third", "default"),
    ]
    assert {a.id, b.id} == {row["id"] for row in rows[:2]}
    single = await create_job("single", "shop.first", client=client)
    assert (await job_row(db, single.id))["returns"] is not None
    nonsense: Any
    for nonsense in (3, [], {"entry": "shop.first"}, {"entrypoint": "a.b", "more": 1}):
        with pytest.raises(BadJob):
            await create_job("bad", nonsense, client=client)
    c = create_task(one, {"x": 1})
    _ = create_task(one, {"x": 2}) >> c
    with pytest.raises(BadJob, match="which is neither given here nor written"):
        await create_job("half", c, client=client)


async def test_nodes_and_groups_are_added_to_a_job_that_is_there(client: Client, db: Database) -> None:
    run = await create_job("grows", create_task("shop.first"), client=client)
    [first] = await tasks_of(db, run.id)
    a, b = create_task(one, {"x": 1}), create_task("shop.inside")
    group = Group("g", [b])
    _ = a >> group
    given = [a, group]
    assert await apply(given, run.id, client=client) is given
    assert a.id is not None
    assert group.id is not None
    c = both.node(a, b=[a])
    await apply(c, run.id, client=client)
    last = await add_task_to_job(run.id, "shop.last", depends_on=[first["id"], group.id, c], client=client)
    within = await add_task_to_job(run.id, one, {"x": 9}, group=group, client=client)
    rows = {row["id"]: row for row in await tasks_of(db, run.id)}
    assert rows[b.id or 0]["group_id"] == rows[within.id]["group_id"] == group.id
    assert msgspec.json.decode(rows[c.id or 0]["kwargs"]) == {"a": {"$node": a.id}, "b": [{"$node": a.id}]}
    lines = await db.fetch("SELECT previous_id, previous_type, next_id FROM aaiclick_queue.dependencies")
    found = {(row["previous_id"], row["previous_type"], row["next_id"]) for row in lines}
    assert found == {
        (a.id, "task", group.id),
        (a.id, "task", c.id),
        (first["id"], "task", last.id),
        (group.id, "group", last.id),
        (c.id, "task", last.id),
    }
    assert await db.fetchval("SELECT remaining FROM aaiclick_queue.gates WHERE id = $1", run.id) == len(rows)


async def test_a_node_by_entrypoint_takes_others_as_its_arguments(client: Client, db: Database) -> None:
    first = create_task("shop.first")
    second = create_task("shop.second", {"one": first, "many": [first, 2], "plain": "x"})
    with pytest.raises(BadJob, match="use another key"):
        create_task("shop.second", {"plain": {"$node": 1}})
    run = await create_job("by name", [first, second], client=client)
    [behind] = [row for row in await tasks_of(db, run.id) if row["entrypoint"] == "shop.second"]
    named = {"$node": first.id}
    assert msgspec.json.decode(behind["kwargs"]) == {"one": named, "many": [named, 2], "plain": "x"}
    assert behind["wait_gate"] is not None


async def test_what_cannot_be_added_is_refused(client: Client, db: Database) -> None:
    run = await create_job("ends", create_task("shop.first"), client=client)
    with pytest.raises(UnknownJob):
        await add_task_to_job(12345, one, {"x": 1}, client=client)
    with pytest.raises(UnknownJob, match="no task 777"):
        await add_task_to_job(run.id, one, {"x": 1}, depends_on=[777], client=client)
    with pytest.raises(BadJob, match="give the id of a task"):
        await add_task_to_job(run.id, one, {"x": 1}, depends_on=["777"], client=client)
    with pytest.raises(BadJob, match="is no node"):
        await apply([one], run.id, client=client)
    with pytest.raises(BadJob, match="has its arguments already"):
        await add_task_to_job(run.id, one.node(1), {"x": 1}, client=client)
    await db.fetch("UPDATE aaiclick_queue.jobs SET status = 'COMPLETED' WHERE id = $1", run.id)
    with pytest.raises(JobEnded):
        await add_task_to_job(run.id, one, {"x": 1}, client=client)


# Ends.


async def test_a_jobs_result_is_what_its_body_returned_with_results_in_the_places_of_nodes(
    client: Client, quick: Settings
) -> None:
    async with running_worker(quick):
        run = await diamond.enqueue(3, client=client)
        assert await run.result(PATIENCE) == {"sum": [5, 5]}
        assert await run.status() is JobStatus.COMPLETED
        assert await run.wait() is JobStatus.COMPLETED
        assert await job_handle(run.id, client=client).result(PATIENCE) == {"sum": [5, 5]}


async def test_a_typed_result_is_of_the_type_that_the_body_names(client: Client, quick: Settings) -> None:
    class Answer(msgspec.Struct):
        rows: list[int]

    @job
    def typed() -> Answer:
        return Answer(rows=[one(1), one(2)])

    async with running_worker(quick):
        run = await typed.enqueue(client=client)
        assert await run.result(PATIENCE) == Answer(rows=[2, 3])


async def test_a_job_that_failed_names_the_first_tasks_and_their_errors(client: Client, quick: Settings) -> None:
    @job
    def fails() -> Any:
        broken = breaks.options(max_attempts=1)(7)
        optional = breaks.options(max_attempts=1, critical=False, name="optional")(8)
        after = one.options(name="after")(broken)
        side = when(one.options(name="decides")(0), otherwise=one.options(name="skipped")(1))
        nodes.extend([broken, optional, after, *side])
        return after

    nodes: list[Any] = []
    async with running_worker(quick):
        run = await fails.enqueue(client=client)
        with pytest.raises(JobFailed, match="breaks: ValueError: broken 7") as failed:
            await run.result(PATIENCE)
        assert failed.value.failed == [("breaks", "ValueError: broken 7")]
        _, _, after, skipped = (run.task(node) for node in nodes)
        with pytest.raises(UpstreamFailed):
            await after.result(PATIENCE)
        with pytest.raises(TaskSkipped):
            await skipped.result(PATIENCE)


async def test_a_job_whose_branch_got_no_known_name_says_which_result_that_was(client: Client, quick: Settings) -> None:
    @job
    def strays() -> Any:
        side = one.options(name="side")(1)
        branch(both.options(name="decides")("west"), {"north": side, "south": one(2)})
        branch(one.options(name="knows")(6), {7: one(3)})
        return side

    async with running_worker(quick):
        run = await strays.enqueue(client=client)
        with pytest.raises(JobFailed, match=r'decides: its result \["west", null\] names no side .* north, south'):
            await run.result(PATIENCE)


async def test_a_wait_for_a_job_ends_in_time_and_says_when_there_is_none(client: Client) -> None:
    run = await diamond.enqueue(1, client=client)
    with pytest.raises(TimeoutError, match=r"has not ended within 0.05 s"):
        await run.result(0.05)
    with pytest.raises(TimeoutError):
        await run.result(0)
    with pytest.raises(UnknownJob):
        await JobHandle[Any](777, client=client).status()
    with pytest.raises(BadJob, match="is no job id"):
        job_handle("7")  # type: ignore[arg-type]


async def test_a_cancelled_job_says_so_and_frees_its_key(client: Client, db: Database) -> None:
    keyed = diamond.options(dedupe_key="k", client=client)
    run = await keyed.enqueue(1)
    waiting = asyncio.create_task(run.result(PATIENCE))
    assert await run.cancel()
    with pytest.raises(JobCancelled, match=f"job {run.id} was cancelled"):
        await waiting
    assert not await run.cancel()
    assert await run.status() is JobStatus.CANCELLED
    again = await keyed.enqueue(1)
    assert again.id != run.id
    assert (await again.progress()).total == 4
