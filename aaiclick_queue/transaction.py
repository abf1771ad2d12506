"""`current().transaction()`: the application's writes and the fenced completion of the task in one commit."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from .callers import caller_transaction, in_transaction, run_sync
from .errors import LeaseLost, MissingExtra, PostgresUnavailable, QueueError, WrongContext
from .flow.complete import complete
from .flow.execute import encoded_result
from .outcome import Ended, Succeeded
from .postgres import LOCAL_FLOW_PLANS, plain_dsn
from .schema import Transaction
from .settings import Settings

if TYPE_CHECKING:
    from .context import Current

# Lease there: not committed. Lease gone and the end is mine: committed.
WAS_COMMITTED = """
SELECT status = 'COMPLETED' AND run_epoch = $2 AND worker_id = $3 AS mine FROM aaiclick_queue.tasks WHERE id = $1
"""


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
        landed = await self._complete(self._ended())
        self._require_lease(landed)
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
            landed = run_sync(self._complete(self._ended()))
            self._require_lease(landed, session)
            self._ours = True
            try:
                session.commit()
            except Exception as error:
                asked = asyncio.run_coroutine_threadsafe(self._was_committed(error), self._services.loop)
                if not asked.result():
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

    def _ended(self) -> Ended:
        value = encoded_result(self._run, self._current.take_result())
        return Ended(
            self._current.id,
            self._current.run_epoch,
            Succeeded(value),
            self._run.started,
            time.monotonic(),
            flags=self._run.claimed.flags,
        )

    async def _complete(self, ended: Ended) -> set[int]:
        tx = self.tx()
        await tx.fetch(LOCAL_FLOW_PLANS)  # else a plan that was cached on empty tables reads all of `tasks`
        return await complete(tx, [ended], worker_id=self._current.fence.worker_id)

    def _require_lease(self, landed: Sequence[int] | set[int], session: Session | None = None) -> None:
        if self._current.id not in landed:
            if session is not None:
                session.rollback()
            raise LeaseLost(
                f"task {self._current.id}: this run lost its lease, so everything in its transaction was rolled back"
            )

    def _completed(self) -> None:
        self._run.committed = True
        self._services.made_ready()

    async def _was_committed(self, error: Exception) -> bool:
        # Asked whatever the error is: each driver has its own way to say that the answer did not come.
        fence = self._current.fence
        for _ in range(100):
            try:
                return bool(
                    await self._services.db.fetchval(WAS_COMMITTED, fence.task_id, fence.run_epoch, fence.worker_id)
                )
            except PostgresUnavailable:
                await asyncio.sleep(0.1)
        raise QueueError(f"task {fence.task_id}: Postgres never said whether its transaction was committed") from error


_engines: dict[tuple[object, str, str], Any] = {}


def async_engine(dsn: str, settings: Settings) -> AsyncEngine:
    """The worker's engine for `async with current().transaction()`, opened on first use."""
    key = (asyncio.get_running_loop(), dsn, "async")
    if key not in _engines:
        arguments: dict[str, Any] = {"timeout": 5, "command_timeout": settings.task_timeout_seconds}
        if settings.postgres_pooler == "transaction":
            arguments |= {"statement_cache_size": 0, "prepared_statement_cache_size": 0}
        _engines[key] = create_async_engine(
            plain_dsn(dsn).replace("postgresql://", "postgresql+asyncpg://", 1),
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
            import psycopg  # noqa: F401
        except ImportError:
            raise MissingExtra("`with current().transaction()` in a `def` task", "psycopg") from None
        _engines[key] = create_engine(
            plain_dsn(dsn).replace("postgresql://", "postgresql+psycopg://", 1),
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
