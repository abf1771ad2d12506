"""`current().transaction()`: the application's writes and the fenced completion of the task in one commit."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from .callers import caller_transaction, in_transaction, run_sync
from .errors import MissingExtra, PostgresUnavailable, QueueError, WrongContext
from .flow.enqueue import TakeIds
from .flow.execute import encoded_result
from .flow.submit import Submitted
from .growing import Adds, added_by, through, was_committed, write_end
from .postgres import DIAL_SECONDS, LOCAL_FLOW_PLANS, dial, writable
from .schema import Transaction
from .settings import Settings

if TYPE_CHECKING:
    from .context import Current

T = TypeVar("T")


class TaskTransaction:
    """One block. On leaving it the completing statement is the last one before COMMIT; without lease: rollback."""

    def __init__(self, current: Current, driver: Literal["sqlalchemy", "asyncpg"]) -> None:
        self._current = current
        self._services = current._services  # noqa: SLF001 - a part of it
        self._run = current._run  # noqa: SLF001
        self._driver = driver
        self._connection: Any = None
        self._outer: Any = None
        self._ours = False

    def tx(self) -> Transaction:
        """What our own statements of this block run on."""
        return caller_transaction(self._connection, schema=self._services.settings.postgres_schema)

    async def __aenter__(self) -> Any:
        self._begin_block()
        try:
            return await self._open()
        except BaseException:
            self._end_block()
            if (opened := self._outer or self._connection) is not None:
                await asyncio.shield(opened.close())
            raise

    async def _open(self) -> Any:
        engine = async_engine(self._services.dsn, self._services.settings)
        if self._driver == "asyncpg":
            self._outer = await engine.connect()
            await self._outer.begin()
            raw = await self._outer.get_raw_connection()
            self._connection = raw.driver_connection
            await self._outer.exec_driver_sql("SELECT 1")  # the pool's transaction begins with its first statement
        else:
            self._connection = AsyncSession(engine, expire_on_commit=False)
            event.listen(self._connection.sync_session, "before_commit", self._refuse_commit)
            await self._connection.begin()
        return self._connection

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        target = self._outer if self._driver == "asyncpg" else self._connection
        try:
            if kind is not None:
                with suppress(Exception):  # what the block raised is what counts
                    await target.rollback()
                return
            self._committing(True)
            await self._finish(target)
        finally:
            self._committing(False)
            self._end_block()
            await asyncio.shield(target.close())

    async def _finish(self, target: Any) -> None:
        if self._driver == "sqlalchemy":
            await target.flush()
        self._still_in_transaction()
        adds = self._adds()
        await self._complete(adds, (await self._services.ids()).take if adds.writes_tasks else _none)
        self._ours = True
        try:
            await target.commit()
        except Exception as error:
            if not await self._was_committed(error):
                raise
        self._completed()

    def __enter__(self) -> Session:
        if threading.current_thread() is threading.main_thread() or self._driver != "sqlalchemy":
            raise WrongContext("`with current().transaction()` is for `def` tasks; write `async with` here")
        session = Session(sync_engine(self._services.dsn, self._services.settings), expire_on_commit=False)
        event.listen(session, "before_commit", self._refuse_commit)
        self._begin_block()
        self._connection = session
        session.begin()
        return session

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        session: Session = self._connection
        try:
            if kind is not None:
                with suppress(Exception):
                    session.rollback()
                return
            self._committing(True)
            session.flush()
            self._still_in_transaction()
            adds = self._adds()
            take = self._wait(self._services.ids()).take if adds.writes_tasks else _none
            run_sync(self._complete(adds, take))
            self._ours = True
            try:
                session.commit()
            except Exception as error:
                if not self._wait(self._was_committed(error)):
                    raise
            self._completed()
        finally:
            self._committing(False)
            self._end_block()
            session.close()

    def _begin_block(self) -> None:
        if self._run.committed:
            raise WrongContext("this task was completed by an earlier transaction() block: only one can do that")
        if self._current._block is not None:  # noqa: SLF001 - a part of it
            raise WrongContext("transaction() inside transaction(): use the session of the outer block")
        self._current._block = self  # noqa: SLF001

    def _end_block(self) -> None:
        self._current._block = None  # noqa: SLF001
        self._current.drop_kept()

    def _committing(self, now: bool) -> None:
        self._run.committing = now
        self._services.committing(self._run)

    def _refuse_commit(self, session: Session) -> None:
        if not self._ours and not session.in_nested_transaction():  # the end of a savepoint is no commit
            raise WrongContext("commit() inside current().transaction(): the block commits by itself when it ends")

    def _still_in_transaction(self) -> None:
        if in_transaction(self._connection) is False:
            raise WrongContext(
                "the transaction was ended inside current().transaction(): its commit is not ours to give"
            )

    def _adds(self) -> Adds:
        """The end of the run, with what it adds to its job."""
        run, value = self._run, self._current.take_result()
        adds = None
        if run.building is not None:
            adds = added_by(run, value, self._services.settings, kept=self._current.kept())
        return adds or Adds(encoded_result(run, value))

    async def _complete(self, adds: Adds, take: TakeIds) -> None:
        tx = self.tx()

        async def write() -> Submitted:
            await tx.fetch(LOCAL_FLOW_PLANS)  # else a plan that was cached on empty tables reads all of `tasks`
            return await write_end(tx, self._run, adds, take)

        await through(self._services.middleware, self._run, adds, write, connection=self._connection)

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._services.loop).result()

    def _completed(self) -> None:
        self._run.committed = True
        self._services.made_ready()

    async def _was_committed(self, error: Exception) -> bool:
        # Asked whatever the error is: each driver has its own way to say that the answer did not come.
        for _ in range(100):
            try:
                return await was_committed(self._services.db, self._run)
            except PostgresUnavailable:
                await asyncio.sleep(0.1)
        raise QueueError(
            f"task {self._current.id}: Postgres never said whether its transaction was committed"
        ) from error


def _none(count: int) -> list[int]:
    raise AssertionError(f"{count} ids for what is not written")


_engines: dict[tuple[object, str, str], Any] = {}


def async_engine(dsn: str, settings: Settings) -> AsyncEngine:
    """The worker's engine for `async with current().transaction()`, opened on first use."""
    key = (asyncio.get_running_loop(), dsn, "async")
    if key not in _engines:
        # Not by a URL of SQLAlchemy's, which knows no sslmode, no list of hosts and no password file.
        arguments: dict[str, Any] = {"async_creator_fn": lambda *_, **given: dial(dsn, **given)}
        arguments |= {"command_timeout": settings.task_timeout_seconds}
        if settings.postgres_pooler == "transaction":
            arguments |= {"statement_cache_size": 0, "prepared_statement_cache_size": 0}
        _engines[key] = create_async_engine(
            "postgresql+asyncpg://",
            pool_size=settings.transaction_pool_size,
            max_overflow=0,
            pool_pre_ping=True,  # after a restart of Postgres a stale connection must not cost an attempt
            pool_timeout=settings.task_timeout_seconds,  # a run waits for its turn as long as a run may take
            connect_args=arguments,
            isolation_level="READ COMMITTED",
        )
    engine: AsyncEngine = _engines[key]
    return engine


def sync_engine(dsn: str, settings: Settings) -> Engine:
    """The worker's engine for `with current().transaction()` in threads."""
    key = (None, dsn, "sync")
    if key not in _engines:
        try:
            import psycopg
        except ImportError:
            raise MissingExtra("`with current().transaction()` in a `def` task", "psycopg") from None
        url = writable(dsn)
        _engines[key] = create_engine(
            "postgresql+psycopg://",
            creator=lambda: psycopg.connect(url, connect_timeout=int(DIAL_SECONDS)),
            pool_size=settings.transaction_pool_size,
            max_overflow=0,
            pool_pre_ping=True,
            pool_timeout=settings.task_timeout_seconds,
            isolation_level="READ COMMITTED",
        )
    engine: Engine = _engines[key]
    return engine


async def close_engines() -> None:
    """Close what this loop and its threads have opened."""
    loop = asyncio.get_running_loop()
    for key in [key for key in _engines if key[0] in (loop, None)]:
        engine = _engines.pop(key)
        if isinstance(engine, AsyncEngine):
            await engine.dispose()
        else:
            engine.dispose()
