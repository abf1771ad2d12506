"""Page of operations: changes to many tasks or jobs, how far each is, and how to stop one."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from fastapi.responses import HTMLResponse
from markupsafe import Markup

from ...operations import Operation, read_open_operations, read_operations
from ..drawing.charts import state_bar
from .visiting import Visiting

router = APIRouter(include_in_schema=False)
SHOWN = 100
FIRST = 20


@router.get("/operations")
async def operations(at: Visiting) -> HTMLResponse:
    """What is open and concerns many first, then the newest: a cancel of many jobs begins one for each of them."""
    first = await read_open_operations(at.db, limit=FIRST)
    shown = {one.id for one in first}
    others = [one for one in await read_operations(at.db, limit=SHOWN) if one.id not in shown]
    return await at.show(
        "operations.html",
        section="operations",
        title="Operations",
        topics="operations,tasks",
        rows=[(one, bar_of(one), words_of(one)) for one in [*first, *others][:SHOWN]],
    )


def bar_of(one: Operation) -> Markup | None:
    """How far it is, where it is known how many are meant."""
    if not one.total:
        return None
    counts = [("completed", min(one.done, one.total)), ("pending", max(0, one.total - one.done))]
    return state_bar(counts, label=f"{one.done:,} of {one.total:,}", width=120)


def words_of(one: Operation) -> dict[str, Any]:
    """Which are meant; of ids that were given, how many."""
    given = one.filter.get("ids")
    return one.filter if not isinstance(given, list) else {"selected": f"{len(given):,} jobs"}
