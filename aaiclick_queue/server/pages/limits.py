"""Page of limits: what may run at once and how often, and how much of it is taken."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from ...flow.limits import list_limits as read_limits
from ..drawing.charts import state_bar
from .visiting import Visiting

router = APIRouter(include_in_schema=False)


@router.get("/limits")
async def limits(at: Visiting) -> HTMLResponse:
    """Every limit and pause there is."""
    found = await read_limits(at.db)
    rows = [
        (
            one,
            state_bar([("running", min(one.used, one.n)), ("free", max(0, one.n - one.used))],
                      label=f"{one.used} of {one.n} taken", width=96)
            if one.kind in ("running", "rate") and not one.per_key and one.n else None,
        )
        for one in found
    ]  # fmt: skip
    return await at.show("limits.html", section="limits", title="Limits", topics="queues,limits", rows=rows)
