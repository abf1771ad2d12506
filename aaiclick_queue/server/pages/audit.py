"""Page of the audit, for admins: who changed what, and what happened to the system as a whole."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from ...system_events import read_system_events
from .trouble import not_found
from .visiting import Visiting

router = APIRouter(include_in_schema=False)
ROWS = 100


@router.get("/audit")
async def audit(at: Visiting) -> HTMLResponse:
    """System events, the newest first."""
    if not at.may("admin"):
        return await not_found(at, "the audit is for admins", section="audit")
    kind = at.asked("type").upper()
    found = await read_system_events(at.db, types=[kind] if kind else [], before=at.number("before"), limit=ROWS)
    return await at.show(
        "audit.html",
        section="audit",
        title="Audit",
        topics="events",
        rows=found,
        kind=kind,
        before=found[-1].id if len(found) >= ROWS else None,
    )
