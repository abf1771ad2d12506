"""Where Redis is: the URLs that are understood, and which of several servers is the primary now.

Before: settings.py has the URL. After: streams.py opens a Wire (redis_wire.py) to what `Server.connection` gives.
"""

from __future__ import annotations

import re
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import msgspec

from .errors import SettingsError, StreamsDown
from .redis_wire import CONNECT_SECONDS, ask

if TYPE_CHECKING:
    from collections.abc import Sequence

TLS_OPTIONS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname")


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
        given |= {"socket_timeout": None, "socket_connect_timeout": CONNECT_SECONDS, "protocol": 2}
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
            [answer] = await ask(connection, [command])
        finally:
            await connection.disconnect(nowait=True)
        if isinstance(answer, Exception):
            raise answer
        return answer


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
