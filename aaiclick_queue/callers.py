"""The application's own connection or session: our statements run in its transaction, and it ends it.

Before: a surface that was given `connection=`. After: the step, which sees a `Transaction` like any other.
Nothing here commits, flushes or sets anything, and errors are the driver's own: a failed statement leaves what one of
the application's would. JSON goes in as `$1::text::jsonb`, past any codec it has set. A session is asked for its
default bind: one that routes reads to a replica hands us the right `session.connection(...)` itself."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import NoneType
from typing import Any, ClassVar, TypeVar

from .errors import WrongContext
from .schema import Transaction, schema_sql

T = TypeVar("T")

log = logging.getLogger(__name__)


def caller_transaction(connection: Any, *, schema: str) -> Transaction:
    """The application's connection or session as something a step runs its statements on."""
    return _caller(connection, schema)


def is_sync(connection: Any) -> bool:
    """Whether its `fetch` blocks and never suspends, so that `run_sync` may drive a step over it."""
    return _caller(connection).blocks


def in_transaction(connection: Any) -> bool | None:
    """False: our statement commits by itself. True: the application commits it. None: begins one if need be."""
    return _caller(connection).in_transaction()


def on_commit(connection: Any, callback: Callable[[], None]) -> bool:
    """Call back once after the application's COMMIT and never after its rollback; False where nobody can see it.

    Savepoints count for nothing: neither their release nor their rollback. The callback runs in the thread that
    commits, must not wait, and what it raises is logged: the application's commit has happened.
    """
    return _caller(connection).on_commit(callback)


def run_sync(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never waits for an event loop."""
    try:
        coroutine.send(None)
    except StopIteration as finished:
        return finished.value  # type: ignore[no-any-return]
    coroutine.close()
    name = getattr(coroutine, "__qualname__", "this call")
    raise WrongContext(
        f"{name} has to wait for an event loop, and a synchronous call has none: "
        "pass a synchronous connection or session, or await it in async code"
    )


@dataclass(frozen=True, slots=True)
class _Caller:
    connection: Any
    schema: str

    blocks: ClassVar[bool] = False

    async def fetch(self, sql: str, *args: Any) -> Sequence[Any]:
        raise NotImplementedError

    def in_transaction(self) -> bool | None:
        raise NotImplementedError

    def on_commit(self, callback: Callable[[], None]) -> bool:  # noqa: ARG002 - most drivers show no commit
        return False


class _Asyncpg(_Caller):
    __slots__ = ()

    async def fetch(self, sql: str, *args: Any) -> Sequence[Any]:
        rows: Sequence[Any] = await self.connection.fetch(schema_sql(sql, self.schema), *args)
        return rows

    def in_transaction(self) -> bool:
        return bool(self.connection.is_in_transaction())


class _Psycopg(_Caller):
    __slots__ = ()
    blocks = True

    async def fetch(self, sql: str, *args: Any) -> Sequence[Any]:
        # A cursor class and rows of our own: the connection's factories may speak another placeholder or row.
        psycopg = sys.modules["psycopg"]
        with psycopg.Cursor(self.connection, row_factory=_tuple_row) as cursor:
            cursor.execute(_pyformat(schema_sql(sql, self.schema)), _parameters(args))
            if self.connection.pgconn.pipeline_status:
                with self.connection.pipeline():  # leaving the inner block brings the answer
                    pass
            return _named(cursor.description, cursor.fetchall()) if cursor.description else []

    def in_transaction(self) -> bool:
        return not self.connection.autocommit or self.connection.info.transaction_status != 0


class _AsyncPsycopg(_Psycopg):
    __slots__ = ()
    blocks = False

    async def fetch(self, sql: str, *args: Any) -> Sequence[Any]:
        psycopg = sys.modules["psycopg"]
        async with psycopg.AsyncCursor(self.connection, row_factory=_tuple_row) as cursor:
            await cursor.execute(_pyformat(schema_sql(sql, self.schema)), _parameters(args))
            if self.connection.pgconn.pipeline_status:
                async with self.connection.pipeline():
                    pass
            return _named(cursor.description, await cursor.fetchall()) if cursor.description else []


class _Psycopg2(_Psycopg):
    __slots__ = ()

    async def fetch(self, sql: str, *args: Any) -> Sequence[Any]:
        if self.connection.async_:
            raise WrongContext("this psycopg2 connection was opened with async_=1: pass one without, or psycopg's")
        plain = sys.modules["psycopg2.extensions"].cursor
        with self.connection.cursor(cursor_factory=plain) as cursor:
            cursor.execute(_pyformat(schema_sql(sql, self.schema)), _parameters(args))
            return _named(cursor.description, cursor.fetchall()) if cursor.description else []


class _Connection(_Caller):
    __slots__ = ()
    blocks = True

    async def fetch(self, sql: str, *args: Any) -> Sequence[Any]:
        return _execute(self.connection, schema_sql(sql, self.schema), args)

    def in_transaction(self) -> bool | None:
        return True if self.connection.in_transaction() else None

    def on_commit(self, callback: Callable[[], None]) -> bool:
        return _after_connection_commit(self.connection, callback)


class _AsyncConnection(_Connection):
    __slots__ = ()
    blocks = False

    async def fetch(self, sql: str, *args: Any) -> Sequence[Any]:
        rows: Sequence[Any] = await self.connection.run_sync(_execute, schema_sql(sql, self.schema), args)
        return rows

    def on_commit(self, callback: Callable[[], None]) -> bool:
        return _after_connection_commit(self.connection.sync_connection, callback)


class _Session(_Connection):
    __slots__ = ()

    async def fetch(self, sql: str, *args: Any) -> Sequence[Any]:
        return _execute_in_session(self.connection, schema_sql(sql, self.schema), args)

    def on_commit(self, callback: Callable[[], None]) -> bool:
        return _after_session_commit(self.connection, callback)


class _AsyncSession(_Session):
    __slots__ = ()
    blocks = False

    async def fetch(self, sql: str, *args: Any) -> Sequence[Any]:
        rows: Sequence[Any] = await self.connection.run_sync(_execute_in_session, schema_sql(sql, self.schema), args)
        return rows

    def on_commit(self, callback: Callable[[], None]) -> bool:
        return _after_session_commit(self.connection.sync_session, callback)


# By name, so that no driver is imported for those who do not use it.
_KINDS: dict[str, type[_Caller]] = {
    "asyncpg.connection.Connection": _Asyncpg,
    "asyncpg.pool.PoolConnectionProxy": _Asyncpg,
    "psycopg.AsyncConnection": _AsyncPsycopg,
    "psycopg.Connection": _Psycopg,
    "psycopg2.extensions.connection": _Psycopg2,
    "sqlalchemy.engine.base.Connection": _Connection,
    "sqlalchemy.ext.asyncio.engine.AsyncConnection": _AsyncConnection,
    "sqlalchemy.ext.asyncio.session.AsyncSession": _AsyncSession,
    "sqlalchemy.orm.session.Session": _Session,
}
_SCOPED = frozenset({"sqlalchemy.orm.scoping.scoped_session", "sqlalchemy.ext.asyncio.scoping.async_scoped_session"})


def _caller(connection: Any, schema: str = "") -> _Caller:
    names = [f"{each.__module__}.{each.__qualname__}" for each in type(connection).__mro__]
    if not _SCOPED.isdisjoint(names):
        return _caller(connection(), schema)
    for name in names:
        if name in _KINDS:
            return _KINDS[name](connection, schema)
    raise WrongContext(
        f"connection={names[0]} is no open connection or session (an engine, a pool, a factory or a cursor is none "
        "either): pass an AsyncSession, AsyncConnection, Session or Connection of SQLAlchemy 2, or a connection of "
        "asyncpg, psycopg or psycopg2"
    )


@lru_cache(maxsize=512)
def _pyformat(sql: str) -> str:
    # In parentheses, because psycopg2 writes values into the text and `-1::text` means -(1::text).
    return re.sub(r"\$(\d+)", r"(%(p\1)s)", sql.replace("%", "%%"))


def _parameters(args: Sequence[Any]) -> dict[str, Any]:
    return {f"p{n}": _array(arg) if isinstance(arg, list | tuple) else arg for n, arg in enumerate(args, 1)}


def _array(items: Sequence[Any]) -> list[Any]:
    # asyncpg takes [1, 2.5] as float8[], psycopg refuses a list of two types.
    if set(map(type, items)) - {NoneType} == {int, float}:
        return [item if item is None else float(item) for item in items]
    return list(items)


def _tuple_row(_: Any) -> Callable[[Sequence[Any]], Sequence[Any]]:
    return tuple


def _named(description: Sequence[Any], rows: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    names = [column[0] for column in description]
    return [dict(zip(names, row, strict=True)) for row in rows]


# What an engine may have set for its own reads: a server-side cursor takes no INSERT, and without parameters
# `%%` would stay doubled.
_ONE_PLAIN_STATEMENT = {"stream_results": False, "yield_per": None, "no_parameters": False}


def _execute_in_session(session: Any, sql: str, args: Sequence[Any]) -> Sequence[Any]:
    return _execute(session.connection(), sql, args)


def _execute(connection: Any, sql: str, args: Sequence[Any]) -> Sequence[Any]:
    parameters: tuple[Any, ...] | dict[str, Any]
    match connection.dialect.driver:
        case "asyncpg":
            parameters = tuple(args)
        case "psycopg" | "psycopg2":
            sql, parameters = _pyformat(sql), _parameters(args)
        case driver:
            raise WrongContext(
                f"connection= is on {connection.dialect.name}+{driver}: the queue's statements need Postgres "
                "through asyncpg, psycopg or psycopg2; pass such a session, or none"
            )
    result = connection.exec_driver_sql(sql, parameters, _ONE_PLAIN_STATEMENT)
    return result.mappings().all() if result.returns_rows else []


_WAITING = "aaiclick_queue.on_commit"


def _after_session_commit(session: Any, callback: Callable[[], None]) -> bool:
    from sqlalchemy import event

    if _WAITING not in session.info:
        # Once a session, and they go with it: SQLAlchemy cannot remove a listener while its event is running.
        session.info[_WAITING] = []
        event.listen(session, "after_commit", _session_committed)
        event.listen(session, "after_transaction_end", _session_transaction_ended)
    session.info[_WAITING].append(callback)
    return True


def _session_committed(session: Any) -> None:
    if not session.in_nested_transaction():
        _call(tuple(session.info.get(_WAITING, ())))


def _session_transaction_ended(session: Any, transaction: Any) -> None:
    if transaction.parent is None and _WAITING in session.info:
        session.info[_WAITING] = []


_COMMIT, _ROLLBACK = "_commit_impl", "_rollback_impl"


def _after_connection_commit(connection: Any, callback: Callable[[], None]) -> bool:
    # SQLAlchemy's "commit" event comes before the COMMIT is sent: whoever looks then finds nothing, and the
    # COMMIT may still fail. So the two methods that end a transaction are covered, on this one connection object
    # and until it ends; where a version has no such methods the relay's poll finds the rows.
    if not hasattr(connection, _COMMIT) or not hasattr(connection, _ROLLBACK) or _two_phase(connection):
        return False
    own = vars(connection)
    if _COMMIT not in own:
        own[_COMMIT] = _Ending(connection, getattr(connection, _COMMIT))
        own[_ROLLBACK] = _Ending(connection, getattr(connection, _ROLLBACK))
    own[_COMMIT].waiting.append(callback)
    return True


def _two_phase(connection: Any) -> bool:
    return hasattr(connection.get_transaction(), "xid")  # ends by COMMIT PREPARED, perhaps elsewhere


class _Ending:
    """A connection's COMMIT or ROLLBACK that uncovers both first and then calls whoever waits for it."""

    def __init__(self, connection: Any, end: Callable[[], None]) -> None:
        self.own = vars(connection)
        self.end = end
        self.waiting: list[Callable[[], None]] = []

    def __call__(self) -> None:
        self.own.pop(_COMMIT, None)
        self.own.pop(_ROLLBACK, None)
        self.end()
        _call(self.waiting)


def _call(callbacks: Sequence[Callable[[], None]]) -> None:
    # What they raise stays here: the commit has happened, and nobody may hear of this as its failure.
    for callback in callbacks:
        try:
            callback()
        except Exception:
            log.exception("a call after the application's commit failed; the rows are committed and will be found")
