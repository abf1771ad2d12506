"""Whose token, and whose session: what is shown with a request, looked up."""

from __future__ import annotations

import hashlib
import hmac
import time

from ..schema import Transaction
from ..tokens import Role, digest_of
from .roles import Who

SESSION_SECONDS = 12 * 3600

_KNOWN = """
SELECT id, name, role, digest, coalesce(used_at < now() - interval '1 minute', true) AS is_stale
FROM aaiclick_queue.tokens WHERE {which} AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now())
"""
TOKEN_BY_DIGEST = _KNOWN.format(which="digest = $1::bytea")
# A session that somebody has ended is known by the event of that, which outlives it; there are as many as sign-outs.
ENDED = "SESSION_ENDED"
TOKEN_OF_SESSION = _KNOWN.format(
    which=f"""id = $1::bigint AND NOT EXISTS (
    SELECT FROM aaiclick_queue.system_events e WHERE e.type = '{ENDED}' AND e.data->>'session' = $2::text
      AND e.created_at > now() - interval '12 hours')"""
)
END_SESSION = f"""
INSERT INTO aaiclick_queue.system_events (type, made_by, data)
VALUES ('{ENDED}', $1::text, jsonb_build_object('session', $2::text))
"""
TOKEN_USED = """
UPDATE aaiclick_queue.tokens SET used_at = now()
WHERE id = $1::bigint AND (used_at IS NULL OR used_at < now() - interval '1 minute')
"""


async def who_has(tx: Transaction, token: str, *, address: str | None) -> Who | None:
    """Whose token that is; None for one that is unknown, revoked or over."""
    digest = digest_of(token)
    rows = await tx.fetch(TOKEN_BY_DIGEST, digest)
    if not rows or not hmac.compare_digest(bytes(rows[0]["digest"]), digest):
        return None
    return await _known(tx, rows[0], "token", address)


async def who_in_session(tx: Transaction, cookie: str, *, address: str | None) -> Who | None:
    """Whose session that is; None when it is over, or its token is."""
    token_id, _, rest = cookie.partition(".")
    until, _, seal = rest.partition(".")
    if not (_is_number(token_id) and _is_number(until)) or int(until) < time.time() or int(token_id) >= 2**63:
        return None
    rows = await tx.fetch(TOKEN_OF_SESSION, int(token_id), _named(cookie))
    if not rows or not hmac.compare_digest(_seal(bytes(rows[0]["digest"]), token_id, until), seal.encode()):
        return None
    return await _known(tx, rows[0], "session", address)


def new_session(who: Who, token: str) -> str:
    """The cookie of a new session: sealed with the digest of its token, so that it ends with that."""
    until = str(int(time.time()) + SESSION_SECONDS)
    return f"{who.token_id}.{until}.{_seal(digest_of(token), str(who.token_id), until).decode()}"


async def end_session(tx: Transaction, who: Who, cookie: str) -> None:
    """Let nobody in by that cookie any more, on whatever server."""
    await tx.fetch(END_SESSION, who.name, _named(cookie))


async def _known(tx: Transaction, row: object, how: str, address: str | None) -> Who:
    found = dict(row)  # type: ignore[call-overload]
    if found["is_stale"]:
        await tx.fetch(TOKEN_USED, found["id"])
    role: Role = found["role"]
    return Who(found["name"], role, how, found["id"], address)  # type: ignore[arg-type]


def _seal(digest: bytes, token_id: str, until: str) -> bytes:
    return hmac.new(digest, f"session {token_id} {until}".encode(), hashlib.sha256).hexdigest().encode()


def _named(cookie: str) -> str:
    """What is written down of a session, which opens nothing."""
    return hashlib.sha256(cookie.encode(errors="replace")).hexdigest()[:32]


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 20
