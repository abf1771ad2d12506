"""What a worker says of itself before its first log line: one screen."""

from __future__ import annotations

import platform
from importlib.util import find_spec
from typing import TYPE_CHECKING

from .. import __version__

if TYPE_CHECKING:
    from ..fleet.file import Fleet
    from ..plan import Plan
    from ..settings import Settings

TASKS_SHOWN = 10


async def postgres_facts(settings: Settings) -> tuple[str, str]:
    """Version of the server and revision of the schema; refuses a schema of another version."""
    from ..local import database_url
    from ..migrate import HEAD, require_head
    from ..postgres import Database

    async with Database(settings, size=1, dsn=await database_url(settings)) as db:
        await require_head(db)
        version: str = await db.fetchval("SELECT current_setting('server_version')")
    return version.split(" ", 1)[0], HEAD


def worker_banner(settings: Settings, plan: Plan, facts: tuple[str, str], *, processes: int) -> str:
    """Version, queues, slots, Postgres, Redis, tasks."""
    from ..tasks import registry

    names = sorted(registry)
    more = f" … and {len(names) - TASKS_SHOWN} more" if len(names) > TASKS_SHOWN else ""
    needs_children = any(task.kind == "process" for task in registry.values())
    slots = ", ".join(
        [
            f"{plan.slots} async",
            f"{plan.threads} threads",
            *([f"{plan.children} children"] if needs_children else []),
            *([f"in each of {processes} processes"] if processes > 1 else []),
        ]
    )
    queues = ", ".join(f"{name} ×{weight}" if weight > 1 else name for name, weight in plan.queues.items())
    return _banner(
        settings,
        facts,
        {
            "queues": "all" if "*" in plan.queues else queues,
            "slots": slots,
            "tasks": f"{', '.join(names[:TASKS_SHOWN])}{more}",
            "background": "relay, reaper, due, admission, operations, pruning"
            if plan.background
            else "none: start `aaiclick-queue background` as well",
        },
        note=_not_served(plan),
    )


def fleet_banner(settings: Settings, fleet: Fleet, facts: tuple[str, str]) -> str:
    """Version, groups, Postgres, Redis."""
    groups = {}
    for group in fleet.groups.values():
        queues = "all" if "*" in (group.queues or {}) else ", ".join(group.queues or ["default"])
        groups[group.name] = f"{_plural(group.count, 'process', 'processes')} for {queues}: {', '.join(group.modules)}"
    return _banner(settings, facts, groups)


def _plural(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"


def _not_served(plan: Plan) -> str:
    """A line on tasks that are registered here and go to queues which only others serve."""
    from ..tasks import DEFAULT_QUEUE, registry

    if "*" in plan.queues:
        return ""
    queues = {name: task.defaults.queue or DEFAULT_QUEUE for name, task in sorted(registry.items())}
    elsewhere = {name: queue for name, queue in queues.items() if queue not in plan.queues}
    if not elsewhere:
        return ""
    missing = sorted(set(elsewhere.values()))
    names = list(elsewhere)[:TASKS_SHOWN]
    more = f" … and {len(elsewhere) - TASKS_SHOWN} more" if len(elsewhere) > TASKS_SHOWN else ""
    go = "goes" if len(elsewhere) == 1 else "go"
    to = f"queue {missing[0]}" if len(missing) == 1 else f"queues {', '.join(missing)}"
    weights = {**dict.fromkeys(missing, 1), **plan.queues}
    wanted = ",".join(f"{name}:{weight}" if weight > 1 or ":" in name else name for name, weight in weights.items())
    return f"note: {', '.join(names)}{more} {go} to {to}, not served here: add -Q {wanted}"


def background_banner(settings: Settings, facts: tuple[str, str]) -> str:
    """Version, Postgres, Redis."""
    return _banner(
        settings, facts, {"background": "relay, reaper, due, admission, operations, pruning; no tasks run here"}
    )


def _banner(settings: Settings, facts: tuple[str, str], own: dict[str, str], *, note: str = "") -> str:
    version, revision = facts
    lines = {
        **own,
        "postgres": f"{version}, {settings.postgres_shown}, schema {settings.postgres_schema} at {revision}",
        "redis": settings.redis_shown if settings.redis_url else "none: Postgres is polled",
        "lease": f"{settings.lease_seconds:g} s, heartbeat each {settings.heartbeat:.3g} s",
    }
    head = f"aaiclick-queue {__version__} · Python {platform.python_version()}{_loop()}"
    end = "Ctrl-C: finish what runs, then stop; again: hand it back and stop now"
    facts_shown = (f"   {name:<11} {value}" for name, value in lines.items())
    return "\n".join(["", f" {head}", *facts_shown, *([f" {note}"] if note else []), f" {end}", ""])


def _loop() -> str:
    return " · uvloop" if find_spec("uvloop") else ""
