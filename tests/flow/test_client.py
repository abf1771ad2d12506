"""The client: every way to put a task in line, from every kind of code, also while Postgres is away."""

from __future__ import annotations

import asyncio
import gc
import math
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import asyncpg
import msgspec
import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from aaiclick_queue import (
    Client,
    DuplicateTask,
    Settings,
    Status,
    TaskCancelled,
    TaskFailed,
    connect,
    enqueue,
    handle,
    sync,
    task,
    writing,
)
from aaiclick_queue import client as client_module
from aaiclick_queue.errors import (
    ArgumentsDoNotFit,
    BadTask,
    PayloadTooLarge,
    PostgresUnavailable,
    ResultExpired,
    SchemaMismatch,
    StreamsDown,
    UnknownTask,
    WrongContext,
)
from aaiclick_queue.flow.enqueue import NewTask, Spec, Told
from aaiclick_queue.flow.relay import forget
from aaiclick_queue.gathering import Waiting
from aaiclick_queue.outcome import Error, Failed, Succeeded
from aaiclick_queue.postgres import Database, plain_dsn
from aaiclick_queue.streams import Streams
from tests.servers import Databases
from tests.tools import Proxy, changed, claim, count, end, place_of, register_worker, row, rows, until
from tests.wires.redis_server import free_port


@task(entrypoint="tests.client.greet")
async def greet(name: str, times: int = 1) -> str:
    return f"hello {name}" * times


@task(entrypoint="tests.client.other", queue="other", priority=3)
def other(connection: str = "", client: str = "") -> str:
    return connection + client


def psycopg_url(settings: Settings) -> str:
    assert settings.postgres_url
    return plain_dsn(settings.postgres_url).replace("postgresql://", "postgresql+psycopg://")


async def transactions(db: Database) -> int:
    """By how many transactions the tasks were written."""
    return int(await db.fetchval("SELECT count(DISTINCT xmin::text) FROM aaiclick_queue.tasks"))


# The default client.


async def test_in_async_code_the_default_client_needs_no_setting_up(as_default: None, db: Database) -> None:
    one = await greet.enqueue("ada", times=2)
    written = await row(db, "tasks", one.id)
    assert (written["entrypoint"], written["queue"], written["max_attempts"]) == ("tests.client.greet", "default", 3)
    assert msgspec.json.decode(written["kwargs"]) == {"name": "ada", "times": 2}
    assert await one.status() == Status.QUEUED


def test_each_event_loop_has_its_own_client_that_ends_with_it(as_default: None, settings: Settings) -> None:
    async def main() -> Any:
        await greet.enqueue("ada")
        return asyncio.get_running_loop()

    before = len(client_module._clients)
    loops = [asyncio.run(main()) for _ in range(3)]
    del loops
    gc.collect()
    assert len(client_module._clients) == before
    with psycopg.connect(plain_dsn(settings.postgres_url or "")) as connection:
        [[n]] = connection.execute("SELECT count(*) FROM aaiclick_queue.tasks").fetchall()
        assert n == 3


def test_event_loops_in_several_threads_enqueue_side_by_side(as_default: None, settings: Settings) -> None:
    def run(n: int) -> int:
        async def main() -> int:
            return (await greet.enqueue(str(n))).id

        return asyncio.run(main())

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(run, range(8)))) == 8


def test_synchronous_code_enqueues_by_delay_and_apply_async(as_default: None, settings: Settings) -> None:
    one = greet.delay("ada")
    later = greet.apply_async(("ada",), {"times": 3}, countdown=60, queue="mail", priority=4)
    assert not one.ready()
    with psycopg.connect(plain_dsn(settings.postgres_url or "")) as connection:
        found = connection.execute(
            "SELECT id, queue, priority, kwargs FROM aaiclick_queue.tasks ORDER BY id"
        ).fetchall()
        assert found == [(one.id, "default", 0, {"name": "ada"}), (later.id, "mail", 4, {"name": "ada", "times": 3})]
    assert sync.status(later.id) == Status.SCHEDULED
    assert sync.cancel(one.id, later.id) == {one.id, later.id}
    with pytest.raises(TaskCancelled):
        one.get(timeout=10)


def test_threads_without_an_event_loop_enqueue_side_by_side(as_default: None) -> None:
    with ThreadPoolExecutor(8) as pool:
        ids = [one.id for one in pool.map(lambda n: greet.delay(str(n)), range(40))]
    assert len(set(ids)) == 40


def test_the_synchronous_twins_do_the_same(as_default: None, settings: Settings) -> None:
    one = sync.enqueue("tests.client.greet", {"name": "ada"}, priority=1)
    ids = sync.enqueue_many(greet, [{"name": "a"}, {"name": "b"}])
    assert len({one.id, *ids}) == 3
    with pytest.raises(TimeoutError):
        sync.result(one.id, timeout=0.05)


async def test_a_call_that_waits_is_refused_on_a_running_loop_with_the_way_out(as_default: None) -> None:
    one = await greet.enqueue("ada")
    with pytest.raises(WrongContext, match=r"await handle.result\(\)"):
        one.get(timeout=1)


FORK = """
import asyncio, os, sys
from aaiclick_queue import task

@task(entrypoint="tests.client.forked")
async def forked(who: str) -> None: ...

async def main(who):
    await forked.enqueue(who)

forked.delay("parent before")
asyncio.run(main("parent async"))
child = os.fork()
if child == 0:
    forked.delay("child")
    asyncio.run(main("child async"))
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
forked.delay("parent after")
"""


def test_a_client_works_on_in_both_processes_after_a_fork(as_default: None, settings: Settings) -> None:
    ran = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    with psycopg.connect(plain_dsn(settings.postgres_url or "")) as connection:
        found = connection.execute("SELECT kwargs->>'who' FROM aaiclick_queue.tasks").fetchall()
    assert sorted(who for (who,) in found) == ["child", "child async", "parent after", "parent async", "parent before"]


async def test_two_clients_on_two_databases_in_one_process(
    settings: Settings, databases: Databases, template: str, db: Database
) -> None:
    with databases.new(template) as name:
        second = changed(settings, postgres_url=databases.url(name))
        async with connect(settings=settings) as here, connect(postgres_url=second.postgres_url) as there:
            one, two = await greet.enqueue("here", client=here), await greet.options(client=there).enqueue("there")
            assert await one.status() == await two.status() == Status.QUEUED
        async with Database(second, size=1) as other_db:
            assert [task["kwargs"] for task in await rows(db, "tasks")] == ['{"name": "here"}']
            assert [task["kwargs"] for task in await rows(other_db, "tasks")] == ['{"name": "there"}']


async def test_a_client_that_belongs_to_an_event_loop_is_refused_in_synchronous_code(client: Client) -> None:
    def call() -> None:
        with pytest.raises(WrongContext, match="enqueue"):
            greet.options(client=client).delay("ada")

    async with asyncio.timeout(20):
        await asyncio.to_thread(call)


async def test_a_database_without_our_tables_is_refused_with_the_command_to_run(empty_postgres_url: str) -> None:
    with pytest.raises(SchemaMismatch, match="aaiclick-queue migrate"):
        async with connect(postgres_url=empty_postgres_url):
            pass


# Ways to say what to enqueue.


async def test_a_task_is_enqueued_by_name_without_its_code(client: Client, db: Database) -> None:
    one = await enqueue(
        "shop.mail.send", {"to": "ada"}, queue="mail", priority=2, countdown=60, max_attempts=7, client=client
    )
    written = await row(db, "tasks", one.id)
    assert (written["entrypoint"], written["queue"], written["priority"]) == ("shop.mail.send", "mail", 2)
    assert written["max_attempts"] == 7
    assert await place_of(db, one.id) == ["delayed"]
    plain = await enqueue("shop.mail.send", client=client)
    assert (await row(db, "tasks", plain.id))["max_attempts"] is None  # the code that runs it knows


@pytest.mark.parametrize("entrypoint", ["", None, 7])
async def test_a_name_that_is_none_is_refused(client: Client, entrypoint: Any) -> None:
    with pytest.raises(BadTask, match=r"module\.function"):
        await enqueue(entrypoint, client=client)


async def test_arguments_that_do_not_fit_are_refused_before_anything_is_written(client: Client, db: Database) -> None:
    with pytest.raises(ArgumentsDoNotFit, match="no parameter 'nam': did you mean 'name'"):
        await greet.enqueue(nam="ada", client=client)
    with pytest.raises(ArgumentsDoNotFit, match="'times'"):
        await greet.enqueue("ada", times="often", client=client)
    with pytest.raises(ArgumentsDoNotFit, match="JSON"):
        await enqueue("tests.client.greet", {"name": object()}, client=client)
    with pytest.raises(ArgumentsDoNotFit, match=r"rows\[1\]"):
        await greet.enqueue_many([{"name": "a"}, {"name": 1}, {"name": "c"}], client=client)
    assert await count(db, "tasks") == 0


async def test_arguments_beyond_the_limit_are_refused_and_say_what_to_do(settings: Settings, db: Database) -> None:
    async with connect(settings=changed(settings, payload_max_bytes=100)) as small:
        for call in (
            greet.enqueue("x" * 100, client=small),
            greet.enqueue("€" * 40, client=small),
            greet.enqueue_many([{"name": "a"}, {"name": "x" * 100}], client=small),
            enqueue("tests.client.greet", {"name": "x" * 100}, client=small),
        ):
            with pytest.raises(PayloadTooLarge, match=r"store the data elsewhere.*AAICLICK_QUEUE_PAYLOAD_MAX_BYTES"):
                await call
        await greet.enqueue("x" * 80, client=small)
    assert await count(db, "tasks") == 1


async def test_a_parameter_may_be_called_like_our_own_words(client: Client, db: Database) -> None:
    one = await other.options(client=client).enqueue(connection="a", client="b")
    written = await row(db, "tasks", one.id)
    assert msgspec.json.decode(written["kwargs"]) == {"connection": "a", "client": "b"}
    assert (written["queue"], written["priority"]) == ("other", 3)


async def test_options_of_one_enqueue_leave_the_task_as_it_was(client: Client, db: Database) -> None:
    urgent = other.options(priority=9, name="urgent", timeout=5, retry_delay=2, client=client)
    assert (other.defaults.priority, urgent.defaults.priority, urgent.defaults.queue) == (3, 9, "other")
    written = await row(db, "tasks", (await urgent.enqueue()).id)
    assert (written["priority"], written["name"], written["timeout_seconds"]) == (9, "urgent", 5)
    assert msgspec.json.decode(written["retry"]) == {"delay": 2.0}


@pytest.mark.parametrize("option", ["retry_on", "give_up_on", "autoretry_for"])
async def test_what_only_the_code_can_know_is_refused_for_one_enqueue(client: Client, option: str) -> None:
    given: dict[str, Any] = {option: (KeyError,)}
    with pytest.raises(BadTask, match="give them to @task"):
        greet.options(**given)
    with pytest.raises(BadTask, match="give them to @task"):
        await enqueue("tests.client.greet", client=client, **given)


async def test_many_are_written_in_one_transaction_and_their_ids_come_in_order(client: Client, db: Database) -> None:
    ids = await greet.options(queue="bulk").enqueue_many(({"name": str(n)} for n in range(2500)), client=client)
    assert len(set(ids)) == 2500
    assert await transactions(db) == 1
    names = {task["id"]: msgspec.json.decode(task["kwargs"])["name"] for task in await rows(db, "tasks")}
    assert [names[task_id] for task_id in ids] == [str(n) for n in range(2500)]
    assert sum(told["n"] for told in await rows(db, "outbox")) == 2500
    assert await greet.enqueue_many([], client=client) == []


async def test_a_row_that_does_not_fit_far_behind_takes_all_before_it_along(client: Client, db: Database) -> None:
    calls: list[dict[str, Any]] = [{"name": str(n)} for n in range(3500)]
    for bad in (1000, 1999, 2000, 3499):
        with pytest.raises(ArgumentsDoNotFit, match=rf"rows\[{bad}\]"):
            await greet.enqueue_many([*calls[:bad], {"name": 1}, *calls[bad + 1 :]], client=client)
    assert await count(db, "tasks") == 0
    assert len(await greet.enqueue_many(calls, client=client)) == 3500  # and the connection is as good as before


async def test_a_row_that_does_not_fit_leaves_the_callers_transaction_alone(client: Client, db: Database) -> None:
    calls: list[dict[str, Any]] = [*({"name": "a"} for _ in range(1500)), {"name": 1}]
    async with db.transaction() as mine:
        with pytest.raises(ArgumentsDoNotFit, match=r"rows\[1500\]"):
            await greet.enqueue_many(calls, client=client, connection=mine.raw)
        assert await count(mine, "tasks") == 0


async def test_an_enqueue_of_many_that_is_given_up_writes_nothing(client: Client, db: Database) -> None:
    calls = [{"name": str(n)} for n in range(20_000)]
    writing = asyncio.create_task(greet.enqueue_many(calls, client=client))
    await until(lambda: _is_inserting(db))
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert await count(db, "tasks") == 0
    assert len(await greet.enqueue_many(calls[:10], client=client)) == 10


async def _is_inserting(db: Database) -> bool:
    sql = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE '%INSERT INTO%tasks%'"
    )
    return bool(await db.fetchval(sql + " AND pid <> pg_backend_pid()"))


async def test_many_with_one_key_are_refused(client: Client) -> None:
    with pytest.raises(BadTask, match="one by one"):
        await greet.options(dedupe_key="k").enqueue_many([{"name": "a"}], client=client)


async def test_a_key_that_is_taken_is_told_by_its_task(client: Client) -> None:
    keyed = greet.options(dedupe_key="k", client=client)
    one = await keyed.enqueue("ada")
    with pytest.raises(DuplicateTask) as refused:
        await keyed.enqueue("bob")
    assert refused.value.task_id == one.id
    assert (await keyed.options(dedupe="skip").enqueue("bob")).id == one.id
    with pytest.raises(BadTask, match="debounce' needs countdown"):
        await keyed.options(dedupe="debounce").enqueue("bob")


# Plain SQL.


async def test_plain_sql_enqueues_in_its_own_transaction(db: Database) -> None:
    task_id = await db.fetchval(
        """SELECT aaiclick_queue.enqueue('tests.client.greet', '{"name": "ada"}', queue => 'mail', priority => 5,
                                         max_attempts => 2, correlation_id => 'order-7')"""
    )
    written = await row(db, "tasks", task_id)
    assert (written["queue"], written["priority"], written["max_attempts"]) == ("mail", 5, 2)
    assert (written["correlation_id"], written["kwargs"]) == ("order-7", '{"name": "ada"}')
    [told] = await rows(db, "outbox")
    assert (told["queue"], told["rank"], told["task_ids"]) == ("mail", -5, [task_id])
    [run] = await claim(db, await register_worker(db), queues=["mail"])
    assert run.task_id == task_id
    later = await db.fetchval("SELECT aaiclick_queue.enqueue('tests.client.greet', countdown => interval '1 minute')")
    assert await place_of(db, later) == ["delayed"]


async def test_a_trigger_of_the_application_enqueues_with_its_row_or_not_at_all(db: Database) -> None:
    await db.fetch("CREATE TABLE public.orders (id int)")
    await db.fetch(
        """CREATE FUNCTION public.enqueue_order() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
           PERFORM aaiclick_queue.enqueue('shop.ship', jsonb_build_object('order_id', NEW.id)); RETURN NEW; END $$"""
    )
    await db.fetch(
        "CREATE TRIGGER ship AFTER INSERT ON public.orders FOR EACH ROW EXECUTE FUNCTION public.enqueue_order()"
    )
    await db.fetch("INSERT INTO public.orders SELECT generate_series(1, 100)")
    assert await count(db, "ready") == 100
    with pytest.raises(ZeroDivisionError):
        async with db.transaction() as tx:
            await tx.fetch("INSERT INTO public.orders VALUES (101)")
            raise ZeroDivisionError
    assert await count(db, "tasks") == 100


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("''", "entrypoint is empty"),
        ("NULL", "entrypoint is empty"),
        ("'x', '[]'", "JSON object"),
        ("'x', NULL", "JSON object"),
        ("'x', queue => ''", "1 to 200 characters"),
        ("'x', queue => repeat('q', 201)", "1 to 200 characters"),
        ("'x', priority => 40000", "-32768 to 32767"),
        ("'x', priority => NULL", "-32768 to 32767"),
        ("'x', max_attempts => 0", "1 to 1000"),
    ],
)
async def test_plain_sql_that_cannot_work_is_refused_with_what_would(db: Database, arguments: str, words: str) -> None:
    with pytest.raises(asyncpg.InvalidParameterValueError, match=words):
        await db.fetch(f"SELECT aaiclick_queue.enqueue({arguments})")
    assert await count(db, "tasks") == 0


# Gathering.


async def test_concurrent_enqueues_are_one_statement_and_one_commit(client: Client, db: Database) -> None:
    handles = await asyncio.gather(*(greet.enqueue(str(n), client=client) for n in range(100)))
    assert len({one.id for one in handles}) == 100
    assert await transactions(db) == 1
    [told] = await rows(db, "outbox")
    assert told["n"] == 100
    names = {task["id"]: msgspec.json.decode(task["kwargs"])["name"] for task in await rows(db, "tasks")}
    assert [names[one.id] for one in handles] == [str(n) for n in range(100)]


async def test_enqueues_of_several_kinds_share_a_commit_too(client: Client, db: Database) -> None:
    await asyncio.gather(
        *(greet.enqueue("a", client=client) for _ in range(5)),
        *(other.options(client=client).enqueue() for _ in range(5)),
        *(greet.options(priority=n).enqueue("b", client=client) for n in range(5)),
    )
    assert await count(db, "tasks") == 15
    assert await transactions(db) == 1


@pytest.mark.parametrize("bad", ["a value that Postgres refuses", "a text that is no Unicode"])
async def test_one_that_is_refused_does_not_fail_the_others(client: Client, db: Database, bad: str) -> None:
    refused = (
        client.write(Spec(entrypoint="tests.client.greet", queue="default"), [NewTask('{"name": "\\u0000"}')])
        if bad == "a value that Postgres refuses"
        else client.write(Spec(entrypoint="tests.client.greet", queue="\ud800"), [NewTask("{}")])
    )
    async with asyncio.timeout(20):
        answers = await asyncio.gather(
            *(greet.enqueue(str(n), client=client) for n in range(5)),
            refused,
            *(greet.enqueue(str(n), client=client) for n in range(5, 10)),
            return_exceptions=True,
        )
    assert isinstance(answers[5], Exception)
    assert not isinstance(answers[5], PostgresUnavailable)
    assert [type(answer).__name__ for answer in answers[:5] + answers[6:]] == ["Handle"] * 10
    assert await count(db, "tasks") == 10


async def test_a_caller_that_gave_up_gets_nothing_written_and_fails_nobody(client: Client, db: Database) -> None:
    given_up = asyncio.create_task(greet.enqueue("given up", client=client))
    kept = asyncio.create_task(greet.enqueue("kept", client=client))
    await asyncio.sleep(0)
    given_up.cancel()
    assert (await kept).id
    assert [task["kwargs"] for task in await rows(db, "tasks")] == ['{"name": "kept"}']


async def test_a_caller_that_gives_up_while_a_culprit_is_searched_fails_nobody(client: Client, db: Database) -> None:
    spec = Spec(entrypoint="tests.client.greet", queue="default")
    loop = asyncio.get_running_loop()
    group = [Waiting(spec, NewTask(text), loop.create_future()) for text in ("{}", "no JSON", "{}", "{}")]
    group[0].written.cancel()
    group[1].written.cancel()
    await client._writer._write_one_by_one({spec: group})
    assert [waiting.written.result() > 0 for waiting in group[2:]] == [True, True]


# Postgres away.


async def test_without_postgres_an_enqueue_says_so_and_how_to_mend_it() -> None:
    nobody = Settings.load({}, postgres_url=f"postgresql://ada:secret@127.0.0.1:{free_port()}/db")
    with pytest.raises(PostgresUnavailable, match=r"cannot reach Postgres.*AAICLICK_QUEUE_POSTGRES_URL") as away:
        async with connect(settings=changed(nobody, enqueue_timeout_seconds=0.2)) as client:
            await greet.enqueue("ada", client=client)
    assert "secret" not in str(away.value)


@pytest.fixture
async def wired(settings: Settings) -> AsyncIterator[tuple[Proxy, Client]]:
    """A client whose wire can be broken."""
    assert settings.postgres_url
    async with Proxy(settings.postgres_url) as proxy:
        given = changed(settings, postgres_url=proxy.url, enqueue_timeout_seconds=5)
        async with connect(settings=given) as client:
            await greet.enqueue("warm", client=client)
            yield proxy, client


WAYS = ["one", "many", "keyed"]


def enqueue_by(way: str, client: Client) -> Any:
    match way:
        case "one":
            return greet.enqueue("marked", client=client)
        case "many":
            return greet.enqueue_many([{"name": "marked"}, {"name": "marked"}], client=client)
        case _:
            return greet.options(dedupe_key="k").enqueue("marked", client=client)


async def marked(db: Database) -> int:
    return int(await db.fetchval("SELECT count(*) FROM aaiclick_queue.tasks WHERE kwargs->>'name' = 'marked'"))


@pytest.mark.parametrize("way", WAYS)
async def test_a_frozen_postgres_is_an_error_within_the_time_that_was_set(
    wired: tuple[Proxy, Client], way: str
) -> None:
    proxy, client = wired
    client._writer._settings = changed(client.settings, enqueue_timeout_seconds=0.3)
    proxy.freeze()
    async with asyncio.timeout(4):  # less than what a single statement may take
        with pytest.raises(PostgresUnavailable, match=r"not enqueued within 0\.30?\d* s: .+ gave no answer"):
            await enqueue_by(way, client)
    proxy.thaw()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("carried_out", [True, False])
async def test_an_enqueue_whose_wire_broke_is_written_once(
    wired: tuple[Proxy, Client], db: Database, way: str, carried_out: bool
) -> None:
    proxy, client = wired
    # The one statement commits by itself; the others are broken at their COMMIT.
    proxy.break_at(b"marked" if way == "one" else b"COMMIT;", carried_out=carried_out)
    answer = await enqueue_by(way, client)
    ids = answer if isinstance(answer, list) else [answer.id]
    assert await marked(db) == len(ids) == (2 if way == "many" else 1)
    for task_id in ids:
        assert await place_of(db, task_id) == ["ready"]


async def test_a_keyed_enqueue_whose_task_has_ended_before_it_asks_again_is_written_once(
    wired: tuple[Proxy, Client], db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy, client = wired
    worker_id = await register_worker(db)
    monkeypatch.setattr(writing, "RETRY_SECONDS", 1.0)  # time for the task to end
    proxy.break_at(b"COMMIT;", carried_out=True)
    enqueueing = asyncio.create_task(enqueue_by("keyed", client))
    await until(lambda: marked(db))
    for run in await claim(db, worker_id):
        assert await end(db, run, Succeeded(None))
    one = await enqueueing
    assert await marked(db) == 1
    assert await place_of(db, one.id) == ["COMPLETED"]


# The caller's own transaction.


async def test_a_session_of_the_application_commits_or_drops_its_tasks_with_its_rows(
    settings: Settings, client: Client, db: Database
) -> None:
    assert settings.postgres_url
    engine = create_async_engine(plain_dsn(settings.postgres_url).replace("postgresql://", "postgresql+asyncpg://"))
    try:
        async with AsyncSession(engine) as session:
            one = await greet.enqueue("ada", client=client, connection=session)
            assert await count(db, "tasks") == 0
            with pytest.raises(WrongContext, match="after the commit"):
                await one.result(1)
            await session.commit()
            assert await one.status() == Status.QUEUED
            await greet.enqueue_many([{"name": "a"}] * 3, client=client, connection=session)
            await session.rollback()
        assert await count(db, "tasks") == 1
    finally:
        await engine.dispose()


def test_a_synchronous_session_takes_tasks_along(as_default: None, settings: Settings) -> None:
    engine = sa.create_engine(psycopg_url(settings), poolclass=sa.NullPool)
    with Session(engine) as session:
        one = greet.options(connection=session).delay("ada")
        with pytest.raises(WrongContext, match="after the commit"):
            one.get(timeout=1)
        session.commit()
        assert not one.ready()
        greet.options(connection=session).apply_async(("bob",))
    with engine.connect() as connection:
        found = connection.exec_driver_sql("SELECT kwargs->>'name' FROM aaiclick_queue.tasks").fetchall()
    assert [tuple(name) for name in found] == [("ada",)]


async def test_an_async_connection_in_a_synchronous_call_is_refused_with_the_way_out(
    as_default: None, settings: Settings
) -> None:
    connection = await asyncpg.connect(plain_dsn(settings.postgres_url or ""))
    try:
        with pytest.raises(WrongContext, match=r"await greet\.enqueue"):
            greet.options(connection=connection).delay("ada")
    finally:
        await connection.close()


# Handles.


async def test_a_handle_tells_where_the_task_is_all_the_way(client: Client, db: Database) -> None:
    one = await greet.options(countdown=60).enqueue("ada", client=client)
    seen = [await one.status()]
    await db.fetch("UPDATE aaiclick_queue.delayed SET not_before = now()")
    from aaiclick_queue.flow.reaper import Reaper

    await Reaper(db).due_once()
    seen.append(await one.status())
    [run] = await claim(db, await register_worker(db))
    seen.append(await one.status())
    assert await end(db, run, Succeeded('"hello"'))
    seen.append(await one.status())
    assert seen == [Status.SCHEDULED, Status.QUEUED, Status.RUNNING, Status.COMPLETED]
    assert await one.result(1) == await handle(one.id, client=client).result(1) == "hello"
    assert not await one.cancel()


@pytest.mark.parametrize("given", ["7528001083902271948", "abc", None, True, 0, 2**63, 1.0])
def test_a_handle_of_what_is_no_id_is_refused_and_never_waits(given: Any) -> None:
    with pytest.raises(BadTask, match="is no task id: give the whole number"):
        handle(given)


async def test_a_handle_raises_what_became_of_the_task(client: Client, db: Database) -> None:
    failed, cancelled = await greet.enqueue("a", client=client), await greet.enqueue("b", client=client)
    [run] = await claim(db, await register_worker(db), 1)
    assert await end(db, run, Failed(Error("ValueError", "no such name", "line 1")))
    assert await cancelled.cancel()
    with pytest.raises(TaskFailed, match="in attempt 1: ValueError: no such name") as what:
        await failed.result(1)
    assert (what.value.task_id, what.value.error_type, what.value.traceback) == (failed.id, "ValueError", "line 1")
    with pytest.raises(TaskCancelled, match="cancelled by hand"):
        await cancelled.result(1)


async def test_a_wait_ends_at_its_time_and_the_task_goes_on(client: Client) -> None:
    one = await greet.enqueue("ada", client=client)
    with pytest.raises(TimeoutError, match="it goes on"):
        await one.result(0.05)
    assert await one.status() == Status.QUEUED


async def test_a_task_that_is_not_there_is_no_hang(client: Client) -> None:
    with pytest.raises(ResultExpired):
        await handle(4711, client=client).result(1)
    with pytest.raises(UnknownTask):
        await handle(4711, client=client).status()


async def test_a_thousand_waiters_are_answered(client: Client, db: Database) -> None:
    ids = await greet.enqueue_many([{"name": str(n)} for n in range(1200)], client=client)
    waiters = [asyncio.create_task(handle(task_id, client=client).result(30)) for task_id in ids]
    await db.fetch(
        """WITH taken AS (DELETE FROM aaiclick_queue.ready)
           UPDATE aaiclick_queue.tasks SET status = 'COMPLETED', result = kwargs->'name', finished_at = now()"""
    )
    assert await asyncio.gather(*waiters) == [str(n) for n in range(1200)]


# Wake-ups.


async def test_an_enqueue_is_told_to_workers_over_redis(redis_settings: Settings, db: Database) -> None:
    assert redis_settings.redis_url
    streams = Streams(redis_settings.redis_url, prefix=redis_settings.redis_prefix)
    try:
        await streams.listen(["default"], consumer="test", seconds=0.01)
        async with connect(settings=redis_settings) as client:
            one = await greet.enqueue("ada", client=client)
            heard = await until(lambda: streams.listen(["default"], consumer="test", seconds=0.5))
            assert {hint.task_ids for hint in heard.hints} == {(one.id,)}
            await until(lambda: _nothing_to_tell(db))
    finally:
        await streams.close()


async def test_a_redis_that_is_away_costs_an_enqueue_nothing(settings: Settings, db: Database) -> None:
    async with connect(settings=changed(settings, redis_url=f"redis://127.0.0.1:{free_port()}")) as client:
        await greet.enqueue("ada", client=client)
    assert await count(db, "ready") == 1
    assert await count(db, "outbox") == 1  # for the relay, or until it is stale


def test_no_thread_is_left_but_the_portal(as_default: None) -> None:
    before = {thread.name for thread in threading.enumerate()}
    greet.delay("ada")
    after = {thread.name for thread in threading.enumerate()} - before
    assert after <= {"aaiclick-queue portal"}


async def test_wake_ups_of_what_is_committed_meanwhile_go_together(
    settings: Settings, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    may_go = asyncio.Event()

    async def publish(_: object, told: Sequence[Told]) -> None:
        calls.append(sum(one.n for one in told))
        await may_go.wait()
        if len(calls) == 1:
            raise StreamsDown("gone")  # the others go all the same

    monkeypatch.setattr(client_module, "publish_own", publish)
    monkeypatch.setattr(client_module, "TRUSTED_SECONDS", 0.0)  # none is announced early enough
    with_redis = changed(settings, redis_url=redis_url)
    async with connect(settings=with_redis) as client:
        for _ in range(4):
            await greet.enqueue("ada", client=client)
        assert calls == [1]
        may_go.set()
        await until(lambda: calls == [1, 3])
        await greet.enqueue("ada", client=client)
        await until(lambda: calls == [1, 3, 1])


async def test_rows_of_the_outbox_that_were_published_are_forgotten_together_and_by_whoever_wrote_them(
    settings: Settings, redis_url: str, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    forgotten: list[int] = []
    may_go = asyncio.Event()

    async def seen(tx: Database, told: Sequence[Told]) -> None:
        forgotten.append(sum(one.n for one in told))
        await may_go.wait()
        await forget(tx, told)

    monkeypatch.setattr(client_module, "forget", seen)
    async with connect(settings=changed(settings, redis_url=redis_url)) as client:
        await greet.enqueue("ada", client=client)
        await until(lambda: forgotten == [1])
        await asyncio.gather(*(greet.enqueue("ada", client=client) for _ in range(3)))
        await greet.enqueue("ada", client=client)
        await until(lambda: sum(one.n for one in client._published) == 4)
        assert forgotten == [1]
        may_go.set()
        await until(lambda: forgotten == [1, 4])
        await until(lambda: _nothing_to_tell(db))


async def test_a_client_that_closes_forgets_what_it_published_last(
    settings: Settings, redis_url: str, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "QUIET_SECONDS", math.inf)  # so it is told after its commit
    monkeypatch.setattr(client_module, "FORGET_SECONDS", 0.1)
    monkeypatch.setattr(client_module, "LAST_SECONDS", 60.0)
    async with connect(settings=changed(settings, redis_url=redis_url)) as client:
        await greet.enqueue("ada", client=client)
    assert await count(db, "outbox") == 0


@pytest.mark.parametrize("name", ["aaiclick-queue wake-up", "aaiclick-queue outbox"])
@pytest.mark.parametrize("begins", [False, True])
async def test_wake_ups_go_on_after_one_was_cancelled(
    settings: Settings, redis_url: str, monkeypatch: pytest.MonkeyPatch, name: str, begins: bool
) -> None:
    seen: list[asyncio.Task[None]] = []
    in_background = Client._in_background

    def start(client: Client, work: Coroutine[Any, Any, None], given: str) -> asyncio.Task[None]:
        task = in_background(client, work, given)
        if given == name:
            seen.append(task)
        if seen == [task]:
            asyncio.get_running_loop().call_soon(task.cancel) if begins else task.cancel()
        return task

    monkeypatch.setattr(Client, "_in_background", start)
    monkeypatch.setattr(client_module, "QUIET_SECONDS", math.inf)
    async with connect(settings=changed(settings, redis_url=redis_url)) as client:
        await greet.enqueue("ada", client=client)
        await until(lambda: bool(seen) and seen[0].done())
        assert seen[0].cancelled()
        await greet.enqueue("ada", client=client)
        await until(lambda: len(seen) == 2 and seen[1].done())
        assert not seen[1].cancelled()
        await until(lambda: not client._untold and not client._published)


async def _nothing_to_tell(db: Database) -> bool:
    return await count(db, "outbox") == 0
