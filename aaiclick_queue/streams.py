"""Wake-ups over Redis streams: the relay publishes hints, idle workers listen; claims go to Postgres all the same.

Hints may repeat, get lost or come late, so nothing here retries, and every call is bounded in time and in memory.
The only importer of redis. It speaks over bare connections, because a pool gives a half-read connection to the next
caller and reconnects without a word; here a call that does not end cleanly costs the connection, and the next one
knows that its connection is new. `Server` lists the URLs that are understood.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections import defaultdict, deque
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import msgspec

from .errors import SettingsError, StreamsDown

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence

CALL_SECONDS = 0.25
LISTEN_MARGIN_SECONDS = 1.0
ENTRIES_KEPT = 10_000
TASKS_AN_ENTRY = 100
ENTRIES_A_QUEUE = 32
ENTRIES_READ = 8
SWEEP_QUEUES = 100
SWEEP_CONSUMERS = 1_000

# UNBLOCKED: the key went away during the read. WRONGTYPE does not say of which key; making the groups does.
# The last is what fakeredis says for NOGROUP.
NO_GROUP = ("NOGROUP", "UNBLOCKED", "WRONGTYPE", "The XGROUP subcommand requires the key")

INT4, INT8 = 2**31 - 1, 2**63 - 1


class Hint(msgspec.Struct, frozen=True):
    """About `n` tasks became ready in this queue, the first of them at (rank, order_key) in line."""

    queue: str
    rank: int
    order_key: int
    n: int
    task_ids: tuple[int, ...] = ()


class Heard(msgspec.Struct, frozen=True):
    """What a listen brought; `rescan` says that hints may have been missed, so look at Postgres."""

    hints: tuple[Hint, ...]
    rescan: bool


class Streams:
    """One process's wires to Redis: one connection to publish and one for each listening consumer."""

    def __init__(self, url: str, *, prefix: str = "aaiq", client: Any | None = None) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", prefix):
            # A brace in it would move the hash tag, and an empty one would unmake it: CROSSSLOT in a Cluster.
            raise SettingsError(
                f"AAICLICK_QUEUE_REDIS_PREFIX = {prefix!r}: give 1 to 64 letters, digits, dots, dashes or underscores"
            )
        # Here and not in the first call: the import takes longer than a call may.
        import redis.asyncio  # noqa: F401

        self._prefix = prefix
        self._client = client
        self._server = Server.parse(url) if client is None else None
        self._shown = self._server.shown if self._server else "the given client"
        self._pen = _Line(self._made)
        self._ears: defaultdict[str, _Line] = defaultdict(lambda: _Line(self._made))
        self._is_closed = False

    def key(self, queue: str) -> str:
        """The stream of a queue; the first pair of braces is the Cluster hash tag, so all lie in one slot."""
        return f"{{{self._prefix}}}:wake:{queue}"

    async def publish(self, hints: Sequence[Hint]) -> None:
        """Write the hints, merged per queue, in one round trip of at most 250 ms; or raise StreamsDown."""
        entries = list(_entries(hints))
        if not entries:
            return
        keys = [self.key(entry.queue) for entry in entries]
        commands = [_xadd(key, entry) for key, entry in zip(keys, entries, strict=True)]
        async with self._bounded("take wake-ups", CALL_SECONDS), self._pen.taken() as (connection, _):
            self._refuse_errors(keys, await _ask(connection, commands))

    async def listen(self, queues: Sequence[str], *, consumer: str, seconds: float) -> Heard:
        """Wait for hints of these queues; at once with `rescan` where some may have been missed.

        A new connection is such a case: without acknowledgements a hint sent to the old one is gone.
        """
        names = {self.key(queue).encode(): queue for queue in queues}
        if not names:
            await asyncio.sleep(seconds)
            return Heard((), rescan=False)
        within = max(seconds, 0) + LISTEN_MARGIN_SECONDS
        async with self._bounded("give wake-ups", within), self._ears[consumer].taken() as (connection, is_new):
            # COUNT is per stream: shared out, so that one worker does not eat a burst meant for many.
            count = max(1, ENTRIES_READ // len(names))
            block = () if is_new or seconds <= 0 else ("BLOCK", max(1, int(seconds * 1000)))
            read = ("XREADGROUP", "GROUP", self._prefix, consumer, "COUNT", count, *block, "NOACK", "STREAMS")
            [answer] = await _ask(connection, [(*read, *names, *[">"] * len(names))])
            if isinstance(answer, Exception) and str(answer).startswith(NO_GROUP):
                await self._create_groups(connection, names)
                return Heard((), rescan=True)
            self._refuse_errors([""], [answer])
        return _heard(answer, names, rescan=is_new)

    async def _create_groups(self, connection: Any, names: Mapping[bytes, str]) -> None:
        create = [("XGROUP", "CREATE", key, self._prefix, "$", "MKSTREAM") for key in names]
        answers = await _ask(connection, create)
        made = [None if str(answer).startswith("BUSYGROUP") else answer for answer in answers]
        self._refuse_errors([self.key(queue) for queue in names.values()], made)

    async def leave(self, queues: Sequence[str], consumer: str) -> None:
        """Take a consumer out of the groups, as well as 250 ms allow."""
        if ear := self._ears.pop(consumer, None):
            await ear.hang_up()
        commands = [self._delete_consumer(self.key(queue), consumer) for queue in queues]
        with suppress(StreamsDown):
            async with self._bounded("let a consumer go", CALL_SECONDS), self._pen.taken() as (connection, _):
                await _ask(connection, commands)

    async def sweep(self, queues: Sequence[str], *, idle_seconds: float) -> int:
        """Remove consumers idle for longer, as far as 250 ms allow; one that comes back is simply made again."""
        removed = 0
        # In any order: queues that one sweep has no time for get their turn in another.
        keys = random.sample([self.key(queue) for queue in queues], len(queues))
        with suppress(StreamsDown):
            async with self._bounded("sweep consumers", CALL_SECONDS), self._pen.taken() as (connection, _):
                for start in range(0, len(keys), SWEEP_QUEUES):
                    some = keys[start : start + SWEEP_QUEUES]
                    told = await _ask(connection, [("XINFO", "CONSUMERS", key, self._prefix) for key in some])
                    dead = [
                        self._delete_consumer(key, name)
                        for key, consumers in zip(some, told, strict=True)
                        for name in _idle(consumers, idle_seconds)
                    ]
                    answers = await _ask(connection, dead[:SWEEP_CONSUMERS])
                    removed += sum(not isinstance(answer, Exception) for answer in answers)
        return removed

    def _delete_consumer(self, key: str, consumer: str | bytes) -> tuple[Any, ...]:
        return ("XGROUP", "DELCONSUMER", key, self._prefix, consumer)

    async def close(self) -> None:
        """Close every connection; later calls raise StreamsDown. A given client stays open."""
        self._is_closed = True
        ears = list(self._ears.values())
        self._ears.clear()
        for line in (self._pen, *ears):
            await line.hang_up()
        # One turn of the loop closes the sockets.
        await asyncio.sleep(0)

    async def _made(self) -> Any:
        if self._is_closed:
            raise StreamsDown("these streams were closed: make new ones to publish or listen again")
        if self._client is not None:
            return self._client.connection_pool.make_connection()
        assert self._server
        return await self._server.connection(self.key(""))

    @asynccontextmanager
    async def _bounded(self, doing: str, seconds: float) -> AsyncIterator[None]:
        """Everything within `seconds`, and whatever Redis did wrong as StreamsDown."""
        from redis.exceptions import RedisError

        try:
            async with asyncio.timeout(seconds):
                yield
        except StreamsDown:
            raise
        except (RedisError, OSError) as error:
            why = f"no answer within {seconds:g} s" if type(error) is TimeoutError else _why(error)
            raise StreamsDown(
                f"Redis at {self._shown} did not {doing}: {why}. No work is lost, workers poll Postgres meanwhile"
            ) from error

    def _refuse_errors(self, keys: Sequence[str], answers: Sequence[Any]) -> None:
        for key, answer in zip(keys, answers, strict=True):
            if isinstance(answer, Exception) and str(answer).startswith("WRONGTYPE"):
                raise StreamsDown(
                    f"the key {key!r} in Redis at {self._shown} is no stream: somebody else uses it; "
                    "delete or rename it, or set another AAICLICK_QUEUE_REDIS_PREFIX. Workers poll Postgres meanwhile"
                ) from answer
            if isinstance(answer, Exception):
                raise answer


class _Line:
    """One connection that serves one call at a time; a call that does not end cleanly closes it."""

    def __init__(self, make: Callable[[], Awaitable[Any]]) -> None:
        self._make = make
        self._lock = asyncio.Lock()
        self._connection: Any | None = None

    @asynccontextmanager
    async def taken(self) -> AsyncIterator[tuple[Any, bool]]:
        """The connection, and whether it is new."""
        async with self._lock:
            is_new, is_clean = self._connection is None, False
            try:
                if self._connection is None:
                    self._connection = await self._make()
                    await self._connection.connect()
                yield self._connection, is_new
                is_clean = True
            finally:
                # Also when cancelled: the answer of a cancelled read would be taken for that of the next call.
                if not is_clean:
                    await self.hang_up()

    async def hang_up(self) -> None:
        """Close the connection without waiting for the other side."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.disconnect(nowait=True)


async def _ask(connection: Any, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
    """The answers to all commands in one round trip; an error stands in its place in the list."""
    from redis.exceptions import ResponseError

    if not commands:
        return []
    await connection.send_packed_command(connection.pack_commands(commands))
    answers: list[Any] = []
    for _ in commands:
        try:
            answers.append(await connection.read_response(disable_decoding=True))
        except ResponseError as error:
            answers.append(error)
    return answers


def _entries(hints: Sequence[Hint]) -> Iterator[Hint]:
    """Per queue one entry for each hundred tasks, 32 at most: one entry wakes one worker."""
    merged: defaultdict[str, list[Hint]] = defaultdict(list)
    for hint in hints:
        merged[hint.queue].append(hint)
    for queue, same in merged.items():
        rank, order_key = min((hint.rank, hint.order_key) for hint in same)
        n = max(1, sum(hint.n for hint in same))
        ids = [task_id for hint in same for task_id in hint.task_ids]
        count = min(-(-n // TASKS_AN_ENTRY), ENTRIES_A_QUEUE)
        for i in range(count):
            yield Hint(queue, rank, order_key, n // count + (i < n % count), tuple(ids[i::count][:TASKS_AN_ENTRY]))


def _xadd(key: str, entry: Hint) -> tuple[Any, ...]:
    fields = ("rank", entry.rank, "order_key", entry.order_key, "n", entry.n)
    ids = ("task_ids", ",".join(map(str, entry.task_ids))) if entry.task_ids else ()
    return ("XADD", key, "MAXLEN", "~", ENTRIES_KEPT, "*", *fields, *ids)


def _heard(answer: Any, names: Mapping[bytes, str], *, rescan: bool) -> Heard:
    hints = []
    for key, entries in answer.items() if isinstance(answer, dict) else answer or ():
        for _, fields in entries:
            hint = _hint(names[key], _fields(fields))
            rescan = rescan or hint is None
            if hint is not None:
                hints.append(hint)
    return Heard(tuple(hints), rescan=rescan)


def _hint(queue: str, said: Mapping[Any, Any]) -> Hint | None:
    """The hint an entry holds; None where a newer or a hostile client wrote no place in line that can be read."""
    rank = _number(said.get(b"rank"), -INT4, INT4)
    order_key = _number(said.get(b"order_key"), 0, INT8)
    if rank is None or order_key is None:
        return None
    listed = bytes(said.get(b"task_ids", b""))[: 20 * TASKS_AN_ENTRY + 1].split(b",")
    ids = [_number(text, 0, INT8) for text in listed]
    whole = len(ids) <= TASKS_AN_ENTRY and None not in ids
    return Hint(
        queue,
        rank,
        order_key,
        _number(said.get(b"n"), 1, INT4) or 1,
        tuple(task_id for task_id in ids if task_id is not None) if whole else (),
    )


def _number(text: Any, low: int, high: int) -> int | None:
    if not isinstance(text, bytes) or not re.fullmatch(rb"-?[0-9]{1,19}", text):
        return None
    return number if low <= (number := int(text)) <= high else None


def _fields(answer: Any) -> Mapping[Any, Any]:
    if isinstance(answer, dict):
        return answer
    return dict(zip(answer[::2], answer[1::2], strict=False)) if isinstance(answer, list | tuple) else {}


def _idle(consumers: Any, seconds: float) -> list[bytes]:
    if not isinstance(consumers, list):
        return []  # an error: nobody made the group yet
    told = map(_fields, consumers)
    return [consumer[b"name"] for consumer in told if consumer.get(b"idle", 0) > seconds * 1000]


_FAILING_OVER = "it is starting or failing over; the next call looks for the primary again"
_DENIED = "check user and password in AAICLICK_QUEUE_REDIS_URL and the user's rights: +xadd +xreadgroup +xgroup +xinfo"
# redis-py 5 gives the cluster's errors no class of their own, only their first word.
_ADVICE = {
    "OutOfMemoryError": "it is out of memory: raise its maxmemory or give the queue a Redis of its own",
    **dict.fromkeys(("AuthenticationError", "NoPermissionError"), _DENIED),
    **dict.fromkeys(("ReadOnlyError", "BusyLoadingError", "MasterDownError"), _FAILING_OVER),
    **dict.fromkeys(("MovedError", "AskError", "TryAgainError", "ClusterDownError"), _FAILING_OVER),
    **dict.fromkeys(("MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN"), _FAILING_OVER),
}


def _why(error: Exception) -> str:
    advice = _ADVICE.get(type(error).__name__) or _ADVICE.get(str(error).partition(" ")[0])
    # redis-py tells of a refused connection or certificate less than what it caught.
    caught = error.__context__ if isinstance(error.__context__, OSError) else None
    text = str(caught or "") or str(error) or type(error).__name__
    return f"{text[:200]} ({advice or 'check that it runs and that AAICLICK_QUEUE_REDIS_URL names it'})"


class Server(msgspec.Struct):
    """Where Redis is, from a URL in one of these forms; user and password are percent-encoded.

    redis://[user:password@]host[:6379][/db]                               one server
    unix://[user:password@]/path/to/redis.sock[?db=0]                      one server on a unix socket
    redis+sentinel://[user:password@]host[:26379][,host...]/mymaster[/db]  the primary that the sentinels name
    redis+cluster://[user:password@]host[:6379][,host...]                  the cluster node that has our one slot

    `rediss` instead of `redis` is TLS, with the options of TLS_OPTIONS after a `?`. Sentinels are asked without
    the login first, and with it if they want one.
    """

    kind: str
    nodes: deque[tuple[str, int]]
    name: str
    login: dict[str, str]
    db: int
    tls: dict[str, Any] | None

    @classmethod
    def parse(cls, url: str) -> Server:
        """The server a URL names, or SettingsError; that repeats no part of the URL, as any may be a password."""
        kind, is_tls, parts = _scheme(url)
        login, _, hosts = parts.netloc.rpartition("@")
        path = [unquote(piece) for piece in parts.path.split("/") if piece]
        options = _options(parts.query, is_tls=is_tls)
        if kind == "unix":
            if hosts or not path:
                raise _bad("a unix socket is given by its whole path, after three slashes")
            nodes, path = [(unquote(parts.path), 0)], []
        else:
            nodes = [_node(host, 26379 if kind == "sentinel" else 6379) for host in hosts.split(",")]
        if kind == "single" and len(nodes) > 1:
            raise _bad("several hosts need redis+sentinel:// or redis+cluster://")
        if kind == "sentinel" and not path:
            raise _bad("the name of the primary is missing")
        name = path.pop(0) if kind == "sentinel" else ""
        db = _database([*path, *options.pop("db", ())], kind)
        return cls(kind, deque(nodes), name, _login(login), db, options if is_tls else None)

    @property
    def shown(self) -> str:
        """The server as people may see it: without the login."""
        if self.kind == "unix":
            return f"unix://{self.nodes[0][0]}"
        scheme = ("redis" if self.tls is None else "rediss") + ("" if self.kind == "single" else f"+{self.kind}")
        hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in sorted(self.nodes))
        return f"{scheme}://{hosts}" + (f"/{self.name}" if self.name else "")

    async def connection(self, key: str) -> Any:
        """A connection, yet to be opened, to the server that holds this key now."""
        host, port = self.nodes[0] if self.kind in ("single", "unix") else await self._primary(key)
        return self._to(host, port, db=self.db, **self.login)

    def _to(self, host: str, port: int, **given: Any) -> Any:
        from redis.asyncio.connection import Connection, SSLConnection, UnixDomainSocketConnection

        # No socket timeout, as every call has one of its own; no retry is the default of a bare connection.
        # RESP2: one shape of answers, also from servers that do not know HELLO.
        given |= {"socket_timeout": None, "socket_connect_timeout": LISTEN_MARGIN_SECONDS, "protocol": 2}
        if self.kind == "unix":
            return UnixDomainSocketConnection(path=host, **given)
        if self.tls is None:
            return Connection(host=host, port=port, **given)
        return SSLConnection(host=host, port=port, **given, **self.tls)

    async def _primary(self, key: str) -> tuple[str, int]:
        """Asked anew for every connection, so that reconnecting is all that a fail-over takes."""
        from redis.exceptions import RedisError

        failed: Exception | None = None
        for _ in range(len(self.nodes)):
            host, port = self.nodes[0]
            # To the end of the line until it has answered: a node that hangs costs one call, not each.
            self.nodes.rotate(-1)
            try:
                found = await (self._ask_sentinel(host, port) if self.name else self._ask_cluster(host, port, key))
            except (RedisError, OSError) as error:
                failed = error
                continue
            if found:
                self.nodes.rotate(1)
                return found
        if failed:
            raise failed
        what = f"a primary named {self.name!r}" if self.name else "an owner of the slot of the wake-ups"
        raise StreamsDown(f"no node of {self.shown} knows {what}: check AAICLICK_QUEUE_REDIS_URL and the nodes' state")

    async def _ask_sentinel(self, host: str, port: int) -> tuple[str, int] | None:
        from redis.exceptions import AuthenticationError

        question = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.name)
        try:
            answer = await self._answer(self._to(host, port), question)
        except AuthenticationError:
            answer = await self._answer(self._to(host, port, **self.login), question)
        return (answer[0].decode(), int(answer[1])) if answer else None

    async def _ask_cluster(self, host: str, port: int, key: str) -> tuple[str, int] | None:
        from redis.crc import key_slot

        slot = key_slot(key.encode())
        for first, last, owner, *_ in await self._answer(self._to(host, port, **self.login), ("CLUSTER", "SLOTS")):
            if first <= slot <= last:
                # A node that does not know its own name leaves it empty: it is the one just asked.
                return (owner[0] or b"").decode() or host, int(owner[1])
        return None

    async def _answer(self, connection: Any, command: tuple[str, ...]) -> Any:
        try:
            await connection.connect()
            [answer] = await _ask(connection, [command])
        finally:
            await connection.disconnect(nowait=True)
        if isinstance(answer, Exception):
            raise answer
        return answer


TLS_OPTIONS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname")


def _bad(what: str) -> SettingsError:
    return SettingsError(
        f"AAICLICK_QUEUE_REDIS_URL: {what}; give redis://[user:password@]host[:port][/db], unix:///path/to.sock, "
        "redis+sentinel://[user:password@]host[:port][,host...]/mymaster[/db] or "
        "redis+cluster://[user:password@]host[:port][,host...], with rediss instead of redis for TLS; "
        "special characters in user and password must be percent-encoded"
    )


def _scheme(url: str) -> tuple[str, bool, SplitResult]:
    try:
        parts = urlsplit(url)
    except ValueError:
        raise _bad("this is no URL") from None
    match = re.fullmatch(r"(?:redis(s?)(?:\+(sentinel|cluster))?)|(unix)", parts.scheme)
    if match is None:
        raise _bad("its scheme is unknown")
    if parts.fragment:
        raise _bad("it contains a '#'")
    return match[2] or match[3] or "single", match[1] == "s", parts


def _node(text: str, default_port: int) -> tuple[str, int]:
    try:
        parts = urlsplit("//" + text)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise _bad("a port is no number from 1 to 65535") from None
    if not host or port == 0:
        raise _bad("a host is missing" if not host else "a port is 0")
    return host, port or default_port


def _login(text: str) -> dict[str, str]:
    user, _, password = text.partition(":")
    given = {"username": unquote(user), "password": unquote(password)}
    return {name: value for name, value in given.items() if value}


def _database(given: Sequence[str], kind: str) -> int:
    if len(given) > 1 or not all(re.fullmatch(r"[0-9]{1,5}", number) for number in given):
        raise _bad("what follows the host is not one database number")
    db = int(given[0]) if given else 0
    if kind == "cluster" and db:
        raise _bad("a cluster has only the database 0")
    return db


def _options(query: str, *, is_tls: bool) -> dict[str, Any]:
    """What redis-py wants for the part after `?`; the database as a list, for it may stand elsewhere too."""
    allowed = ("db", *TLS_OPTIONS) if is_tls else ("db",)
    options: dict[str, Any] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in allowed:
            raise _bad(f"after '?' only {', '.join(allowed)} can stand (timeouts and retries are fixed)")
        options[name] = value
    if "db" in options:
        options["db"] = [options["db"]]
    for name in TLS_OPTIONS[:3]:
        if name in options and not Path(options[name]).is_file():
            raise _bad(f"{name} names no file")
    if is_tls:
        options.setdefault("ssl_cert_reqs", "required")
        if options["ssl_cert_reqs"] not in ("none", "optional", "required"):
            raise _bad("ssl_cert_reqs is none, optional or required")
        # Always said: left out, redis-py 5 takes a certificate of any host.
        check = options.get("ssl_check_hostname", "false" if options["ssl_cert_reqs"] == "none" else "true")
        if check not in ("true", "false"):
            raise _bad("ssl_check_hostname is true or false")
        options["ssl_check_hostname"] = check == "true"
    return options
