"""Page of operations: changes to many tasks, how far each is, and how to stop one."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from ...operations import read_operations
from ..drawing.charts import state_bar
from .visiting import Visiting

router = APIRouter(include_in_schema=False)


@router.get("/operations")
async def operations(at: Visiting) -> HTMLResponse:
    """The newest hundred."""
    rows = [
        (
            one,
            state_bar([("completed", min(one.done, one.total)), ("pending", max(0, one.total - one.done))],
                      label=f"{one.done:,} of {one.total:,}", width=120)
            if one.total else None,
        )
        for one in await read_operations(at.db, limit=100)
    ]  # fmt: skip
    return await at.show(
        "operations.html", section="operations", title="Operations", topics="operations,tasks", rows=rows
    )
