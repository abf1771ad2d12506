"""Why a task that could run is not claimed: limits, orders, workers, its place in line. Part of explaining.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import explain_rows as rows
from .explain_words import Reason, ago, by_background, held_by, in_, shown
from .flow.choose import Lane
from .postgres import Database
from .report import span

HELD = ("running", "rate", "fair")


async def unserved(db: Database, task: dict[str, Any], serving: Sequence[dict[str, Any]]) -> list[Reason]:
    """That nobody would take it, if so."""
    queue, entrypoint = task["queue"], task["entrypoint"]
    if not serving:
        last = await db.fetchval(rows.LAST_SERVED, queue)
        seen = f"the last one was seen {ago(last, task['read_at'])}" if last else "none has for an hour"
        fix = shown("worker", "-A", entrypoint.rpartition(".")[0] or entrypoint, "-Q", queue)
        facts = {"queue": queue, "last_seen": last}
        return [Reason("no_worker", f"No worker serves queue {queue}; {seen}.", fix, facts)]
    if any(worker["has_code"] for worker in serving):
        return []
    versions = sorted({worker["version"] for worker in serving})
    facts = {"entrypoint": entrypoint, "workers": [worker["id"] for worker in serving], "versions": versions}
    sentence = f"{held_by(len(serving), 'worker')} of queue {queue} and none has {entrypoint} in a module of its -A."
    fix = shown("worker", "-A", entrypoint.rpartition(".")[0] or entrypoint, "-Q", queue)
    return [Reason("no_code", sentence, fix, facts)]


async def held(db: Database, task: dict[str, Any], limits: Sequence[dict[str, Any]]) -> list[Reason]:
    """What keeps it out of line."""
    lines = []
    if task["chain"]:
        found = await db.fetch(rows.TURN_OF_ORDER, task["chain"], task["held_key"], task["id"])
        lines += [_strict_order(task, dict(first)) for first in found]
    lines += [_limit_line(limit) for limit in limits if limit["kind"] in HELD and limit["used"] >= limit["n"]]
    caps = Lane("", "", "", "", task["crowd"]).caps
    used = await db.fetch(rows.CAPS_USED, [number for number, _ in caps]) if caps else []
    for (number, most), row in zip(caps, used, strict=True):
        if row["used"] >= most:
            what = f"group {row['group_name']}" if row["group_name"] else f"job {task['job_name']}"
            facts = {"id": str(number), "max_parallel": most, "used": row["used"], "holders": row["holders"]}
            sentence = f"max_parallel={most} of its {what} is reached, by {', '.join(row['holders'])}."
            lines.append(Reason("max_parallel", sentence, "It gets its turn when one of them ends.", facts))
    if lines or task["job_paused_at"] or any(limit["kind"] == "pause" for limit in limits):
        return lines
    then = "It gets in line within a second."
    return [Reason("let_in_soon", "Its limits have room for it again.", await by_background(db, then))]


def _strict_order(task: dict[str, Any], first: dict[str, Any]) -> Reason:
    facts = {"order_by": task["chain"], "behind": first["id"], "behind_status": first["status"]}
    who = f"{first['name'] or first['entrypoint']} ({first['id']})"
    if first["status"] == "FAILED":
        sentence = f"It is in the strict order {task['chain']} behind {who}, which failed and stops those behind it."
        return Reason("strict_order", sentence, shown("task unblock", first["id"]), facts)
    sentence = f"It is in the strict order {task['chain']} behind {who}, and one of them runs at a time."
    return Reason("strict_order", sentence, shown("task explain", first["id"]), facts)


def _limit_line(limit: dict[str, Any]) -> Reason:
    what = f"{limit['scope']} {limit['name']}" + (", per key" if limit["per_key"] else "")
    facts = {name: limit[name] for name in ("id", "scope", "name", "kind", "per_key", "n", "seconds", "used")}
    holders = list(limit["holders"] or ())
    if limit["kind"] == "rate":
        seconds = limit["next_end"]
        when = in_(seconds) if seconds is not None else f"{span(limit['seconds'])} after the next start"
        facts["next_slot_seconds"] = seconds
        sentence = (
            f"The rate of {what} is reached, {limit['n']:,} in {span(limit['seconds'])}; the next slot is {when}."
        )
        return Reason("rate_reached", sentence, f"It gets its turn by itself, {when} at the earliest.", facts)
    facts["holders"] = holders
    if limit["kind"] == "fair":
        sentence = f"Turns in {what} are fair, and {limit['used']:,} tasks are before it in line."
        return Reason("fair_turns", sentence, "It gets its turn by itself.", facts)
    sentence = f"The limit of {what} is reached, {limit['used']:,} of {limit['n']:,}: {', '.join(holders)}."
    option = "--per-key" if limit["per_key"] else "--max-running"
    fix = shown(f"{limit['scope']} limit", limit["name"], option, limit["n"] + 1)
    return Reason("limit_reached", sentence, fix, facts)


async def in_line(db: Database, task: dict[str, Any], serving: Sequence[dict[str, Any]]) -> list[Reason]:
    """Where it is in line, and what that takes."""
    lines = []
    slots, used = sum(one["slots"] for one in serving), sum(one["running"] for one in serving)
    if serving and all(one["running"] >= one["slots"] for one in serving):
        taken = "its only slot is taken" if slots == 1 else f"all {slots:,} slots are taken"
        sentence = f"{held_by(len(serving), 'worker')} of queue {task['queue']} and {taken}."
        facts = {"workers": len(serving), "slots": slots, "running": used}
        fix = shown("worker", "-A", task["entrypoint"].rpartition(".")[0] or task["entrypoint"], "-Q", task["queue"])
        lines.append(Reason("workers_full", sentence, fix, facts))
    [line] = await db.fetch(rows.POSITION, task["queue"], task["rank"], task["order_key"], task["id"])
    lines.append(_position(task, dict(line)))
    if db.settings.redis_url is not None:
        for row in await db.fetch(rows.NOT_RELAYED, task["queue"], task["id"]):
            sentence = f"Its wake-up has not been relayed for {span(row['age'])}; workers find it by looking too."
            fix = await by_background(db, "A background loop relays it within a second.")
            wake = Reason("not_relayed", sentence, fix, {"outbox_age_seconds": row["age"]})
            lines.insert(len(lines) - (line["ahead"] == 0), wake)
    return lines


def _position(task: dict[str, Any], line: dict[str, Any]) -> Reason:
    ahead = line["ahead"]
    many = f"{min(ahead, rows.COUNT_LIMIT):,}{' or more' if ahead > rows.COUNT_LIMIT else ''}"
    rate = line["done"] / max(line["seconds"], 60.0) if line["done"] else None
    facts: dict[str, Any] = {"ahead": min(ahead, rows.COUNT_LIMIT), "is_more": ahead > rows.COUNT_LIMIT}
    facts |= {"per_second": rate, "seconds": ahead / rate if rate else None, "ready_at": task["ready_at"]}
    sentence = f"It is in line in {task['queue']}, and {many} {'task is' if ahead == 1 else 'tasks are'} before it"
    if not ahead:
        sentence, fix = (
            f"It is the next in line in {task['queue']}",
            "It starts by itself as soon as a worker takes it.",
        )
    elif rate:
        sentence += f": about {span(ahead / rate)} at the {rate * 60:,.0f} a minute of the last ten"
        fix = f"It starts by itself in about {span(ahead / rate)}."
    else:
        fix = "It starts by itself when its turn comes."
    return Reason("in_line", sentence + ".", fix, facts)
