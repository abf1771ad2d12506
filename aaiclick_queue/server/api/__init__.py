"""The routes under /api/v1, a module a kind of thing."""

from __future__ import annotations

from . import (
    bulk,
    failures,
    figures,
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

ROUTERS = tuple(
    module.api
    for module in (
        *(jobs, job_acts, tasks, task_acts, bulk, job_bulk),
        *(queues, queue_acts, limits, workers, schedules, failures, figures),
        *(system, tokens, sessions, stream),
    )
)
