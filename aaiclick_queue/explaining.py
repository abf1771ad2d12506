"""Explain: why a task does not run, or what it does, in one sentence with what mends it. Reads only.

The first true line is the answer; the others are true as well and may be the answer once the first is mended.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from . import explain_rows as rows
from .explain_ends import ended, job_ends, running
from .explain_line import held, in_line, unserved
from .explain_words import Reason, ago, by_background, error_of, in_, names, shown
from .job_nodes import read_node
from .postgres import Database
from .report import span


class Explanation(msgspec.Struct, frozen=True):
    """Why a task is where it is. `fix` is a command, or what happens by itself; `lines` are all that is true."""

    task_id: str
    status: str | None
    code: str
    sentence: str
    fix: str
    facts: dict[str, Any]
    lines: list[Reason]
    read_at: datetime


async def explain_task(db: Database, task_id: int) -> Explanation | None:
    """Why the task does not run, what it does, or how it ended; None when there is none."""
    found = await db.fetch(rows.EXPLAINED, task_id)
    if not found:
        return None
    task = dict(found[0])
    lines = await _reasons(db, task)
    status = task["status"] or _status(task)
    if status is None:
        lines.insert(0, _on_the_move())
    first = lines[0]
    return Explanation(
        str(task["id"]), status, first.code, first.sentence, first.fix, first.facts, lines, task["read_at"]
    )


def _status(task: dict[str, Any]) -> str | None:
    by_place = {"claimed_at": "RUNNING", "not_before": "SCHEDULED", "held_at": "PENDING", "ready_at": "QUEUED"}
    if task["at_gate"]:
        return "PENDING"
    return next((status for column, status in by_place.items() if task[column]), None)


def _on_the_move() -> Reason:
    return Reason("on_the_move", "It is between two places at this moment.", "Look again in a second.")


async def _reasons(db: Database, task: dict[str, Any]) -> list[Reason]:
    if task["status"]:
        return [await ended(db, task)]
    lines = await job_ends(db, task)
    if task["claimed_at"]:
        return lines + await running(db, task)
    if task["at_gate"]:
        lines.append(await _waits_for(db, task))
    due = [await _due(db, task)] if task["not_before"] else []
    limits = [dict(row) for row in await db.fetch(rows.LIMITS_OF_TASK, *_limited_by(task))]
    paused = await _paused(db, task, limits)
    serving = [dict(row) for row in await db.fetch(rows.SERVING, task["queue"], task["entrypoint"])]
    nobody = await unserved(db, task, serving)
    # Who is told that it goes on by itself would wait for ever: it only comes back to the workers without its code.
    is_in_vain = bool(nobody) and due[:1] and due[0].code == "cool_down"
    lines += [*paused, *nobody, *due] if is_in_vain else [*due, *paused, *nobody]
    if task["held_at"]:
        lines += await held(db, task, limits)
    if task["ready_at"]:
        lines += await in_line(db, task, serving)
    return lines


def _limited_by(task: dict[str, Any]) -> tuple[Any, ...]:
    return task["queue"], task["entrypoint"], task["concurrency_key"], task["job_id"] and str(task["job_id"])


async def _waits_for(db: Database, task: dict[str, Any]) -> Reason:
    node = await read_node(db, task["id"], status="PENDING")
    others = node.waits_for if node else []
    left, total = task["remaining"] or 0, task["total"] or 0
    facts = {"remaining": left, "total": total, "waits_for": [msgspec.to_builtins(one) for one in others]}
    more = f" and {left - len(others):,} more" if left > len(others) and others else ""
    which = f": {names(others)}{more}" if others else ""
    before = "the one" if total == 1 else f"{left:,} of the {total:,} tasks and groups"
    sentence = f"It waits for {before} before it{which}."
    if not others:
        return Reason("waiting_for_tasks", sentence, await by_background(db, "It goes on when they end."), facts)
    task_ids = [one.id for one in others if one.kind == "task"]
    fix = shown("task explain", task_ids[0]) if task_ids else shown("job get", task["job_id"])
    return Reason("waiting_for_tasks", sentence, fix, facts)


DELAYS = {
    "eta": ("scheduled", "It was enqueued for later"),
    "retry": ("backoff", "It waits for its next attempt"),
    "snooze": ("snoozed", "It asked to run again later"),
    "unknown entrypoint": ("cool_down", "A worker without its code had it, so it is left to others for a while"),
    "lost": ("lost_run", "Its last run was lost with its worker, so it waits a little before the next"),
}


async def _due(db: Database, task: dict[str, Any]) -> Reason:
    code, sentence = DELAYS.get(task["delay"], ("scheduled", "It waits for its time"))
    facts: dict[str, Any] = {"not_before": task["not_before"], "attempt": task["attempt"], "lost": task["lost_count"]}
    seconds = (task["not_before"] - task["read_at"]).total_seconds()
    if code != "scheduled":
        for last in await db.fetch(rows.LAST_ATTEMPT, task["id"]):
            facts |= {"last_error": error_of(last), "last_outcome": last["outcome"]}
    if code == "backoff":
        sentence += f", number {task['attempt'] + 1} of {task['max_attempts'] or '?'}"
    error = f"; the last one ended with {facts['last_error']}" if facts.get("last_error") else ""
    sentence = f"{sentence}: due {in_(seconds)}{error}."
    if seconds > 0:
        return Reason(code, sentence, f"It gets in line by itself {in_(seconds)}.", facts)
    return Reason(code, sentence, await by_background(db, "It gets in line within a second."), facts)


async def _paused(db: Database, task: dict[str, Any], limits: Sequence[dict[str, Any]]) -> list[Reason]:
    lines = []
    if task["queue_paused_at"]:
        facts = {"queue": task["queue"], "paused_at": task["queue_paused_at"], "by": task["queue_paused_by"]}
        facts["reason"] = task["queue_reason"]
        said = _by(task["queue_paused_by"], task["queue_paused_at"], task["queue_reason"], task["read_at"])
        fix = await _opened_by_itself(db, str(task["queue_paused_by"])) or shown("queue resume", task["queue"])
        lines.append(Reason("queue_paused", f"Its queue {task['queue']} is paused{said}.", fix, facts))
    if task["job_paused_at"]:
        facts = {"job_id": str(task["job_id"]), "paused_at": task["job_paused_at"], "by": task["job_paused_by"]}
        facts["reason"] = task["job_reason"]
        said = _by(task["job_paused_by"], task["job_paused_at"], task["job_reason"], task["read_at"])
        fix = shown("job resume", task["job_id"])
        lines.append(Reason("job_paused", f"Its job {task['job_name']} is paused{said}.", fix, facts))
    pauses = [limit for limit in limits if limit["kind"] == "pause" and limit["scope"] == "task"]
    return lines + [_entrypoint_paused(task, limit) for limit in pauses]


async def _opened_by_itself(db: Database, who: str) -> str | None:
    """What opens a queue that an operation has closed, and what that waits for."""
    word, _, number = who.partition(" ")
    if word != "operation" or not number.isdecimal():
        return None
    for row in await db.fetch(rows.OLDER_TRANSACTION, int(number)):
        whose = f" of {row['application_name']}" if row["application_name"] else ""
        return (
            f"It opens when a transaction{whose} that began {span(row['seconds'])} ago is over, "
            f"the process {row['pid']} of Postgres; pg_terminate_backend({row['pid']}) ends it."
        )
    return "It opens when the operation is done."


def _by(who: str | None, since: datetime, reason: str | None, now: datetime) -> str:
    return (f" by {who}" if who else "") + f" {ago(since, now)}" + (f": {reason}" if reason else "")


def _entrypoint_paused(task: dict[str, Any], limit: dict[str, Any]) -> Reason:
    said = _by(limit["made_by"], limit["created_at"], limit["reason"], task["read_at"])
    until = f", until {limit['until'].astimezone():%Y-%m-%d %H:%M:%S}" if limit["until"] else ""
    facts = {"entrypoint": task["entrypoint"], "by": limit["made_by"], "since": limit["created_at"]}
    facts |= {"until": limit["until"], "reason": limit["reason"]}
    fix = shown("task resume", task["entrypoint"])
    return Reason("entrypoint_paused", f"{task['entrypoint']} is paused{said}{until}.", fix, facts)


CODES = (
    "completed", "failed", "upstream_failed", "skipped", "expired", "cancelled", "job_cancelled", "job_failing",
    "waiting_for_tasks", *(code for code, _ in DELAYS.values()), "queue_paused", "job_paused", "entrypoint_paused",
    "no_worker", "no_code", "strict_order", "limit_reached", "rate_reached", "fair_turns", "max_parallel",
    "let_in_soon", "workers_full", "in_line", "not_relayed", "lease_expired", "past_deadline", "running", "on_the_move",
)  # fmt: skip
