"""max_parallel of a job and of groups in it, over a fleet whose processes are killed: the kernel counts, by flocks."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from typing import Any

import pytest

from aaiclick_queue.postgres import Database
from aaiclick_queue.settings import Settings
from tests.faults import tasks
from tests.faults.fleet import Console, Fleet, wait_for
from tests.planned import Job

SECONDS = 20.0
TASKS = 600  # in each room
ROOMS = {"job": 7, "outer": 5, "inner": 2}


@pytest.mark.timeout(300)
async def test_caps_of_a_job_and_of_groups_in_groups_hold_while_workers_are_killed(
    settings: Settings, look: Console, db: Database
) -> None:
    job = _job()
    await job.submit(db)
    chance = random.Random(5)
    with Fleet(settings, lost_limit=1000) as fleet:
        workers = [fleet.start("-Q", "narrow", "-c", "25") for _ in range(3)]
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            time.sleep(chance.uniform(0.5, 2))  # noqa: ASYNC251 - nothing else runs on this loop
            victim = workers.pop(chance.randrange(len(workers)))
            if chance.random() < 0.7:
                victim.kill()
            else:
                assert victim.terminate() == 0
            workers.append(fleet.start("-Q", "narrow", "-c", "25"))
        # And nothing is left behind: the rest runs at the full width.
        look.rows("UPDATE aaiclick_queue.tasks SET kwargs = kwargs || '{\"seconds\": 0.0}' WHERE status IS NULL")
        wait_for(lambda: not look.open_tasks(), lambda: str(look.statuses()), seconds=150)
        assert look.statuses() == {"COMPLETED": 3 * TASKS}
        wait_for(lambda: look.value("SELECT status FROM aaiclick_queue.jobs") == "COMPLETED")
        taken = Counter(run.what for run in fleet.runs())
        assert not [room for room in ROOMS if taken[f"no-{room}"]], "more were at work than a cap allows"
        assert {seat for seat in taken if taken[seat]} == {
            f"{room}-{number}" for room, seats in ROOMS.items() for number in range(seats)
        }, "every cap was reached"
        assert not [error for worker in fleet.workers for error in worker.errors()]
        wait_for(lambda: not look.value("SELECT count(*) FROM aaiclick_queue.slots"))


def _job() -> Job:
    job = Job(max_parallel=ROOMS["job"])
    outer = job.group(max_parallel=ROOMS["outer"])
    inner = job.group(parent=outer, max_parallel=ROOMS["inner"])
    share: dict[str, Any] = {"entrypoint": tasks.share.entrypoint, "queue": "narrow", "max_attempts": 100}
    for _ in range(TASKS):
        for group, rooms in ((None, ["job"]), (outer, ["job", "outer"]), (inner, ["job", "outer", "inner"])):
            kwargs = json.dumps({"seconds": 0.1, "rooms": {room: ROOMS[room] for room in rooms}})
            job.task(group=group, kwargs=kwargs, **share)
    return job
