"""Random jobs, run by several workers and resolvers while everything goes wrong; the model says what may come of it.

DAG_SEED runs one round again, DAG_ROUNDS runs as many as one likes, DAG_SIZE makes them larger.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter

from aaiclick_queue.settings import Settings
from tests.dag.checks import check
from tests.dag.crew import Crew
from tests.races.props import Props

SECONDS = 25.0  # then no more rounds are begun
JOBS = 4
EMPTY = """
TRUNCATE aaiclick_queue.tasks, aaiclick_queue.ready, aaiclick_queue.waiting, aaiclick_queue.gates,
    aaiclick_queue.gate_edges, aaiclick_queue.arrivals, aaiclick_queue.jobs, aaiclick_queue.groups,
    aaiclick_queue.dependencies, aaiclick_queue.leases, aaiclick_queue.delayed, aaiclick_queue.outbox,
    aaiclick_queue.events, aaiclick_queue.attempts, aaiclick_queue.workers, aaiclick_queue.held, aaiclick_queue.slots,
    aaiclick_queue.limits, aaiclick_queue.operations, aaiclick_queue.failures
"""


async def test_whatever_happens_every_job_ends_as_the_model_allows(settings: Settings, props: Props) -> None:
    rounds = int(os.environ.get("DAG_ROUNDS") or 0)
    size = int(os.environ.get("DAG_SIZE") or 40)
    given = os.environ.get("DAG_SEED")
    base = random.randrange(10**9)
    until = time.monotonic() + SECONDS
    played, done = 0, Counter[str]()
    while played < rounds if rounds else time.monotonic() < until:
        seed = given or f"{base}-{played}"
        crew = Crew(settings, props, seed, jobs=JOBS, size=size, erratic=1.0)
        try:
            await crew.run()
            await check(props.db, crew)
        except BaseException as error:
            error.add_note(f"DAG_SEED={seed}, after {played} rounds")
            raise
        played += 1
        done += crew.journal.done
        await props.db.fetch(EMPTY)
        if given:
            break
    print(f"{played * JOBS} jobs", dict(done))  # noqa: T201 - shown with -s, for long runs
    assert given or played > 2
