"""API tokens: made once and shown once; what is kept is a digest, so that the table gives nobody access."""

from __future__ import annotations

import hashlib
import secrets
from datetime import datetime, timedelta
from typing import Literal

import msgspec

from .errors import BadTask
from .schema import Transaction

Role = Literal["reader", "writer", "admin"]
RANKS: dict[str, int] = {"reader": 1, "writer": 2, "admin": 3}
PREFIX = "aaq_"
NAME_LIMIT = 200

CREATE_TOKEN = """
INSERT INTO aaiclick_queue.tokens (name, role, expires_at, made_by, digest)
VALUES ($1::text, $2::text, now() + make_interval(secs => $3::float8), $4::text, $5::bytea)
RETURNING id::text AS id, name, role, created_at, expires_at, revoked_at, used_at, made_by
"""
TOKENS = """
SELECT k.id::text AS id, k.name, k.role, k.created_at, k.expires_at, k.revoked_at, k.used_at, k.made_by
FROM aaiclick_queue.tokens k WHERE k.id < $1::bigint ORDER BY k.id DESC LIMIT $2
"""
REVOKE_TOKEN = """
UPDATE aaiclick_queue.tokens SET revoked_at = coalesce(revoked_at, now()) WHERE id = $1::bigint
RETURNING id::text AS id, name, role, created_at, expires_at, revoked_at, used_at, made_by
"""
VALID_TOKENS = """
SELECT EXISTS (SELECT FROM aaiclick_queue.tokens
               WHERE revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now()))
"""


class TokenView(msgspec.Struct, frozen=True):
    """One token; what it opens with is not known any more."""

    id: str
    name: str
    role: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    used_at: datetime | None
    made_by: str | None


class NewToken(TokenView, frozen=True, kw_only=True):
    """A token that was just made; `token` is shown this once."""

    token: str


async def create_token(
    tx: Transaction, name: str, role: str, *, lasts: float | timedelta | None = None, by: str | None = None
) -> NewToken:
    """Make a token; the text it opens with is in the answer and nowhere else."""
    if not 1 <= len(name) <= NAME_LIMIT or "\x00" in name:
        raise BadTask(f"name={name!r}: give a text of 1 to {NAME_LIMIT} characters")
    if role not in RANKS:
        raise BadTask(f"role={role!r}: there are {', '.join(RANKS)}")
    seconds = lasts.total_seconds() if isinstance(lasts, timedelta) else lasts
    if seconds is not None and not 1 <= seconds <= 100 * 366 * 86400:
        raise BadTask(f"a token that lasts {seconds:g} s: give 1 s to 100 years, or nothing for one that stays")
    token = PREFIX + secrets.token_urlsafe(32)
    [row] = await tx.fetch(CREATE_TOKEN, name, role, seconds, by, digest_of(token))
    return NewToken(**dict(row), token=token)


async def list_tokens(tx: Transaction, *, limit: int = 100, before: int = 2**63 - 1) -> list[TokenView]:
    """Tokens, newest first, those that are revoked or over too."""
    return [TokenView(**dict(row)) for row in await tx.fetch(TOKENS, before, limit)]


async def revoke_token(tx: Transaction, token_id: int) -> TokenView | None:
    """End a token and its sessions now; None when there is none of that id."""
    rows = await tx.fetch(REVOKE_TOKEN, token_id)
    return TokenView(**dict(rows[0])) if rows else None


def digest_of(token: str) -> bytes:
    """What is kept of a token: it has 256 random bits, so that no slow hash is needed."""
    return hashlib.sha256(token.encode(errors="replace")).digest()
