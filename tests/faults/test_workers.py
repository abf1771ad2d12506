"""Worker processes that are killed, frozen, told to stop, or blocked by what they run."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from aaiclick_queue import Task, connect
from aaiclick_queue.settings import Settings
from tests.faults import tasks
from tests.faults.fleet import LONGEST, Console, Fleet, WorkerProcess, check_fence, wait_for

RECOVERED = """
SELECT extract(epoch FROM max(t.started_at) - %s)::float8 AS seconds, count(*) AS runs
FROM aaiclick_queue.tasks t JOIN aaiclick_queue.attempts a ON a.task_id = t.id AND a.outcome = 'LOST'
"""
HOLDER = "SELECT w.pid FROM aaiclick_queue.loops l JOIN aaiclick_queue.workers w ON w.id = l.holder"
LEASES_OF = "SELECT count(*) FROM aaiclick_queue.leases WHERE worker_id = %s"
LEFT_TO_OTHERS = """
SELECT count(*) FROM aaiclick_queue.tasks t WHERE id = ANY(%s) AND status IS NULL
AND NOT EXISTS (SELECT FROM aaiclick_queue.leases l WHERE l.task_id = t.id AND l.worker_id = %s)
"""
ENDED = "SELECT count(*) FROM aaiclick_queue.tasks WHERE id = ANY(%s) AND status IS NOT NULL"
PAYMENTS = "CREATE TABLE payments (task_id bigint NOT NULL)"


async def _enqueue(settings: Settings, count: int, seconds: float) -> list[int]:
    async with connect(settings=settings) as client:
        return await tasks.tick.enqueue_many([{"seconds": seconds}] * count, client=client)


async def _let_it_start(
    more_than: int, worker: WorkerProcess, fleet: Fleet, look: Console, more: Callable[[], Awaitable[list[int]]]
) -> list[int]:
    """Until this worker has started so many runs, however many of them others take. Ids of what was enqueued for it."""
    ids: list[int] = []
    async with asyncio.timeout(LONGEST):
        while sum(run.pid == worker.pid for run in fleet.runs()) <= more_than:
            if look.open_tasks() < 10 * more_than:
                ids += await more()
            await asyncio.sleep(0.02)
    return ids


async def test_every_task_of_a_killed_worker_runs_again_and_completes_once(settings: Settings, look: Console) -> None:
    await _enqueue(settings, 10_000, 0.005)
    with Fleet(settings) as fleet:
        workers = [fleet.start(), fleet.start()]
        wait_for(lambda: fleet.runs_started() > 2_000)
        pid = look.value(HOLDER)
        [victim] = [worker for worker in workers if worker.pid == pid]  # the one whose loops matter most
        [victim_id] = look.worker_of(victim.pid)
        killed_at = look.value("SELECT clock_timestamp()")
        victim.kill()
        left = look.value(LEASES_OF, victim_id)
        assert left > 0, "it was killed in the middle"
        look.wait_for_all(fleet)

        assert look.statuses() == {"COMPLETED": 10_000}
        check_fence(fleet, look)
        assert look.history() == {"LOST": left}
        assert look.worker_of(victim.pid, "LOST") == [victim_id]
        [recovered] = look.rows(RECOVERED, killed_at)
        lease = settings.lease_seconds
        print(f"{left} runs again within {recovered['seconds']:.2f} s of the kill, lease {lease:g} s")  # noqa: T201
        assert recovered["seconds"] < lease + 10


async def test_effects_inside_the_tasks_transaction_happen_once_whoever_is_killed(
    settings: Settings, look: Console
) -> None:
    look.rows(PAYMENTS)
    ids: list[int] = []
    with Fleet(settings, transaction_pool_size=20) as fleet:
        fleet.start("-c", "20")
        for _ in range(2):
            victim = fleet.start("-c", "20")
            async with connect(settings=settings) as client:
                payments = partial(tasks.pay.enqueue_many, [{"seconds": 0.2}] * 200, client=client)
                ids += await _let_it_start(30, victim, fleet, look, payments)
            victim.kill()
            look.wait_for_all(fleet)

        assert look.statuses() == {"COMPLETED": len(ids)}
        assert look.history()["LOST"] > 0, "nobody was killed in the middle"
        assert sorted(row["task_id"] for row in look.rows("SELECT task_id FROM payments")) == sorted(ids)
        assert fleet.runs_started() > len(ids)
        check_fence(fleet, look)


async def test_a_worker_frozen_past_its_lease_comes_back_as_a_new_one_and_its_old_runs_write_nothing(
    settings: Settings, look: Console
) -> None:
    with Fleet(settings) as fleet:
        frozen = fleet.start()
        ids = await _enqueue(settings, 100, 3.0)
        wait_for(
            lambda: fleet.runs_started() == 100,
            lambda: f"{fleet.runs_started()} runs, {look.statuses()}\n{frozen.output()}",
        )
        [old_id] = look.worker_of(frozen.pid)
        frozen.freeze()
        healthy = fleet.start()
        wait_for(lambda: look.worker_of(frozen.pid, "LOST") == [old_id])
        wait_for(lambda: look.value(LEASES_OF, old_id) == 0)
        wait_for(lambda: fleet.runs_started() == 200, healthy.output)
        frozen.thaw()
        wait_for(lambda: len(look.worker_of(frozen.pid)) == 1, frozen.output)
        look.wait_for_all(fleet)

        assert look.statuses() == {"COMPLETED": 100}
        assert look.history() == {"LOST": 100}
        [healthy_id] = look.worker_of(healthy.pid)
        rows = look.rows("SELECT DISTINCT worker_id, run_epoch, attempt, result FROM aaiclick_queue.tasks")
        assert rows == [{"worker_id": healthy_id, "run_epoch": 2, "attempt": 1, "result": 2}]
        assert {run.task_id for run in fleet.runs()} == set(ids)
        check_fence(fleet, look)

        assert healthy.terminate() == 0
        await _enqueue(settings, 10, 0.0)
        look.wait_for_all(fleet)
        [new_id] = look.worker_of(frozen.pid)
        rows = look.rows("SELECT DISTINCT worker_id FROM aaiclick_queue.tasks WHERE run_epoch = 1")
        assert (rows, new_id != old_id) == ([{"worker_id": new_id}], True)


async def test_a_worker_told_to_stop_under_load_loses_nothing_and_spends_no_attempt(
    settings: Settings, look: Console
) -> None:
    settings = settings.model_copy(update={"grace_seconds": 0.5})
    count = len(await _enqueue(settings, 50, 3.0))  # longer than the grace time: handed back
    with Fleet(settings, grace_seconds=0.5) as fleet:
        for stopped in range(4):
            worker = fleet.start()
            count += len(await _let_it_start(500, worker, fleet, look, partial(_enqueue, settings, 2_500, 0.005)))
            assert worker.terminate() == 0, worker.output()
            assert len(look.worker_of(worker.pid, "STOPPED")) == 1
            assert look.value("SELECT count(*) FROM aaiclick_queue.leases") == 0
            assert look.history() == {}, f"worker {stopped}: {worker.output()[-2000:]}"
            assert not worker.errors()
        fleet.start()
        look.wait_for_all(fleet)

        assert look.statuses() == {"COMPLETED": count}
        assert look.rows("SELECT DISTINCT attempt FROM aaiclick_queue.tasks") == [{"attempt": 1}]
        assert look.history() == {}
        check_fence(fleet, look)


async def test_a_blocked_event_loop_is_shown_and_what_waits_behind_it_is_left_to_others(
    settings: Settings, look: Console
) -> None:
    async with connect(settings=settings) as client:
        await tasks.tick.enqueue_many([{"seconds": 0.0}] * 300, client=client)
        blocking = await tasks.block.enqueue(100.0, client=client)
        behind = await tasks.tick.enqueue_many([{"seconds": 0.0}] * 300, client=client)
    with Fleet(settings, loop_stall_seconds=0.5) as fleet:
        blocked = fleet.start("-c", "1")
        wait_for(lambda: any(run.what == "block" for run in fleet.runs()), blocked.output)
        wait_for(lambda: blocked.said("the event loop has been blocked"), blocked.output)
        assert blocked.said("in block") == 1, "the stack names the function"
        other = fleet.start()
        # All but those of a claim whose answer the blocked loop has not read: they wait for it.
        [blocked_id] = look.worker_of(blocked.pid)
        wait_for(lambda: look.value(LEFT_TO_OTHERS, behind, blocked_id) == 0, other.output)
        assert look.value(ENDED, [blocking.id]) == 0, "the block is over already"
        handed_back = look.rows("SELECT id FROM aaiclick_queue.tasks WHERE run_epoch > 1")
        assert handed_back, "nothing had waited behind the block"
        fleet.enough()
        look.wait_for_all(fleet)

        assert look.statuses() == {"COMPLETED": 601}
        assert look.history() == {}, "handing back is free"
        runs = Counter(run.task_id for run in fleet.runs())
        assert {runs[row["id"]] for row in handed_back} == {1}, "none of them ran where it was handed back"
        assert len(look.worker_of(blocked.pid)) == 1, "its heartbeat went on"
        assert {row["id"] for row in handed_back} <= set(behind)
        check_fence(fleet, look)


@pytest.mark.parametrize(
    ("poison", "cause"), [(tasks.leave_at_once, "exit code 3"), (tasks.be_killed, signal.SIGKILL.name)]
)
async def test_poison_is_convicted_with_its_cause_and_takes_nobody_along(
    settings: Settings, look: Console, poison: Task[[float], None], cause: str
) -> None:
    settings = settings.model_copy(update={"lease_seconds": 1.0})
    beside = [{"seconds": 0.02 * n} for n in range(25)]
    async with connect(settings=settings) as client:
        innocent = await tasks.tick.enqueue_many(beside, client=client)
        culprit = await poison.enqueue(0.3, client=client)
        innocent += await tasks.tick.enqueue_many(beside, client=client)
    with Fleet(settings, lost_limit=3) as fleet:
        fleet.start("--processes", "2")
        look.wait_for_all(fleet)

        ended = {row["id"]: row for row in look.rows("SELECT id, status, error, attempt FROM aaiclick_queue.tasks")}
        assert {ended[task_id]["status"] for task_id in innocent} == {"COMPLETED"}
        assert {row["attempt"] for row in ended.values()} == {1}, "a lost run spends no attempt"
        end = ended[culprit.id]
        assert (end["status"], end["error"]["type"]) == ("FAILED", "WorkerLost")
        assert cause in end["error"]["message"]
        assert sum(run.task_id == culprit.id for run in fleet.runs()) == 3
        check_fence(fleet, look)


async def test_a_run_alone_is_not_convicted_by_the_death_of_the_worker_beside_it(
    settings: Settings, look: Console
) -> None:
    """With two kinds of poison about, an innocent loses its worker twice, runs alone, and loses it a third time."""
    [task_id] = await _enqueue(settings, 1, 2.0)
    look.rows("UPDATE aaiclick_queue.ready SET lost_count = 2")
    with Fleet(settings, lost_limit=3) as fleet:
        victim = fleet.start()
        wait_for(lambda: fleet.runs_started() == 1, victim.output)
        assert fleet.runs()[0].pid != victim.pid, "it runs in a process of its own"
        victim.kill()
        fleet.start()
        look.wait_for_all(fleet)
        assert look.rows("SELECT status FROM aaiclick_queue.tasks WHERE id = %s", task_id) == [{"status": "COMPLETED"}]
