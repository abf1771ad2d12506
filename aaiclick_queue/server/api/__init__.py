"""The routes under /api/v1, a module a kind of thing."""

from __future__ import annotations

from fastapi.routing import APIRoute

from . import (
    bulk,
    failures,
    figures,
    groups,
    job_acts,
    job_bulk,
    jobs,
    limits,
    queue_acts,
    queues,
    schedules,
    sessions,
    stream,
    system,
    task_acts,
    tasks,
    tokens,
    workers,
)

MODULES = (
    *(jobs, job_acts, groups, tasks, task_acts, bulk, job_bulk),
    *(queues, queue_acts, limits, workers, schedules, failures, figures),
    *(system, tokens, sessions, stream),
)


def _turn(route: APIRoute) -> tuple[bool, bool]:
    """A name takes all slashes that it can: what ends in one comes last, and what has two first."""
    return route.path.count(":path}") < 2, route.path.endswith(":path}")


ROUTES = sorted((route for module in MODULES for route in module.api.routes if isinstance(route, APIRoute)), key=_turn)
