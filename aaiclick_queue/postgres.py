"""The wire to Postgres: the only importer of asyncpg. A few connections, opened when needed, never reset.

Flow connections plan for the shape of our tables, not for their statistics: an idle worker that had cached a
sequential scan over the empty line took 1.6 s a claim after a million tasks were enqueued.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import weakref
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from . import moments
from .errors import NotAllowed, PostgresUnavailable, QueueError
from .schema import schema_sql
from .settings import Settings, masked

DIAL_SECONDS = 5.0
# A statement stays prepared as long as its connection: asyncpg forgets each after five minutes, and whoever claims or
# enqueues then waits for it to be planned anew.
PREPARED = {"max_cached_statement_lifetime": 0}
WRITABLE = re.compile(r"[?&]target_session_attrs=(read-write|primary)\b")
SESSION = {
    "application_name": "aaiclick-queue",
    "default_transaction_isolation": "read committed",
    "idle_in_transaction_session_timeout": "60000",
    "timezone": "UTC",
}
FLOW_PLANS = {
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_sort": "off",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
}
# The same until the transaction ends, on a connection that is not the flow's.
LOCAL_FLOW_PLANS = "SELECT " + ", ".join(f"set_config('{name}', '{value}', true)" for name, value in FLOW_PLANS.items())
# Behind pgbouncer nothing of a session may be set, so each transaction brings it along in its BEGIN.
POOLED_BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED"
# What a value says is the trouble: it cannot be read, breaks a rule of its table, or is too long for an index.
DATA_ERRORS = (
    asyncpg.DataError,
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.ProgramLimitExceededError,
)
UNIQUE_ERROR = asyncpg.UniqueViolationError
# A table, a column or a function that this version uses is not there: somebody went back a version.
SCHEMA_ERRORS = (
    asyncpg.UndefinedTableError,
    asyncpg.UndefinedColumnError,
    asyncpg.UndefinedFunctionError,
    asyncpg.UndefinedObjectError,
    asyncpg.InvalidSchemaNameError,
)
# A function that a Postgres of somebody else's making knows by name alone.
NOT_OFFERED = (asyncpg.FeatureNotSupportedError, asyncpg.UndefinedFunctionError)
UNAVAILABLE = (
    OSError,
    TimeoutError,
    ssl.SSLError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.TooManyConnectionsError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.InternalClientError,
)
# Postgres refused this statement now, not for what it says: a cancelled backend, a deadlock, no room, no time.
TRANSIENT = (
    asyncpg.QueryCanceledError,
    asyncpg.TransactionRollbackError,
    asyncpg.LockNotAvailableError,
    asyncpg.InsufficientResourcesError,
    asyncpg.PostgresSystemError,
)

Record = asyncpg.Record


class Connection:
    """One connection that knows our schema; every statement outside `transaction()` commits by itself."""

    def __init__(self, raw: asyncpg.Connection[Record], *, schema: str, begin: str | None) -> None:
        self.raw = raw
        self._schema = schema
        self._begin = begin

    @property
    def is_pooled(self) -> bool:
        """Whether others share the session: nothing of it may be set."""
        return self._begin is not None

    async def alone(self, sql: str) -> None:
        """Run one statement outside of any transaction, as some must be."""
        await self.raw.execute(schema_sql(sql, self._schema))

    async def fetch(self, sql: str, *args: Any) -> Sequence[Record]:
        """Run one statement and give its rows."""
        sql = schema_sql(sql, self._schema)
        try:
            if self._begin is None or self.raw.is_in_transaction():
                return await self.raw.fetch(sql, *args)
            async with self.transaction():
                return await self.raw.fetch(sql, *args)
        except asyncpg.InsufficientPrivilegeError as error:
            role = getattr(self.raw.get_settings(), "session_authorization", None)
            raise NotAllowed(role, error.args[0], schema=self._schema) from error

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Self]:
        """A transaction: commits at the end, rolls back on any exception."""
        if self._begin is None or self.raw.is_in_transaction():
            async with self.raw.transaction(isolation="read_committed" if self._begin is None else None):
                yield self
            return
        await self.raw.execute(self._begin)
        try:
            yield self
        except BaseException:
            await self.raw.execute("ROLLBACK")
            raise
        await self.raw.execute("COMMIT")


class Database:
    """At most `size` connections, last used first. Any error of the wire drops its connection."""

    def __init__(
        self,
        settings: Settings,
        *,
        size: int,
        flow: bool = False,
        dsn: str | None = None,
        longest: float | None = None,
    ) -> None:
        """`longest`: seconds after which Postgres itself gives up a statement, and a wait for a connection ends."""
        self.settings = settings
        self.schema = settings.postgres_schema
        self._dsn = dsn or settings.postgres_url
        self._session = (FLOW_PLANS if flow else {}) | (
            {} if longest is None else {"statement_timeout": f"{longest * 1000:.0f}"}
        )
        self._longest = longest
        self._is_cut = False
        self._pooled = settings.postgres_pooler == "transaction"
        self._free: deque[Connection] = deque()
        self._open: set[Connection] = set()
        self._permits = asyncio.Semaphore(size)
        POOLS.add(self)
        # A statement without an answer (a network that was cut) must not outlast the lease it works for.
        self._patience = max(5.0, settings.lease_seconds / 2) if flow else 60.0

    async def close(self) -> None:
        """Close every connection; those in use are cut."""
        open_now, self._open = self._open, set()
        self._free.clear()
        for connection in open_now:
            try:
                await asyncio.wait_for(connection.raw.close(), 2)
            except (*UNAVAILABLE, asyncpg.PostgresError):
                connection.raw.terminate()

    def usage(self) -> tuple[int, int, int]:
        """Connections in use, idle ones, and how many wait for one."""
        idle = len(self._free)
        waiting = getattr(self._permits, "_waiters", None) or ()  # nobody else counts them
        return max(0, len(self._open) - idle), idle, len(waiting)

    def cut(self) -> None:
        """Break every connection and open none any more, as the death of the process does."""
        self._is_cut = True
        for connection in list(self._open):
            self._drop(connection)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """A connection of one's own until the block ends; PostgresUnavailable when there is none to be had."""
        async with self._permits if self._longest is None else self._permit():
            connection = await self._take()
            try:
                yield connection
            except BaseException as error:
                # StreamsDown is an OSError too: whoever raises one of ours inside the block knows what it is.
                unavailable = isinstance(error, UNAVAILABLE) and not isinstance(error, QueueError)
                # A cancelled statement may still run: its answer must not be read by the next user.
                if unavailable or isinstance(error, asyncio.CancelledError) or _is_unclean(connection):
                    self._drop(connection)
                else:
                    self._free.append(connection)
                if unavailable:
                    read_only = isinstance(error, asyncpg.ReadOnlySQLTransactionError)
                    what = "takes no writes now" if read_only else "did not answer"
                    raise PostgresUnavailable(f"Postgres {what} ({_short(error)})") from error
                if isinstance(error, TRANSIENT):
                    raise PostgresUnavailable(f"Postgres could not do it now ({_short(error)})") from error
                raise
            self._free.append(connection)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """A transaction on a connection of its own."""
        async with self.connection() as connection, connection.transaction():
            yield connection

    async def fetch(self, sql: str, *args: Any) -> Sequence[Record]:
        """Run one statement that commits by itself."""
        async with self.connection() as connection:
            return await connection.fetch(sql, *args)

    async def fetchval(self, sql: str, *args: Any) -> Any:
        """First column of the first row, or None."""
        rows = await self.fetch(sql, *args)
        return rows[0][0] if rows else None

    @asynccontextmanager
    async def _permit(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._longest):
                await self._permits.acquire()
        except TimeoutError as error:
            raise PostgresUnavailable(f"every connection was in use for {self._longest:g} s") from error
        try:
            yield
        finally:
            self._permits.release()

    async def _take(self) -> Connection:
        while self._free:
            connection = self._free.pop()
            if not connection.raw.is_closed():
                return connection
            self._open.discard(connection)
        connection = await self._connect()
        self._open.add(connection)
        return connection

    def _drop(self, connection: Connection) -> None:
        self._open.discard(connection)
        connection.raw.terminate()

    async def _connect(self) -> Connection:
        if self._is_cut:
            raise PostgresUnavailable("this worker was cut off from Postgres: a test has killed it")
        if self._dsn is None:
            raise PostgresUnavailable("no Postgres URL: set AAICLICK_QUEUE_POSTGRES_URL or start the embedded one")
        try:
            raw = await self._dial()
            await _read_all_moments(raw)
        except asyncpg.InvalidCatalogNameError as error:
            raise PostgresUnavailable(
                f"Postgres at {masked(self._dsn)} has no such database ({error.args[0]}): "
                "create it with createdb, or correct AAICLICK_QUEUE_POSTGRES_URL"
            ) from error
        except (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidPasswordError) as error:
            raise PostgresUnavailable(
                f"Postgres at {masked(self._dsn)} refused the login ({error.args[0]}): "
                "correct user and password in AAICLICK_QUEUE_POSTGRES_URL; special characters percent-encoded, "
                "?sslmode=verify-full where it wants TLS"
            ) from error
        except ssl.SSLError as error:
            raise PostgresUnavailable(
                f"no TLS with Postgres at {masked(self._dsn)} ({_short(error)}): "
                "check sslmode, sslrootcert, sslcert and sslkey in AAICLICK_QUEUE_POSTGRES_URL, and that the "
                "certificate names this host"
            ) from error
        except (*UNAVAILABLE, ValueError) as error:
            raise PostgresUnavailable(
                f"cannot reach Postgres at {masked(self._dsn)} ({_short(error)}): "
                "start it, or correct AAICLICK_QUEUE_POSTGRES_URL; unset it for an embedded one"
            ) from error
        return Connection(raw, schema=self.schema, begin=self._pooled_begin() if self._pooled else None)

    async def _dial(self) -> asyncpg.Connection[Record]:
        assert self._dsn is not None
        if not self._pooled:
            given = SESSION | self._session
            try:
                return await dial(self._dsn, command_timeout=self._patience, server_settings=given, **PREPARED)
            except asyncpg.ProtocolViolationError as error:
                if "startup parameter" not in str(error):
                    raise
                self._pooled = True  # pgbouncer gave itself away
        return await dial(self._dsn, command_timeout=self._patience, statement_cache_size=0)

    def _pooled_begin(self) -> str:
        return "; ".join([POOLED_BEGIN, *(f"SET LOCAL {name} = {value}" for name, value in self._session.items())])


# Those of this process, for whoever wants to know how full they are.
POOLS: weakref.WeakSet[Database] = weakref.WeakSet()


async def _read_all_moments(raw: asyncpg.Connection[Record]) -> None:
    """Have every moment that Postgres can keep read; costs no round trip."""
    for name, encoder, decoder in (
        ("timestamptz", moments.encoded, moments.decoded),
        ("timestamp", moments.encoded_naive, moments.decoded_naive),
    ):
        await raw.set_type_codec(name, schema="pg_catalog", encoder=encoder, decoder=decoder, format="tuple")


def _is_unclean(connection: Connection) -> bool:
    return connection.raw.is_closed() or connection.raw.is_in_transaction()


# Of a URL with several hosts, the one that took our last connection: the next one begins there.
_answered: dict[str, str] = {}


async def dial(url: str, *, seconds: float = DIAL_SECONDS, **given: Any) -> asyncpg.Connection[Record]:
    """A bare connection, by a URL with all that may stand in one: hosts, TLS, a password file."""
    hosts = each_host(url)
    hosts.sort(key=lambda host: host != _answered.get(url))
    failed: BaseException | None = None
    for host in hosts:
        try:
            # A share of the time for each: asyncpg has one for all of them, and a primary whose machine is gone, which
            # says neither yes nor no, would use up that of the standby which was promoted.
            raw: asyncpg.Connection[Record] = await asyncpg.connect(host, timeout=seconds / len(hosts), **given)
        except asyncpg.ProtocolViolationError:
            raise
        except UNAVAILABLE as error:
            failed = error
        else:
            if WRITABLE.search(host):  # else a standby that was asked once would be asked for ever
                _answered[url] = host
            return raw
    assert failed is not None
    raise failed


def each_host(url: str) -> list[str]:
    """The URL as asyncpg takes it, one for each host."""
    parts = urlsplit(url := writable(url))
    login, at, hosts = parts.netloc.rpartition("@")
    if "," not in hosts:
        return [url]
    return [urlunsplit(parts._replace(netloc=f"{login}{at}{host}")) for host in hosts.split(",")]


def writable(url: str) -> str:
    """The URL as libpq takes it; of several hosts it asks for the one that takes writes, unless it asks for others."""
    parts = urlsplit(url := plain_dsn(url))
    if "," not in parts.netloc.rpartition("@")[2] or "target_session_attrs=" in parts.query:
        return url
    return urlunsplit(parts._replace(query=f"{parts.query}&target_session_attrs=read-write".lstrip("&")))


def plain_dsn(url: str) -> str:
    """The URL without the name of a driver."""
    scheme, rest = url.split("://", 1)
    return f"postgresql://{rest}" if scheme != "postgresql" else url


def _short(error: BaseException) -> str:
    return str(error) or type(error).__name__
