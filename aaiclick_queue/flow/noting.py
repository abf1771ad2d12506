"""Noting: writes one event of the system, in the transaction of what it tells of."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..schema import Transaction

NOTE = """
INSERT INTO aaiclick_queue.system_events (type, made_by, data) VALUES ($1::text, $2::text, $3::text::jsonb)
"""


async def note(tx: Transaction, kind: str, *, by: str | None = None, data: Mapping[str, Any] | None = None) -> None:
    """Write that this has happened, and who did it."""
    await tx.fetch(NOTE, kind, by, json.dumps(dict(data or {}), default=str).replace("\\u0000", ""))
