"""The audit: before anything is changed over HTTP, who asked for what is written down; if it cannot be, nothing is."""

from __future__ import annotations

from typing import Any

import msgspec

from .desk import Desk
from .roles import Who

AUDIT = "INSERT INTO aaiclick_queue.system_events (type, made_by, data) VALUES ('AUDIT', $1::text, $2::text::jsonb)"


async def audit(desk: Desk, who: Who, action: str, **told: Any) -> None:
    """Write down what is about to be done; raises when that fails."""
    data = {"action": action, "role": who.role, "how": who.how, "address": who.address, **told}
    known = {name: value for name, value in data.items() if value not in (None, {}, [])}
    await desk.db.fetch(AUDIT, who.name, msgspec.json.encode(known).decode().replace("\\u0000", ""))
