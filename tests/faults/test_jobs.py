"""A job of thousands of tasks, and what goes wrong while it runs: it ends whole, and each task has run in turn."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest

from aaiclick_queue import connect
from aaiclick_queue.settings import Settings
from tests.faults.fleet import Console, Fleet, ask, check_fence, wait_for
from tests.faults.pipeline import RESULT, TASKS, pipeline
from tests.servers import OwnPostgres
from tests.wires.redis_server import OwnRedis

APP = ("-A", "tests.faults.pipeline", "-c", "20")
ENDED = "SELECT count(*) FROM aaiclick_queue.tasks WHERE status IS NOT NULL"
OPEN_JOBS = "SELECT count(*) FROM aaiclick_queue.jobs WHERE finished_at IS NULL"
LEFT = "SELECT count(*) FROM aaiclick_queue."
# The independent form of readiness: by the edges as they were written, not by gates.
TOO_EARLY = """
SELECT t.id, p.id AS before FROM aaiclick_queue.dependencies d
JOIN aaiclick_queue.tasks p ON p.id = d.previous_id JOIN aaiclick_queue.tasks t ON t.id = d.next_id
WHERE t.started_at < p.finished_at
"""


async def _enqueue(settings: Settings) -> None:
    async with connect(settings=settings) as client:
        await pipeline.enqueue(client=client)


def _some_way_on(look: Console, share: float) -> None:
    wait_for(lambda: look.value(ENDED) > share * TASKS, lambda: str(look.statuses()))
    assert look.value(OPEN_JOBS), "it was over before the fault"


def _ended_whole(fleet: Fleet, look: Console) -> None:
    """The job has ended, with the result that it has on a good day, and left nothing anywhere."""
    wait_for(
        lambda: not look.value(OPEN_JOBS),
        lambda: f"{look.statuses()}\n" + "\n".join(worker.output()[-2000:] for worker in fleet.workers),
        seconds=120,
    )
    [job] = look.rows("SELECT status, error FROM aaiclick_queue.jobs")
    assert job == {"status": "COMPLETED", "error": None}
    assert look.statuses() == {"COMPLETED": TASKS}
    assert look.value("SELECT result FROM aaiclick_queue.tasks WHERE name = 'total'") == RESULT
    [gate] = look.rows("SELECT g.total, g.remaining, g.failed FROM aaiclick_queue.gates g WHERE g.id = g.job_id")
    assert gate == {"total": TASKS, "remaining": 0, "failed": 0}
    assert not look.rows(TOO_EARLY)
    for place in ("ready", "waiting", "delayed", "held", "leases", "slots"):
        assert not look.value(LEFT + place), f"left in {place}"
    wait_for(lambda: not look.value(LEFT + "arrivals"))
    check_fence(fleet, look)
    runs = Counter(run.task_id for run in fleet.runs())
    assert len(runs) >= TASKS - 2, "those of this package leave no line"


@pytest.mark.timeout(300)
async def test_a_job_ends_whole_while_its_workers_are_killed_and_frozen(settings: Settings, look: Console) -> None:
    chance = random.Random(3)
    await _enqueue(settings)
    with Fleet(settings, lost_limit=1000) as fleet:
        workers = [fleet.start(*APP) for _ in range(3)]
        _some_way_on(look, 0.1)
        hurt = 0
        while look.value(OPEN_JOBS):
            victim = workers.pop(chance.randrange(len(workers)))
            if hurt % 3 == 1:
                wait_for(lambda: look.worker_of(victim.pid))  # noqa: B023 - it may just have come back
                [old] = look.worker_of(victim.pid)
                victim.freeze()
                wait_for(lambda: old in look.worker_of(victim.pid, "LOST"))  # noqa: B023 - is looked at here
                victim.thaw()
                workers.append(victim)
            else:
                victim.kill()
                workers.append(fleet.start(*APP))
            hurt += 1
        assert hurt >= 3, "it was over before the faults"
        _ended_whole(fleet, look)
        assert look.history()["LOST"] > 0, "nobody was killed in the middle"
        assert not [error for worker in fleet.workers for error in worker.errors()]


@pytest.mark.timeout(300)
async def test_a_job_ends_whole_while_redis_is_emptied_and_away(
    settings: Settings, own_redis: OwnRedis, look: Console
) -> None:
    settings = settings.model_copy(update={"redis_url": own_redis.url})
    await _enqueue(settings)
    with Fleet(settings) as fleet:
        workers = [fleet.start(*APP) for _ in range(2)]
        flush = partial(ask, own_redis, "FLUSHALL")
        faults: list[Callable[[], object]] = [flush, own_redis.stop, own_redis.start, flush]
        for share, fault in zip((0.2, 0.4, 0.6, 0.8), faults, strict=True):
            _some_way_on(look, share)
            fault()
        _ended_whole(fleet, look)
        assert look.history() == {}
        assert not any(worker.errors() for worker in workers)


@pytest.mark.timeout(300)
async def test_a_job_ends_whole_over_crashes_of_postgres(own_postgres: OwnPostgres, own_look: Console) -> None:
    settings = Settings.load({}, postgres_url=own_postgres.url, lease_seconds=2)
    await _enqueue(settings)
    with Fleet(settings) as fleet:
        workers = [fleet.start(*APP) for _ in range(2)]
        for share, mode in ((0.15, "immediate"), (0.4, "fast"), (0.65, "immediate"), (0.9, "immediate")):
            _some_way_on(own_look, share)
            await asyncio.to_thread(own_postgres.restart, mode)
        _ended_whole(fleet, own_look)
        assert own_look.history() == {}, "nobody was taken for lost"
        assert all(worker.is_alive for worker in workers)
