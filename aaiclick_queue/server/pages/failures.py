"""Pages of failures: what fails alike as one group, since when and how often, with what can be done about it."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from ...failing import COUNT_LIMIT, get_failure, list_failures
from ...views import get_task
from ..drawing.charts import sparkline
from .traces import parts_of
from .trouble import not_found
from .visiting import Visiting

router = APIRouter(include_in_schema=False)
SHOWN = 100


@router.get("/failures")
async def failures(at: Visiting) -> HTMLResponse:
    """Groups, the latest first."""
    hours = at.hours(24)
    show_all = at.asked("all") == "1"
    page = await list_failures(at.db, hours=hours, limit=SHOWN, acknowledged=show_all)
    groups = [(one, sparkline(one.trend, label=f"{one.error_type} over the last {hours} hours")) for one in page.groups]
    return await at.show(
        "failures.html",
        section="failures",
        title="Failures",
        topics="failures,tasks",
        groups=groups,
        hours=hours,
        is_cut=page.is_cut,
        looked=page.looked,
        show_all=show_all,
    )


@router.get("/failures/{fingerprint}")
async def failure(at: Visiting, fingerprint: str) -> HTMLResponse:
    """One group with a sample of it."""
    found = await get_failure(at.db, fingerprint) if _is_one(fingerprint) else None
    if found is None:
        return await not_found(
            at, f"there is no failure {fingerprint}: it is older than what is kept", section="failures"
        )
    sample = await get_task(at.db, int(found.group.sample_task_id))
    return await at.show(
        "failure.html",
        section="failures",
        title=found.group.error_type,
        topics="failures",
        group=found.group,
        total=found.total,
        is_more=found.total >= COUNT_LIMIT,
        members=found.tasks,
        sample=sample,
        parts=parts_of(sample.error.traceback) if sample and sample.error else [],
    )


def _is_one(fingerprint: str) -> bool:
    return len(fingerprint) == 16 and set(fingerprint) <= set("0123456789abcdef")
