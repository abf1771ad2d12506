"""Trying: a job runs here and now, in a test or a script, by a worker of its own in this process.

The flow is the real one, with its retries and their delays, in a schema of its own on the configured Postgres (embedded
if there is none) that goes when the job has ended; inside the testing kit, on the database of the test.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from .client import connect, given_settings
from .errors import JobFailed, WrongContext
from .job_handles import JobHandle
from .migrate import upgrade
from .outcome import Error
from .plan import EVERY_QUEUE, Plan
from .postgres import Database
from .settings import Settings
from .starting import run_job
from .worker import Worker

FIRST_ERROR = """
SELECT name, error FROM aaiclick_queue.tasks WHERE job_id = $1 AND status = 'FAILED' ORDER BY finished_at, id LIMIT 1
"""


def job_test(job: Any, /, *args: Any, timeout: float | None = None, **kwargs: Any) -> Any:
    """Run a job to its end in this process; gives its result, or raises JobFailed. For code without an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(ajob_test(job, *args, timeout=timeout, **kwargs))
    raise WrongContext("job_test blocks, and here an event loop runs: await ajob_test(…) instead")


async def ajob_test(job: Any, /, *args: Any, timeout: float | None = None, **kwargs: Any) -> Any:  # noqa: ASYNC109
    """Run a job to its end in this process; gives its result, or raises JobFailed with the first error's traceback.

    `job` is what `@job` made, a task, a signature, or the name of a job that is registered here.
    """
    async with _settings() as settings, connect(settings=settings) as client:
        worker = Worker(settings, Plan(queues={EVERY_QUEUE: 1}))
        working = asyncio.create_task(worker.run(), name="aaiclick-queue job_test")
        try:
            if isinstance(job, str):
                run: Any = await run_job(job, kwargs, client=client)
            else:
                run = await job.options(client=client).enqueue(*args, **kwargs)
            ending = asyncio.ensure_future(run.result(timeout))
            await asyncio.wait({ending, working}, return_when=asyncio.FIRST_COMPLETED)
            if not ending.done():
                ending.cancel()
                working.result()  # raises what ended the worker
            return await _result(ending, run, await client.database())
        finally:
            worker.stop(now=True)
            await asyncio.wait({working})


async def _result(ending: asyncio.Future[Any], run: Any, db: Database) -> Any:
    try:
        return await ending
    except JobFailed as failed:
        rows = await db.fetch(FIRST_ERROR, run.id) if isinstance(run, JobHandle) else []
        for row in rows:
            error = Error.read(row["error"])
            failed.add_note(f"{row['name']} raised:\n{error.traceback or error.message}")
        raise


@asynccontextmanager
async def _settings() -> AsyncIterator[Settings]:
    """Settings of a queue that nobody else works on."""
    if (given := given_settings()) is not None:
        yield given  # the kit's: each test has a database of its own
        return
    schema = f"aaiclick_queue_try_{uuid.uuid4().hex[:12]}"
    settings = Settings.load(postgres_schema=schema, redis_prefix=schema)
    await upgrade(settings)
    try:
        yield settings
    finally:
        async with Database(settings, size=1) as db:
            await db.fetch(f'DROP SCHEMA "{schema}" CASCADE')
