"""Schedules that code declares, written down when a worker starts.

A schedule declared in code owns its row until somebody edits that; then later starts leave it alone. One that is gone
from the code is disabled by the next worker of the same modules, not deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from .flow.enqueue import id_source
from .flow.register import Registrar, Registration
from .jobs import known_jobs
from .postgres import Database
from .registered import inherited

log = logging.getLogger(__name__)


def declared() -> list[Registration]:
    """What the imported modules declare; of two jobs with one name the first."""
    found: list[Registration] = []
    for name, jobs in known_jobs.items():
        scheduled = [job for job in jobs if job.schedule is not None]
        for job in scheduled[1:]:
            log.error("schedule %s is declared twice: that of %s is not used", name, job.entrypoint)
        for job in scheduled[:1]:
            assert job.schedule is not None
            given, more = inherited(job, job.schedule)
            found.append(Registration(name, job.entrypoint, given, more))
    return found


async def declare_schedules(db: Database, modules: Sequence[str]) -> None:
    """Write down what is declared here, in one transaction."""
    registrations, where = declared(), ",".join(sorted(modules))
    if not registrations and not where:
        return
    async with db.transaction() as tx:
        take = (await id_source(tx)).take
        registrar = Registrar(tx, take, by="code", seconds=db.settings.job_timeout_seconds)
        await registrar.alone()
        for new in sorted(registrations, key=lambda one: one.name):
            if await registrar.declare(new, where) == "edited":
                log.warning(
                    "schedule %s was edited: what the code says now is not used; "
                    "`aaiclick-queue registered-job reset %s` gives it back",
                    new.name,
                    new.name,
                )
        for name in await registrar.drop_gone(where, [one.name for one in registrations]) if where else ():
            log.warning("schedule %s is gone from the code, and disabled", name)
