"""What a worker says of itself before its first log line: one screen."""

from __future__ import annotations

import platform
from importlib.util import find_spec
from typing import TYPE_CHECKING

from .. import __version__

if TYPE_CHECKING:
    from ..settings import Settings
    from ..worker import Plan

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
    slots = f"{plan.slots} async, {plan.threads} threads" + (
        f", in each of {processes} processes" if processes > 1 else ""
    )
    queues = ", ".join(f"{name} ×{weight}" if weight > 1 else name for name, weight in plan.queues.items())
    return _banner(
        settings,
        facts,
        {
            "queues": "all" if "*" in plan.queues else queues,
            "slots": slots,
            "tasks": f"{', '.join(names[:TASKS_SHOWN])}{more}",
            "background": "relay, reaper, due"
            if plan.background
            else "none: start `aaiclick-queue background` as well",
        },
    )


def background_banner(settings: Settings, facts: tuple[str, str]) -> str:
    """Version, Postgres, Redis."""
    return _banner(settings, facts, {"background": "relay, reaper, due; no tasks run here"})


def _banner(settings: Settings, facts: tuple[str, str], own: dict[str, str]) -> str:
    version, revision = facts
    lines = {
        **own,
        "postgres": f"{version}, {settings.postgres_shown}, schema {settings.postgres_schema} at {revision}",
        "redis": settings.redis_shown if settings.redis_url else "none: Postgres is polled",
        "lease": f"{settings.lease_seconds:g} s, heartbeat each {settings.heartbeat:.3g} s",
    }
    head = f"aaiclick-queue {__version__} · Python {platform.python_version()}{_loop()}"
    end = "Ctrl-C: finish what runs, then stop; again: hand it back and stop now"
    return "\n".join(["", f" {head}", *(f"   {name:<11} {value}" for name, value in lines.items()), f" {end}", ""])


def _loop() -> str:
    return " · uvloop" if find_spec("uvloop") else ""
