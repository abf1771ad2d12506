"""Page of tasks: a filter that is the address, tabs by state, and acts on rows or on all that match."""

from __future__ import annotations

import re
from typing import Any

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from ...durations import EXAMPLES, MOST, duration
from ...errors import BadTask
from ...flow.lines import COUNTED
from ...queue_views import QueueView, counted_ago, list_queues
from ...status import Status
from ...views import NEWEST, SCAN_LIMIT, TaskFilter, TaskPage, list_tasks
from .visiting import Visit, Visiting

router = APIRouter(include_in_schema=False)
ROWS = 50
SEARCH_SECONDS = 0.1  # a page is there at once, and leads on
COUNT_LIMIT = 10_000
BY_WORDS = ("key", "correlation_id", "priority", "older_than")
WORDS = ("status", "queue", "entrypoint", "job_id", "fingerprint", "search", *BY_WORDS)
TABS = ("QUEUED", "RUNNING", "SCHEDULED", "PENDING", "FAILED", "COMPLETED", "CANCELLED", "UPSTREAM_FAILED", "SKIPPED")
WAITING = ("PENDING", "SCHEDULED", "QUEUED", "RUNNING")
COUNT_FAILURES = """
SELECT count(*) AS n FROM (SELECT FROM aaiclick_queue.failures ORDER BY failed_at DESC LIMIT $1) AS newest
"""


@router.get("/tasks")
async def tasks(at: Visiting) -> HTMLResponse:
    """Tasks, newest first; everything that narrows them is in the address."""
    asked = {word: at.asked(word) for word in WORDS}
    wanted = wanted_of(asked)
    before = at.number("before") or NEWEST
    wrong = ""
    try:
        _check(asked, wanted)
        page = await list_tasks(at.db, wanted, limit=ROWS, before=before, seconds=SEARCH_SECONDS)
    except BadTask as error:
        page, wrong = TaskPage([], None), str(error)
    return await at.show(
        "tasks.html",
        section="tasks",
        title="Tasks",
        topics="tasks,queues",
        asked=asked,
        rows=page.tasks,
        before=page.before,
        searched=page.searched,
        looked=SCAN_LIMIT,
        wrong=wrong,
        is_first=before == NEWEST,
        tabs=TABS,
        counts=await counts_of(at, asked),
        where=where_of(asked, wanted),
        can_retry=asked["status"] in ("FAILED", "CANCELLED"),
        can_cancel=asked["status"] in WAITING or not asked["status"],
    )


def wanted_of(asked: dict[str, str]) -> TaskFilter:
    """The filter of the address; what is no status and no number is taken for none."""
    status = asked["status"] if asked["status"] in Status.__members__ else None
    job = asked["job_id"]
    return TaskFilter(
        status=None if status is None else Status(status),
        queue=asked["queue"] or None,
        entrypoint=asked["entrypoint"] or None,
        job_id=int(job) if job.isascii() and job.isdigit() and int(job) < 2**63 else None,
        fingerprint=asked["fingerprint"] or None,
        search=asked["search"] or None,
        key=asked["key"] or None,
        correlation_id=asked["correlation_id"] or None,
        priority=int(asked["priority"]) if re.fullmatch(r"-?[0-9]{1,5}", asked["priority"]) else None,
        older_than=duration(asked["older_than"]) if asked["older_than"] else None,
    )


def _check(asked: dict[str, str], wanted: TaskFilter) -> None:
    """Refuse what is no number and no duration: a list without that filter would be taken for what it finds."""
    if asked["priority"] and (wanted.priority is None or not -32768 <= wanted.priority <= 32767):
        raise BadTask(f"priority={asked['priority']}: give a whole number from -32768 to 32767")
    if asked["older_than"] and (wanted.older_than is None or wanted.older_than > MOST):
        raise BadTask(f"older_than={asked['older_than']} is no duration: write {EXAMPLES}; at most 100 years")


def where_of(asked: dict[str, str], wanted: TaskFilter) -> dict[str, Any]:
    """The same filter as acts on many tasks take it; nothing where they cannot mean what the page shows."""
    if asked["search"] or (asked["job_id"] and wanted.job_id is None):
        return {}
    numbers = {word: value for word in ("priority", "older_than") if (value := getattr(wanted, word)) is not None}
    return {word: value for word, value in asked.items() if value} | numbers


async def counts_of(at: Visit, asked: dict[str, str]) -> dict[str, tuple[int, bool, float | None]]:
    """How many stand where, whether there are more, and how long ago that was counted if it was not now.

    Counted to 10,000 a queue, 60,000 in all; of those that ended, only failures are.
    """
    if any(asked[word] for word in ("entrypoint", "job_id", "search", "fingerprint", *BY_WORDS)):
        return {}
    views = await list_queues(at.db, limit=1000, name=asked["queue"] or None, counted=COUNTED)
    counts = {
        "QUEUED": (sum(one.ready for one in views), any(one.ready_is_more for one in views), counted_ago(views)),
        "RUNNING": (sum(one.running for one in views), False, None),
        "SCHEDULED": (sum(one.delayed for one in views), any(one.delayed_is_more for one in views), None),
        "PENDING": (sum(one.held + one.waiting for one in views), any(map(_is_more_held, views)), None),
    }  # fmt: skip
    if not asked["queue"]:
        failed = int(await at.db.fetchval(COUNT_FAILURES, COUNT_LIMIT + 1))
        counts["FAILED"] = (min(failed, COUNT_LIMIT), failed > COUNT_LIMIT, None)
    return counts


def _is_more_held(one: QueueView) -> bool:
    return one.held_is_more or one.waiting_is_more
