"""Idempotency keys: a POST that is sent again gives what the first one made, for a day.

Kept as dedupe keys of two scopes: the key, and the key with the body, so that another body under the same key is seen.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastapi import Header

from ..schema import Transaction
from .desk import Desk
from .problems import Problem
from .roles import Who

KEPT_SECONDS = 86400.0
KEYS, BODIES = "http key", "http body"

HOLDER = """
SELECT d.task_id,
       EXISTS (SELECT FROM aaiclick_queue.dedupe b WHERE b.scope = $3::text AND b.key = $4::text) AS same_body
FROM aaiclick_queue.dedupe d WHERE d.scope = $1::text AND d.key = $2::text AND d.until > now()
"""
# One that is over is taken again; one that another transaction is writing is waited for.
TAKE = """
INSERT INTO aaiclick_queue.dedupe AS d (scope, key, task_id, until)
VALUES ($1::text, $2::text, $3::bigint, now() + make_interval(secs => $4::float8))
ON CONFLICT (scope, key) DO UPDATE SET task_id = excluded.task_id, until = excluded.until, first_at = now()
WHERE d.until <= now() RETURNING task_id
"""

IdempotencyKey = Annotated[
    str | None, Header(max_length=200, description="The same key again within 24 hours gives the first answer.")
]


class _Taken(Exception):
    pass


class Once:
    """One POST under its key."""

    def __init__(self, desk: Desk, who: Who, key: str, what: str, body: bytes) -> None:
        # By the number of a token: names of tokens need not be different.
        name = _digest(f"{who.token_id}\n{who.name}\n{what}\n{key}".encode())
        self._desk = desk
        self._key = name
        self._body = f"{name} {_digest(body)}"

    async def before(self) -> int | None:
        """What the first one made; None when this is the first."""
        rows = await self._desk.db.fetch(HOLDER, KEYS, self._key, BODIES, self._body)
        if not rows:
            return None
        if not rows[0]["same_body"]:
            raise Problem(
                422,
                "this Idempotency-Key was sent with another body within the last 24 hours: use a new key",
                kind="idempotency-key-reused",
            )
        made: int = rows[0]["task_id"]
        return made

    async def make(self, make: Callable[[Any], Awaitable[int]]) -> tuple[int, bool]:
        """Make it in a transaction with its key; gives its id, and whether it was made now."""
        if (made := await self.before()) is not None:
            return made, False
        try:
            async with self._desk.db.transaction() as tx:
                number = await make(tx.raw)
                if not await self._take(tx, number):
                    raise _Taken  # noqa: TRY301 - it is what rolls the transaction back
        except _Taken:
            made = await self.before()
            assert made is not None
            return made, False
        return number, True

    async def _take(self, tx: Transaction, number: int) -> bool:
        if not await tx.fetch(TAKE, KEYS, self._key, number, KEPT_SECONDS):
            return False
        await tx.fetch(TAKE, BODIES, self._body, number, KEPT_SECONDS)
        return True


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
