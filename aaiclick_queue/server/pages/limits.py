"""Page of limits: what may run at once and how often, and how much of it is taken."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from ...flow.limits import LimitView
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


def limit_fields(
    limits: Sequence[LimitView], *, max_depth: int | None, objective: float | None
) -> list[dict[str, Any]]:
    """What the dialog of a queue asks for, with what is set now; one that is emptied is taken away."""
    now = {one.kind: one for one in limits if not one.per_key}
    running, rate = now.get("running"), now.get("rate")
    number = {"type": "number", "min": 1}
    return [
        _field("running", "Running at once", running.n if running else None, **number),
        _field("rate", "Starts, as 100/min", _rate(rate) if rate else None),
        _field("max_depth", "Most tasks in the queue", max_depth, **number),
        _field(
            "objective_seconds", "Oldest should wait at most (seconds)", objective, type="number", min=0, step="any"
        ),
    ]


def _field(name: str, label: str, value: Any, **more: Any) -> dict[str, Any]:
    kept = {} if value is None else {"value": value, "null": ""}
    return {"name": name, "label": label, **more, **kept}


def _rate(limit: LimitView) -> str:
    return f"{limit.n}/{limit.seconds:.12g}s"
