"""The payment service as this process sees it: it knows idempotency keys, as good ones do."""

from __future__ import annotations

charged: dict[str, int] = {}
calls: list[str] = []


async def charge(key: str, cents: int) -> str:
    """Charge once for a key, however often it is asked; gives the reference."""
    calls.append(key)
    charged.setdefault(key, cents)
    return f"ref-{key}"
