"""The guard: finds out who asks. Nobody is let in by default but those who show a token.

`open` is for a server that only this machine can reach: whoever asks is admin, under the name `local`, if the request
names a host that is ours (a page of another site, whose name was pointed at 127.0.0.1, does not).
"""

from __future__ import annotations

import ipaddress
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import msgspec
from starlette.requests import Request

from ..tokens import digest_of
from .auditing import audit
from .csrf import check_origin
from .desk import Opening
from .problems import Problem
from .roles import Who
from .tokens import end_session, new_session, who_has, who_in_session

Auth = Literal["tokens", "open"] | Callable[[Request], Awaitable[Who | None]]
LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
COOKIE = "aaiclick_queue_session"
FAILURES = 10  # wrong tokens from one address within a minute
FAILURE_SECONDS = 60.0
TRUST_SECONDS = 300.0  # a token that was right so lately is not kept out because of others behind the same address
REMEMBERED = 10_000
_FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip")


class Rules(msgspec.Struct, frozen=True):
    """Who is let in, and how far."""

    auth: Auth = "tokens"
    allowed_hosts: Sequence[str] = ()
    any_host: bool = False
    read_only: bool = False


class Guard:
    """Finds out who asks, and remembers who was wrong how often."""

    def __init__(self, rules: Rules, opening: Opening) -> None:
        self.rules = rules
        self._opening = opening
        self._failures: OrderedDict[str, list[float]] = OrderedDict()
        self._trying: dict[str, Counter[bytes]] = {}
        self._trusted: OrderedDict[bytes, float] = OrderedDict()

    @property
    def is_open(self) -> bool:
        """Whether nobody has to show anything."""
        return self.rules.auth == "open"

    async def who(self, request: Request) -> Who:
        """Who asks; a problem for those who cannot say."""
        found = await self.seen(request)
        if found is None:
            raise Problem(
                401,
                "this needs an API token: make one with `aaiclick-queue token create NAME --role ROLE` and send it as "
                "Authorization: Bearer aaq_…, or sign in at /login",
                headers={"WWW-Authenticate": 'Bearer realm="aaiclick-queue"'},
            )
        return found

    async def seen(self, request: Request) -> Who | None:
        """Who asks; None for those who have shown nothing, or a session that is over."""
        found = await self._find(request)
        if found is not None and self.rules.read_only and found.role != "reader":
            found = msgspec.structs.replace(found, role="reader")
        return found

    async def _find(self, request: Request) -> Who | None:
        auth, address = self.rules.auth, address_of(request)
        if callable(auth):
            own = await auth(request)
            return None if own is None else msgspec.structs.replace(own, address=own.address or address)
        if auth == "open":
            self._check_not_forwarded(request)
            return Who("local", "admin", "open", None, address)
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return await self.check_token(request, token.strip())
        if cookie := request.cookies.get(COOKIE):
            return await who_in_session((await self._opening.desk()).db, cookie, address=address)
        return None

    async def check_token(self, request: Request, token: str) -> Who:
        """Whose token it is; a problem when it is nobody's, and for a while after ten of those."""
        address, digest = address_of(request) or "", digest_of(token)
        network = network_of(address)
        if self._trusted.get(digest, -TRUST_SECONDS) + TRUST_SECONDS < time.monotonic():
            self._check_failures(network, digest)
        with self._trying_it(network, digest):
            found = await who_has((await self._opening.desk()).db, token, address=address)
        if found is None:
            self._trusted.pop(digest, None)
            self._remember_failure(network)
            raise Problem(
                401,
                "this token is unknown, revoked or over: `aaiclick-queue token list` shows those there are",
                headers={"WWW-Authenticate": 'Bearer realm="aaiclick-queue", error="invalid_token"'},
            )
        self._trusted[digest] = time.monotonic()
        _bound(self._trusted)
        return found

    async def sign_in(self, request: Request, token: str) -> str:
        """The cookie of a new session for whoever has that token."""
        who = await self.check_token(request, token)
        await audit(await self._opening.desk(), who, "sign_in")
        return new_session(who, token)

    async def sign_out(self, request: Request) -> None:
        """End the session of this request, if it has one that is not over."""
        cookie = request.cookies.get(COOKIE)
        if self.rules.auth != "tokens" or not cookie:
            return
        desk = await self._opening.desk()
        if who := await who_in_session(desk.db, cookie, address=address_of(request)):
            await audit(desk, who, "sign_out")
            await end_session(desk.db, who, cookie)

    def check_host(self, request: Request) -> None:
        """Refuse a request that names a host which is not ours."""
        if self.rules.any_host or (not self.is_open and not self.rules.allowed_hosts):
            return
        host = request.headers.get("host", "")
        name = host[1 : host.find("]")] if host.startswith("[") else host.rpartition(":")[0] or host
        if name.lower() not in LOCAL_HOSTS | {one.lower() for one in self.rules.allowed_hosts}:
            raise Problem(
                421,
                f"this server is not called {name!r}: use localhost, or start it with --allowed-host {name}",
                kind="unknown-host",
            )

    def check_origin(self, request: Request, who: Who) -> None:
        """Refuse what another site has a browser do in our user's name."""
        if who.how != "token":
            check_origin(request)

    def _check_not_forwarded(self, request: Request) -> None:
        address = address_of(request)
        if self.rules.any_host or (_is_local(address) and not any(one in request.headers for one in _FORWARDED)):
            return
        raise Problem(
            403,
            f"this server is open to its own machine alone, and a proxy sent this for {address}: start it with "
            "--auth tokens, and make a token with `aaiclick-queue token create`",
        )

    def _check_failures(self, network: str, digest: bytes) -> None:
        """Refuse one more token from there; those that are being looked up may be as wrong as those that were."""
        now = time.monotonic()
        recent = [at for at in self._failures.get(network, ()) if now - at < FAILURE_SECONDS]
        others = self._trying.get(network, {}).keys() - {digest}
        if len(recent) + len(others) >= FAILURES:
            wait = int(FAILURE_SECONDS - (now - recent[0])) + 1 if len(recent) >= FAILURES else 1
            raise Problem(
                429,
                f"too many wrong tokens from {network or 'this address'}: try again in {wait} s",
                headers={"Retry-After": str(wait)},
            )

    @contextmanager
    def _trying_it(self, network: str, digest: bytes) -> Iterator[None]:
        """Count a token among those that are being looked up: many at once would all pass before the first is known."""
        trying = self._trying.setdefault(network, Counter())
        trying[digest] += 1
        try:
            yield
        finally:
            trying[digest] -= 1
            if not trying[digest]:
                del trying[digest]
            if not trying:
                self._trying.pop(network, None)

    def _remember_failure(self, network: str) -> None:
        now = time.monotonic()
        recent = [at for at in self._failures.pop(network, ()) if now - at < FAILURE_SECONDS]
        self._failures[network] = [*recent, now][-FAILURES:]
        _bound(self._failures)


def address_of(request: Request) -> str | None:
    """Where the request came from."""
    return request.client.host if request.client else None


def network_of(address: str) -> str:
    """What wrong tokens are counted for: an address, or of IPv6 the /64 that one machine has all addresses of."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address) or found.ipv4_mapped:
        return str(getattr(found, "ipv4_mapped", None) or found)
    return str(ipaddress.ip_network((found, 64), strict=False))


def _is_local(address: str | None) -> bool:
    try:
        return address is None or ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _bound(kept: OrderedDict[str, list[float]] | OrderedDict[bytes, float]) -> None:
    while len(kept) > REMEMBERED:
        kept.popitem(last=False)
