"""Our statements in the application's own transaction, for every kind of connection that it may hand us."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from enum import StrEnum
from functools import partial
from typing import Any

import asyncpg
import psycopg
import psycopg2
import pytest
import sqlalchemy as sa
from psycopg.rows import dict_row
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as sa_async
from sqlalchemy.orm import Mapped
from sqlalchemy.pool import NullPool

from aaiclick_queue import callers
from aaiclick_queue.callers import caller_transaction, in_transaction, is_sync, on_commit, run_sync
from aaiclick_queue.errors import WrongContext
from aaiclick_queue.schema import Transaction, schema_sql
from tests.servers import Databases

INSERT = "INSERT INTO aaiclick_queue.notes (id, label) VALUES ($1::bigint, $2::text) RETURNING id, label"
COUNT = "SELECT count(*) AS n FROM aaiclick_queue.notes"

# SQLSTATE 25P02: the transaction is aborted, statements are ignored until it ends.
ABORTED = "current transaction is aborted"


@dataclass
class Application:
    """An application with one connection of some kind, open in a transaction that it ends itself."""

    connection: Any
    schema: str
    execute: Callable[[str], Any]
    commit: Callable[[], Any]
    rollback: Callable[[], Any]
    savepoint: Callable[[], AbstractAsyncContextManager[Any]]
    url: str = field(repr=False, default="")

    @property
    def tx(self) -> Transaction:
        return caller_transaction(self.connection, schema=self.schema)

    async def insert(self, number: int, label: str | None = None) -> Any:
        return await self.tx.fetch(INSERT, number, label)

    def committed(self) -> list[int]:
        """Ids that anybody else sees."""
        with psycopg.connect(self.url) as other:
            return [row[0] for row in other.execute(f"SELECT id FROM {self.schema}.notes ORDER BY id")]


async def maybe_await(value: Any) -> Any:
    return await value if hasattr(value, "__await__") else value


def raw_savepoint(execute: Callable[[str], Any]) -> Callable[[], AbstractAsyncContextManager[Any]]:
    @asynccontextmanager
    async def savepoint() -> AsyncIterator[None]:
        await maybe_await(execute("SAVEPOINT mine"))
        try:
            yield
        except BaseException:
            await maybe_await(execute("ROLLBACK TO SAVEPOINT mine"))
            raise
        await maybe_await(execute("RELEASE SAVEPOINT mine"))

    return savepoint


def nested_savepoint(begin_nested: Callable[[], Any]) -> Callable[[], AbstractAsyncContextManager[Any]]:
    @asynccontextmanager
    async def savepoint() -> AsyncIterator[None]:
        nested = await maybe_await(begin_nested())
        try:
            yield
        except BaseException:
            await maybe_await(nested.rollback())
            raise
        await maybe_await(nested.commit())

    return savepoint


async def open_asyncpg(url: str, stack: AsyncExitStack, *, pooled: bool = False) -> dict[str, Any]:
    connection: Any
    if pooled:
        pool = await stack.enter_async_context(asyncpg.create_pool(url, min_size=1, max_size=1))
        connection = await stack.enter_async_context(pool.acquire())
    else:
        connection = await asyncpg.connect(url)
        stack.push_async_callback(connection.close)
    transaction = connection.transaction()
    await transaction.start()
    return {
        "connection": connection,
        "execute": connection.execute,
        "commit": lambda: connection.execute("COMMIT"),
        "rollback": lambda: connection.execute("ROLLBACK"),
        "savepoint": raw_savepoint(connection.execute),
    }


async def open_raw(url: str, stack: AsyncExitStack, kind: str) -> dict[str, Any]:
    connection: Any
    if kind == "psycopg async":
        connection = await psycopg.AsyncConnection.connect(url)
        stack.push_async_callback(connection.close)
    else:
        connection = stack.enter_context(closing((psycopg if kind == "psycopg" else psycopg2).connect(url)))

    def execute(sql: str) -> Any:
        cursor = connection.cursor()
        return cursor.execute(sql)

    return {
        "connection": connection,
        "execute": execute,
        "commit": connection.commit,
        "rollback": connection.rollback,
        "savepoint": raw_savepoint(execute),
    }


def alchemy_url(url: str, driver: str) -> str:
    return url.replace("postgresql://", f"postgresql+{driver}://", 1)


async def open_async_alchemy(url: str, stack: AsyncExitStack, driver: str, what: str) -> dict[str, Any]:
    engine = sa_async.create_async_engine(alchemy_url(url, driver), poolclass=NullPool)
    stack.push_async_callback(engine.dispose)
    connection: Any
    if what == "AsyncConnection":
        connection = await stack.enter_async_context(engine.connect())
    elif what == "AsyncSession":
        connection = await stack.enter_async_context(sa_async.AsyncSession(engine))
    else:
        connection = sa_async.async_scoped_session(sa_async.async_sessionmaker(engine), scopefunc=lambda: 1)
        stack.push_async_callback(connection.remove)
    return alchemy(connection)


async def open_alchemy(url: str, stack: AsyncExitStack, driver: str, what: str) -> dict[str, Any]:
    engine = sa.create_engine(alchemy_url(url, driver), poolclass=NullPool)
    stack.callback(engine.dispose)
    connection: Any
    if what == "Connection":
        connection = stack.enter_context(engine.connect())
    elif what == "Session":
        connection = stack.enter_context(orm.Session(engine))
    else:
        connection = orm.scoped_session(orm.sessionmaker(engine))
        stack.callback(connection.remove)
    return alchemy(connection)


def alchemy(connection: Any) -> dict[str, Any]:
    return {
        "connection": connection,
        "execute": lambda sql: connection.execute(sa.text(sql)),
        "commit": connection.commit,
        "rollback": connection.rollback,
        "savepoint": nested_savepoint(connection.begin_nested),
    }


ALCHEMY: dict[str, Callable[[str, AsyncExitStack], Any]] = {
    f"{what} {driver}": partial(opener, driver=driver, what=what)
    for opener, drivers, names in (
        (open_async_alchemy, ("asyncpg", "psycopg"), ("AsyncConnection", "AsyncSession", "async_scoped_session")),
        (open_alchemy, ("psycopg", "psycopg2"), ("Connection", "Session", "scoped_session")),
    )
    for driver in drivers
    for what in names
}
RAW: dict[str, Callable[[str, AsyncExitStack], Any]] = {
    "asyncpg": open_asyncpg,
    "asyncpg pool": partial(open_asyncpg, pooled=True),
    "psycopg async": partial(open_raw, kind="psycopg async"),
    "psycopg": partial(open_raw, kind="psycopg"),
    "psycopg2": partial(open_raw, kind="psycopg2"),
}
KINDS = RAW | ALCHEMY
SYNC = {"psycopg", "psycopg2", *(name for name in ALCHEMY if name.startswith(("Connection", "Session", "scoped")))}


@pytest.fixture(scope="module")
def postgres_url(databases: Databases) -> Iterator[str]:
    """One database for all: each test has a schema of its own, and a new database for each took 3 minutes."""
    with databases.new() as name:
        yield databases.url(name)


@pytest.fixture
def schema(postgres_url: str) -> Iterator[str]:
    """A schema of another name than the default, with one table."""
    name = f"callers_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {name}")
        connection.execute(
            f"CREATE TABLE {name}.notes (id bigint PRIMARY KEY, label text, score float8, noted_at timestamptz,"
            f" body jsonb, CONSTRAINT late UNIQUE (score) DEFERRABLE INITIALLY DEFERRED)"
        )
        yield name
        connection.execute(f"DROP SCHEMA {name} CASCADE")


async def opened(kind: str, url: str, schema: str, stack: AsyncExitStack) -> Application:
    return Application(schema=schema, url=url, **await KINDS[kind](url, stack))


@pytest.fixture(params=KINDS)
async def app(request: pytest.FixtureRequest, postgres_url: str, schema: str) -> AsyncIterator[Application]:
    async with AsyncExitStack() as stack:
        yield await opened(request.param, postgres_url, schema, stack)


@pytest.fixture(params=ALCHEMY)
async def alchemist(request: pytest.FixtureRequest, postgres_url: str, schema: str) -> AsyncIterator[Application]:
    async with AsyncExitStack() as stack:
        yield await opened(request.param, postgres_url, schema, stack)


async def test_our_rows_are_there_when_the_application_commits_and_not_before(app: Application) -> None:
    rows = await app.insert(1, "first")
    assert [(row["id"], row["label"]) for row in rows] == [(1, "first")]
    assert app.committed() == []
    await maybe_await(app.commit())
    assert app.committed() == [1]


async def test_nothing_of_ours_is_left_when_the_application_rolls_back(app: Application) -> None:
    await app.insert(1)
    await maybe_await(app.execute(f"INSERT INTO {app.schema}.notes (id) VALUES (2)"))
    assert [row["n"] for row in await app.tx.fetch(COUNT)] == [2]
    await maybe_await(app.rollback())
    assert app.committed() == []


async def test_a_savepoint_rolled_back_takes_what_we_did_inside_and_no_more(app: Application) -> None:
    await app.insert(1)
    with pytest.raises(LookupError):
        async with app.savepoint():
            await app.insert(2)
            raise LookupError
    async with app.savepoint():
        await app.insert(3)
    await maybe_await(app.commit())
    assert app.committed() == [1, 3]


class Colour(StrEnum):
    RED = "red"


async def test_lists_arrive_as_arrays_with_nulls_and_times(app: Application) -> None:
    noon = datetime(2024, 2, 29, 12, 0, 0, 123456, tzinfo=UTC)
    evening = datetime(2024, 2, 29, 21, 30, tzinfo=timezone(timedelta(hours=5, minutes=30)))
    sql = """
        INSERT INTO aaiclick_queue.notes (id, label, score, noted_at, body)
        SELECT id, label, score, noted_at, body::jsonb
        FROM unnest($1::bigint[], $2::text[], $3::float8[], $4::timestamptz[], $5::text[])
            AS given (id, label, score, noted_at, body)
        WHERE id = ANY($1::bigint[])
        RETURNING id, label, score, noted_at, body ->> 'a' AS a
    """
    ids = [-(2**63), 7, 2**63 - 1]
    bodies = [None, '{"a": "ä\'%s"}', '{"a": null}']
    rows = await app.tx.fetch(sql, ids, [None, "x", Colour.RED], [1, None, -2.5], (noon, evening, None), bodies)
    assert [(row["id"], row["label"], row["score"], row["noted_at"], row["a"]) for row in rows] == [
        (ids[0], None, 1.0, noon, None),
        (ids[1], "x", None, evening, "ä'%s"),
        (ids[2], "red", -2.5, None, None),
    ]
    nothing = "SELECT $1::bigint[] AS a, $2::text[] AS b, $3::timestamptz[] AS c, $4::float8[] AS d"
    [row] = await app.tx.fetch(nothing, [], [None], [None, None], [])
    assert [row["a"], row["b"], row["c"], row["d"]] == [[], [None], [None, None], []]


async def test_single_values_arrive_and_may_be_used_twice(app: Application) -> None:
    now = datetime.now(UTC)
    sql = """SELECT $1::bigint AS n, $1::bigint - $2::bigint AS less, $2::bigint::text AS text, $3::timestamptz AS at,
        $4::text IS NULL AS none, $5::bool AS yes, $6::float8 AS f, $6::float8 * interval '1 s' AS span,
        $7::bytea AS b, $8::text::jsonb ->> 'k' AS k, $10::text AS ten, $9::text AS nine"""
    args = (-(2**63), -5, now, None, True, 0.25, b"\x00\xff'", json.dumps({"k": "v"}), "nine", "ten")
    [row] = await app.tx.fetch(sql, *args)
    assert (row["n"], row["less"], row["text"], row["at"]) == (-(2**63), -(2**63) + 5, "-5", now)
    assert (row["none"], row["yes"], row["f"], row["span"]) == (True, True, 0.25, timedelta(seconds=0.25))
    assert (bytes(row["b"]), row["k"], row["ten"], row["nine"]) == (b"\x00\xff'", "v", "ten", "nine")


TEXTS = ["it's", '"q"', "100%", "%s %(p1)s %%", "$1 $2", r"\n \\ \'", "żółć 🐘", "", "a\nb;--"]


async def test_any_text_arrives_as_it_is(app: Application) -> None:
    for number, text in enumerate(TEXTS):
        [row] = await app.insert(number, text)
        assert row["label"] == text
    [row] = await app.tx.fetch("SELECT $1::text[] AS texts", [None, *TEXTS])
    assert row["texts"] == [None, *TEXTS]


async def test_percent_signs_and_literals_of_our_sql_are_kept(app: Application) -> None:
    sql = "SELECT 7 % 4 AS rest, '50%' LIKE '%\\%' AS fits, 'a''b %s' AS text, '{\"a\": [1]}'::jsonb -> 'a' ->> 0 AS j"
    for _ in range(2):
        [row] = await app.tx.fetch(sql)
        assert (row["rest"], row["fits"], row["text"], row["j"]) == (3, True, "a'b %s", "1")
    [row] = await app.tx.fetch("SELECT $1::bigint % 4 AS rest", 7)
    assert row["rest"] == 3


async def test_a_statement_without_rows_gives_none(app: Application) -> None:
    assert list(await app.tx.fetch("DELETE FROM aaiclick_queue.notes WHERE id = $1::bigint", 1)) == []
    assert list(await app.tx.fetch("SELECT id FROM aaiclick_queue.notes")) == []


async def test_a_failed_statement_of_ours_aborts_the_transaction_like_one_of_its_own(app: Application) -> None:
    await app.insert(1)
    with pytest.raises(Exception, match="division by zero"):
        await app.tx.fetch("SELECT 1 / $1::bigint AS n", 0)
    with pytest.raises(Exception, match=ABORTED):
        await maybe_await(app.execute("SELECT 1"))
    await maybe_await(app.rollback())
    if "asyncpg" in type(app.connection).__module__:
        return  # its transaction block is over; the others begin the next one by themselves
    await app.insert(2)
    await maybe_await(app.commit())
    assert app.committed() == [2]


async def test_a_failed_statement_of_ours_inside_a_savepoint_spares_what_was_before(app: Application) -> None:
    await app.insert(1)
    with pytest.raises(Exception, match="duplicate key"):
        async with app.savepoint():
            await app.insert(1)
    await app.insert(2)
    await maybe_await(app.commit())
    assert app.committed() == [1, 2]


async def test_a_repeatable_read_application_keeps_its_isolation_snapshot_and_search_path(app: Application) -> None:
    await maybe_await(app.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))
    await maybe_await(app.execute("SET LOCAL search_path = pg_catalog"))
    await app.insert(1)
    with psycopg.connect(app.url, autocommit=True) as other:
        other.execute(f"INSERT INTO {app.schema}.notes (id) VALUES (9)")
    [row] = await app.tx.fetch(
        "SELECT (SELECT count(*) FROM aaiclick_queue.notes) AS n, current_setting('search_path') AS path,"
        " current_setting('transaction_isolation') AS level"
    )
    assert (row["n"], row["level"], row["path"]) == (1, "repeatable read", "pg_catalog")
    await maybe_await(app.commit())
    assert app.committed() == [1, 9]


@pytest.mark.parametrize("kind", KINDS)
async def test_synchronous_connections_are_told_from_others_and_driven_without_a_loop(
    kind: str, postgres_url: str, schema: str
) -> None:
    async with AsyncExitStack() as stack:
        app = await opened(kind, postgres_url, schema, stack)
        assert is_sync(app.connection) is (kind in SYNC)
        if kind in SYNC:
            assert [row["id"] for row in run_sync(app.insert(1))] == [1]


async def test_whether_our_statement_is_part_of_a_transaction_can_be_asked(app: Application) -> None:
    if isinstance(app.connection, asyncpg.Connection | asyncpg.pool.PoolConnectionProxy):
        assert in_transaction(app.connection) is True
        await app.connection.execute("ROLLBACK")
        assert in_transaction(app.connection) is False
        return
    await app.insert(1)
    assert in_transaction(app.connection) is True


async def test_outside_a_transaction_an_asyncpg_statement_commits_at_once(postgres_url: str, schema: str) -> None:
    connection = await asyncpg.connect(postgres_url)
    try:
        await caller_transaction(connection, schema=schema).fetch(INSERT, 1, "at once")
        assert in_transaction(connection) is False
        assert await connection.fetchval(f"SELECT count(*) FROM {schema}.notes") == 1
    finally:
        await connection.close()


@pytest.mark.parametrize("driver", [psycopg, psycopg2])
def test_a_psycopg_connection_in_autocommit_commits_at_once(driver: Any, postgres_url: str, schema: str) -> None:
    with closing(driver.connect(postgres_url)) as connection:
        assert in_transaction(connection) is True
        connection.autocommit = True
        assert in_transaction(connection) is False
        run_sync(caller_transaction(connection, schema=schema).fetch(INSERT, 1, "at once"))
        assert in_transaction(connection) is False
        connection.cursor().execute("BEGIN")
        assert in_transaction(connection) is True
    with psycopg.connect(postgres_url) as other:
        assert other.execute(f"SELECT count(*) FROM {schema}.notes").fetchone() == (1,)


class Unknown:
    pass


async def test_anything_else_is_refused_with_its_type_and_what_is_accepted(postgres_url: str) -> None:
    engine = sa.create_engine(alchemy_url(postgres_url, "psycopg"), poolclass=NullPool)
    for stranger in (Unknown(), None, engine, orm.sessionmaker(engine), postgres_url):
        for use in (lambda it: caller_transaction(it, schema="s"), is_sync, in_transaction):
            with pytest.raises(WrongContext, match=r"AsyncSession.*asyncpg, psycopg or psycopg2") as refused:
                use(stranger)
            assert type(stranger).__qualname__ in str(refused.value)
    with pytest.raises(WrongContext, match=r"connection=.*Unknown is no open"):
        on_commit(Unknown(), print)


def test_a_session_on_another_database_is_refused() -> None:
    engine = sa.create_engine("sqlite://")
    with orm.Session(engine) as session, pytest.raises(WrongContext, match=r"sqlite\+pysqlite.*Postgres"):
        run_sync(caller_transaction(session, schema="s").fetch("SELECT 1"))
    engine.dispose()


def test_a_psycopg2_connection_in_async_mode_is_refused(postgres_url: str) -> None:
    connection = psycopg2.connect(postgres_url, async_=1)
    with pytest.raises(WrongContext, match="async_=1"):
        run_sync(caller_transaction(connection, schema="s").fetch("SELECT 1"))
    connection.close()


def test_a_coroutine_that_waits_is_closed_and_refused() -> None:
    closed: list[bool] = []

    async def waits() -> None:
        try:
            await asyncio.sleep(0)
        finally:
            closed.append(True)

    coroutine = waits()
    with pytest.raises(WrongContext, match=r"waits has to wait for an event loop"):
        run_sync(coroutine)
    assert closed == [True]


def test_what_a_coroutine_returns_or_raises_comes_through() -> None:
    async def returns() -> str:
        return "value"

    async def raises() -> None:
        raise LookupError("mine")

    assert run_sync(returns()) == "value"
    with pytest.raises(LookupError, match="mine"):
        run_sync(raises())


def test_our_schema_is_named_in_one_place() -> None:
    sql = "SELECT 'aaiclick_queue' FROM aaiclick_queue.tasks JOIN aaiclick_queue.ready USING (id)"
    assert schema_sql(sql, "aaiclick_queue") == sql
    assert schema_sql(sql, "order") == 'SELECT \'aaiclick_queue\' FROM "order".tasks JOIN "order".ready USING (id)'


def test_no_optional_driver_is_imported_until_the_application_does() -> None:
    code = (
        "import sys, aaiclick_queue.callers as c\n"
        "try: c.is_sync(object())\n"
        "except c.WrongContext: print(sorted({'psycopg', 'psycopg2'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


class Model(orm.DeclarativeBase):
    pass


class Note(Model):
    __tablename__ = "notes"
    id: Mapped[int] = orm.mapped_column(primary_key=True)


@pytest.mark.parametrize("kind", [name for name in ALCHEMY if "ession" in name])
async def test_our_statement_does_not_flush_the_session(kind: str, postgres_url: str, schema: str) -> None:
    async with AsyncExitStack() as stack:
        app = await opened(kind, postgres_url, schema, stack)
        await maybe_await(app.execute(f"SET LOCAL search_path = {schema}"))
        note = Note(id=5)
        app.connection.add(note)
        [row] = await app.tx.fetch(COUNT)
        assert row["n"] == 0
        assert note in app.connection.new
        await maybe_await(app.commit())
        assert app.committed() == [5]


async def test_a_synchronous_session_inside_run_sync_of_an_async_one_works(postgres_url: str, schema: str) -> None:
    for driver in ("asyncpg", "psycopg"):
        engine = sa_async.create_async_engine(alchemy_url(postgres_url, driver), poolclass=NullPool)
        async with sa_async.AsyncSession(engine) as session:

            def enqueue(inner: orm.Session) -> list[int]:
                assert is_sync(inner)
                return [row["id"] for row in run_sync(caller_transaction(inner, schema=schema).fetch(INSERT, 1, "in"))]

            assert await session.run_sync(enqueue) == [1]
            await session.rollback()
        await engine.dispose()


async def test_factories_and_codecs_of_the_application_do_not_reach_our_rows(postgres_url: str, schema: str) -> None:
    as_json = "SELECT $1::text::jsonb ->> 'a' AS a, 7 % 4 AS rest"
    async with await psycopg.AsyncConnection.connect(
        postgres_url, row_factory=dict_row, cursor_factory=psycopg.AsyncRawCursor
    ) as connection:
        [row] = await caller_transaction(connection, schema=schema).fetch(as_json, '{"a": "b"}')
        assert (row["a"], row["rest"]) == ("b", 3)
    with psycopg.connect(postgres_url, row_factory=dict_row, cursor_factory=psycopg.ClientCursor) as sync:
        [row] = run_sync(caller_transaction(sync, schema=schema).fetch(as_json, '{"a": "b"}'))
        assert (row["a"], row["rest"]) == ("b", 3)
    raw = await asyncpg.connect(postgres_url)
    await raw.set_type_codec("jsonb", encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
    [row] = await caller_transaction(raw, schema=schema).fetch(as_json, '{"a": "b"}')
    assert (row["a"], row["rest"]) == ("b", 3)
    await raw.close()


@pytest.mark.parametrize("options", [{"stream_results": True}, {"yield_per": 10}, {"no_parameters": True}], ids=str)
@pytest.mark.parametrize("driver", ["psycopg", "psycopg2", "asyncpg"])
async def test_execution_options_of_an_engine_do_not_change_our_statements(
    driver: str, options: dict[str, Any], postgres_url: str, schema: str
) -> None:
    if driver == "asyncpg":
        engine = sa_async.create_async_engine(alchemy_url(postgres_url, driver), poolclass=NullPool)
        async with sa_async.AsyncSession(engine.execution_options(**options)) as session:
            tx = caller_transaction(session, schema=schema)
            assert [row["id"] for row in await tx.fetch(INSERT, 1, "x")] == [1]
            assert [row["rest"] for row in await tx.fetch("SELECT 7 % 4 AS rest")] == [3]
        await engine.dispose()
        return
    sync = sa.create_engine(alchemy_url(postgres_url, driver), poolclass=NullPool)
    with orm.Session(sync.execution_options(**options)) as other:
        tx = caller_transaction(other, schema=schema)
        assert [row["id"] for row in await tx.fetch(INSERT, 1, "x")] == [1]
        assert [row["rest"] for row in await tx.fetch("SELECT 7 % 4 AS rest")] == [3]


async def test_inside_a_psycopg_pipeline_rows_come_all_the_same(postgres_url: str, schema: str) -> None:
    async with await psycopg.AsyncConnection.connect(postgres_url) as connection, connection.pipeline():
        tx = caller_transaction(connection, schema=schema)
        assert [row["id"] for row in await tx.fetch(INSERT, 1, "x")] == [1]
        assert list(await tx.fetch("DELETE FROM aaiclick_queue.notes")) == []
    with psycopg.connect(postgres_url) as sync, sync.pipeline():
        tx = caller_transaction(sync, schema=schema)
        assert [row["id"] for row in run_sync(tx.fetch(INSERT, 1, "x"))] == [1]


async def test_the_callback_comes_once_and_after_the_commit(alchemist: Application) -> None:
    seen: list[list[int]] = []
    await alchemist.insert(1)
    assert on_commit(alchemist.connection, lambda: seen.append(alchemist.committed())) is True
    assert on_commit(alchemist.connection, lambda: seen.append([])) is True
    assert seen == []
    await maybe_await(alchemist.commit())
    assert seen == [[1], []]
    await alchemist.insert(2)
    await maybe_await(alchemist.commit())
    assert seen == [[1], []]


async def test_the_callback_never_comes_after_a_rollback_nor_with_the_next_transaction(
    alchemist: Application,
) -> None:
    calls: list[str] = []
    await alchemist.insert(1)
    on_commit(alchemist.connection, lambda: calls.append("first"))
    await maybe_await(alchemist.rollback())
    await alchemist.insert(2)
    on_commit(alchemist.connection, lambda: calls.append("second"))
    await maybe_await(alchemist.commit())
    assert calls == ["second"]
    assert alchemist.committed() == [2]


async def test_savepoints_neither_bring_nor_take_the_callback(alchemist: Application) -> None:
    calls: list[str] = []
    async with alchemist.savepoint():
        await alchemist.insert(1)
        on_commit(alchemist.connection, lambda: calls.append("inside"))
    assert calls == []
    with pytest.raises(LookupError):
        async with alchemist.savepoint():
            raise LookupError
    assert calls == []
    await maybe_await(alchemist.commit())
    assert calls == ["inside"]


async def test_a_commit_that_fails_is_no_commit(alchemist: Application) -> None:
    calls: list[str] = []
    twice = "INSERT INTO aaiclick_queue.notes (id, score) VALUES ($1::bigint, 1), ($2::bigint, 1)"
    await alchemist.tx.fetch(twice, 1, 2)
    on_commit(alchemist.connection, lambda: calls.append("called"))
    with pytest.raises(Exception, match="duplicate key"):
        await maybe_await(alchemist.commit())
    await maybe_await(alchemist.rollback())
    await alchemist.insert(3)
    await maybe_await(alchemist.commit())
    assert calls == []
    assert alchemist.committed() == [3]


async def test_a_session_closed_without_a_commit_forgets_the_callback(alchemist: Application) -> None:
    calls: list[str] = []
    await alchemist.insert(1)
    on_commit(alchemist.connection, lambda: calls.append("called"))
    await maybe_await(alchemist.connection.close())
    if "ession" in type(alchemist.connection).__name__:
        await alchemist.insert(2)
        await maybe_await(alchemist.commit())
        assert alchemist.committed() == [2]
    assert calls == []


async def test_a_callback_that_raises_is_logged_and_the_commit_stands(
    alchemist: Application, caplog: pytest.LogCaptureFixture
) -> None:
    def breaks() -> None:
        raise LookupError("broken callback")

    calls: list[str] = []
    await alchemist.insert(1)
    on_commit(alchemist.connection, breaks)
    on_commit(alchemist.connection, lambda: calls.append("next"))
    await maybe_await(alchemist.commit())
    assert alchemist.committed() == [1]
    assert calls == ["next"]
    assert "broken callback" in caplog.text


async def test_many_transactions_leave_nothing_of_ours_behind(alchemist: Application) -> None:
    target = alchemist.connection
    target = target() if "scoped" in type(target).__name__ else target
    target = getattr(target, "sync_session", getattr(target, "sync_connection", target))
    for number in range(6):
        await alchemist.insert(number)
        on_commit(alchemist.connection, lambda: None)
        await maybe_await(alchemist.commit() if number % 2 else alchemist.rollback())
        if isinstance(target, sa.Connection):
            assert not {"_commit_impl", "_rollback_impl"} & set(vars(target))
        else:  # one listener an event for the life of the session, and nobody waiting
            assert (len(target.dispatch.after_commit), len(target.dispatch.after_transaction_end)) == (1, 1)
            assert target.info[callers._WAITING] == []


def test_an_application_that_clears_the_info_of_its_session_still_commits(postgres_url: str) -> None:
    engine = sa.create_engine(alchemy_url(postgres_url, "psycopg"), poolclass=NullPool)
    calls: list[str] = []
    with orm.Session(engine) as session:
        on_commit(session, lambda: calls.append("forgotten"))
        session.info.clear()
        session.commit()
        on_commit(session, lambda: calls.append("called"))
        session.commit()
    assert calls == ["called"]


@pytest.mark.parametrize("kind", RAW)
async def test_a_raw_driver_shows_nobody_its_commit(kind: str, postgres_url: str, schema: str) -> None:
    async with AsyncExitStack() as stack:
        app = await opened(kind, postgres_url, schema, stack)
        calls: list[str] = []
        await app.insert(1)
        assert on_commit(app.connection, lambda: calls.append("called")) is False
        await maybe_await(app.commit())
        assert calls == []


def test_a_two_phase_transaction_shows_nobody_its_commit(postgres_url: str) -> None:
    engine = sa.create_engine(alchemy_url(postgres_url, "psycopg"), poolclass=NullPool)
    with engine.connect() as connection, connection.begin_twophase():
        assert on_commit(connection, lambda: None) is False
