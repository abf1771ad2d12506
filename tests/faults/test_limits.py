"""A limit over a fleet whose processes are killed and started again: the seats are flocks, so the kernel counts."""

from __future__ import annotations

import os
import random
import time
from collections import Counter

import pytest

from aaiclick_queue import connect, limits
from aaiclick_queue.settings import Settings
from tests.faults import tasks
from tests.faults.fleet import Console, Fleet, wait_for

SECONDS = float(os.environ.get("FAULT_SECONDS") or 30)
TASKS = 3000


@pytest.mark.timeout(300)
async def test_a_hundred_slots_against_a_limit_of_seven_while_workers_are_killed(
    settings: Settings, look: Console
) -> None:
    async with connect(settings=settings) as client:
        await limits.limit_queue("narrow", max_running=tasks.SEATS, client=client)
        await tasks.sit.enqueue_many([{"seconds": 0.05}] * TASKS, client=client)
    chance = random.Random(11)
    with Fleet(settings, lost_limit=1000) as fleet:
        workers = [fleet.start("-Q", "narrow", "-c", "25") for _ in range(4)]
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            time.sleep(chance.uniform(0.5, 3))  # noqa: ASYNC251 - nothing else runs on this loop
            victim = workers.pop(chance.randrange(len(workers)))
            if chance.random() < 0.7:
                victim.kill()
            else:
                assert victim.terminate() == 0
            workers.append(fleet.start("-Q", "narrow", "-c", "25"))
        seats = Counter(run.what for run in fleet.runs())
        assert seats["no-seat"] == 0, "more than seven ran at once"
        assert set(seats) == {f"seat-{number}" for number in range(tasks.SEATS)}, "all seven were used"
        assert not [error for worker in fleet.workers for error in worker.errors()]
        # And nothing is left behind: the rest runs at the full width.
        look.rows("UPDATE aaiclick_queue.tasks SET kwargs = '{\"seconds\": 0.0}' WHERE status IS NULL")
        wait_for(lambda: not look.open_tasks(), lambda: str(look.statuses()), seconds=120)
        assert look.statuses() == {"COMPLETED": TASKS}
        assert Counter(run.what for run in fleet.runs())["no-seat"] == 0
        wait_for(lambda: not look.value("SELECT count(*) FROM aaiclick_queue.slots"))
