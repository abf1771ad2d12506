"""How a task ended, or what its run is at, told for an explanation. Part of explaining.py."""

from __future__ import annotations

from typing import Any

from . import explain_rows as rows
from .explain_words import BY_ITSELF, Reason, ago, by_background, error_of, shown
from .postgres import Database
from .report import span
from .upstream import find_cause


async def ended(db: Database, task: dict[str, Any]) -> Reason:
    """How it ended."""
    at, error = ago(task["finished_at"], task["read_at"]), error_of(task)
    facts = {"finished_at": task["finished_at"], "error": error, "attempt": task["attempt"]}
    if task["status"] == "CANCELLED":
        return _cancelled(task, at, facts)
    match task["status"]:
        case "COMPLETED":
            return Reason("completed", f"It completed {at}, in attempt {task['attempt']}.", BY_ITSELF["none"], facts)
        case "FAILED":
            return await _failed(db, task, f"It failed {at}", facts)
        case "UPSTREAM_FAILED":
            return await _upstream(db, task, facts)
    return Reason("skipped", f"It was skipped {at}: {error}.", BY_ITSELF["none"], facts)


async def _failed(db: Database, task: dict[str, Any], when: str, facts: dict[str, Any]) -> Reason:
    facts["max_attempts"] = task["max_attempts"]
    of = f" of {task['max_attempts']}" if task["max_attempts"] else ""
    sentence = f"{when}, in attempt {task['attempt']}{of}: {facts['error']}."
    for same in await db.fetch(rows.SAME_FAILURES, task["id"]):
        facts |= {"fingerprint": same["fingerprint"], "alike": same["n"]}
        if same["n"] > 1:
            sentence += (
                f" {same['n']:,}{' or more' if same['n'] >= rows.ALIKE_LIMIT else ''} tasks have failed like it."
            )
    return Reason("failed", sentence, shown("task retry", task["id"]), facts)


def _cancelled(task: dict[str, Any], at: str, facts: dict[str, Any]) -> Reason:
    number, error = task["id"], facts["error"]
    if task["error_type"] == "Expired":
        return Reason("expired", f"It was not started before it expired, {at}.", shown("task retry", number), facts)
    if task["job_status"] == "CANCELLED":
        sentence = f"Its job {task['job_name']} was cancelled: {task['job_error'] or error}."
        return Reason("job_cancelled", sentence, shown("job retry", task["job_id"]), facts)
    return Reason("cancelled", f"It was cancelled {at}: {error}.", shown("task retry", number), facts)


async def _upstream(db: Database, task: dict[str, Any], facts: dict[str, Any]) -> Reason:
    cause = await find_cause(db, task["job_id"], task["id"])
    if cause is None:
        sentence = "A task that it waited for did not complete, so it will not run."
        return Reason("upstream_failed", sentence, shown("job retry", task["job_id"]), facts)
    facts |= {"cause": cause.id, "cause_status": cause.status, "cause_error": cause.error, "steps": cause.steps}
    why = f": {cause.error}" if cause.error else ""
    sentence = f"It will not run: {cause.name} ({cause.id}), {_away(cause.steps)}, is {cause.status}{why}."
    return Reason("upstream_failed", sentence, shown("task retry", cause.id), facts)


def _away(steps: int) -> str:
    return "right before it" if steps == 1 else f"{steps} steps before it"


async def job_ends(db: Database, task: dict[str, Any]) -> list[Reason]:
    """That its job is being ended, if it is."""
    if task["job_id"] is None or (task["job_status"] in ("PENDING", "RUNNING") and not task["failing_at"]):
        return []
    operation = await db.fetchval(rows.CANCELS_JOB, str(task["job_id"]))
    facts = {"job_id": str(task["job_id"]), "job_status": task["job_status"], "operation_id": operation}
    code = "job_cancelled" if task["job_status"] == "CANCELLED" else "job_failing"
    how = "was cancelled" if code == "job_cancelled" else "has failed"
    sentence = f"Its job {task['job_name']} {how} ({task['job_error'] or 'no reason given'}), so it is being ended."
    return [Reason(code, sentence, await by_background(db, "An operation ends it within a second or two."), facts)]


async def running(db: Database, task: dict[str, Any]) -> list[Reason]:
    """What its run is at."""
    found = await db.fetch(rows.WORKER_OF_RUN, task["worker_id"])
    worker = dict(found[0]) if found else None
    facts: dict[str, Any] = {"worker_id": str(task["worker_id"]), "claimed_at": task["claimed_at"]}
    facts |= {"deadline_at": task["deadline_at"], "attempt": task["attempt"]}
    lines = []
    if worker is None or worker["status"] in ("LOST", "STOPPED") or worker["lease_expires_at"] <= task["read_at"]:
        expired = worker["lease_expires_at"] if worker else None
        facts |= {"lease_expires_at": expired, "worker_status": worker["status"] if worker else None}
        since = f" {ago(expired, task['read_at'])}" if expired else ""
        sentence = f"It was claimed by worker {task['worker_id']}, whose lease ended{since}: the run is lost."
        then = "The reaper takes it back within a second or two."
        return [Reason("lease_expired", sentence, await by_background(db, then), facts)]
    beat = (task["read_at"] - worker["last_heartbeat"]).total_seconds()
    facts |= {"hostname": worker["hostname"], "pid": worker["pid"], "heartbeat_seconds": beat}
    facts["lease_expires_at"] = worker["lease_expires_at"]
    left = (task["deadline_at"] - task["read_at"]).total_seconds()
    if left <= 0:
        sentence = f"It runs past its deadline, which was {ago(task['deadline_at'], task['read_at'])}."
        then = "The reaper takes it from its worker within a second or two."
        lines.append(Reason("past_deadline", sentence, await by_background(db, then), facts))
    who = f"worker {task['worker_id']} ({worker['hostname']}, heartbeat {span(beat)} ago)"
    sentence = f"It runs on {who}, claimed {ago(task['claimed_at'], task['read_at'])}, attempt {task['attempt']}."
    fix = shown("workers stacks", task["worker_id"])
    lines.append(Reason("running", sentence, fix, facts | {"deadline_seconds": left}))
    return lines
