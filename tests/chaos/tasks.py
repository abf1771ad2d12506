"""The workload: tasks and jobs whose runs leave traces in the journal and, where they write, in the database."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from sqlalchemy import text

from aaiclick_queue import Fail, Group, Skip, Snooze, TaskResult, current, fan_in, job, task
from tests.chaos.journal import Stamp, write, written

SEATS = 5
NARROW, PROBE, KEYED = "narrow", "probe", "keyed"
QUEUES = ("default", NARROW, KEYED, PROBE)
PER_KEY = 2
OFTEN = 50  # attempts: a task that takes part in faults must not run out of them
EFFECT = text("INSERT INTO chaos.effects (task_id, run_epoch) VALUES (:id, :epoch)")


class Trouble(Exception):
    """What a task of this workload raises on purpose."""


def _stamp() -> Stamp:
    return Stamp(current().id, current().run_epoch, time.monotonic())


def _check_before(began: float, before: list[Stamp]) -> None:
    """What this run waits for has ended before it began."""
    late = [stamp for stamp in before if stamp.ended > began]
    if late:
        write("early", "dependent", f"{late}")


@task(max_attempts=OFTEN)
async def tick(seconds: float = 0.0) -> Stamp:
    """Take a while."""
    with written("tick"):
        await asyncio.sleep(seconds)
        return _stamp()


@task(queue=PROBE, max_attempts=OFTEN, priority=9)
async def probe() -> None:
    """Show by its start that work flows."""
    with written("probe"):
        return


@task(max_attempts=OFTEN)
def in_thread(seconds: float) -> Stamp:
    """Take a while in a thread."""
    with written("in_thread"):
        time.sleep(seconds)
        return _stamp()


@task(max_attempts=OFTEN, isolation="process")
def apart(seconds: float) -> Stamp:
    """Take a while in a child process."""
    with written("apart"):
        time.sleep(seconds)
        return _stamp()


@task(retry_delay=0.2, retry_max_delay=1)
async def fail_first(times: int) -> int:
    """Raise in the first attempts."""
    with written("fail_first"):
        if current().attempt <= times:
            raise Trouble(f"attempt {current().attempt}")
        return current().attempt


@task
async def fail() -> None:
    """Fail without another attempt."""
    with written("fail"):
        raise Fail("on purpose")


@task(max_attempts=OFTEN)
async def snooze(times: int) -> int:
    """Ask for a later turn, by the checkpoint so many times."""
    with written("snooze"):
        done = await current().load_checkpoint() or 0
        if done < times:
            if not await current().checkpoint(done + 1):
                write("refused", "snooze")
            raise Snooze(in_=0.3)
        return int(done)


@task(max_attempts=OFTEN)
async def pay(seconds: float) -> None:
    """Write once, whatever happens."""
    with written("pay"):
        async with current().transaction() as session:
            await session.execute(EFFECT, {"id": current().id, "epoch": current().run_epoch})
            await asyncio.sleep(seconds)
            current().result(current().run_epoch)


@task(max_attempts=OFTEN, isolation="process")
async def pay_apart(seconds: float) -> None:
    """Write once, from a child process."""
    with written("pay_apart"):
        async with current().transaction() as session:
            await session.execute(EFFECT, {"id": current().id, "epoch": current().run_epoch})
            await asyncio.sleep(seconds)
            current().result(current().run_epoch)


@task(max_attempts=OFTEN)
async def tell(times: int) -> int:
    """Write progress and checkpoints for as long as the lease lets it."""
    with written("tell"):
        for number in range(times):
            await asyncio.sleep(0.1)
            if not await current().progress(number, times) or not await current().checkpoint(number):
                write("refused", "tell")
                break
        return times


@task(max_attempts=OFTEN)
async def spawn(many: int) -> int:
    """Have children, once over all attempts."""
    with written("spawn"):
        for number in range(many):
            await current().enqueue(tick, 0.01 * number)
        return many


@task(max_attempts=OFTEN)
async def pay_and_spawn(many: int) -> None:
    """Effect and children in one commit."""
    with written("pay_and_spawn"):
        async with current().transaction() as session:
            await session.execute(EFFECT, {"id": current().id, "epoch": current().run_epoch})
            for number in range(many):
                await current().enqueue(tick, 0.01 * number)
            current().result(current().run_epoch)


@task(queue=NARROW, max_attempts=OFTEN)
async def sit(seconds: float) -> None:
    """Take one of the few places of its queue."""
    with written("sit"):
        await asyncio.sleep(seconds)


@task(queue=KEYED, max_attempts=OFTEN, concurrency_key="tenant-{tenant}")
async def serve(tenant: int, seconds: float) -> None:
    """Take one of the few places of its tenant."""
    with written("serve"):
        await asyncio.sleep(seconds)


@task(queue=KEYED, max_attempts=OFTEN, order_by="book-{book}")
async def post(book: int, number: int, seconds: float) -> None:
    """One at a time, in order."""
    with written("post"):
        await asyncio.sleep(seconds)


@task(max_attempts=OFTEN)
async def count(before: list[Stamp]) -> Stamp:
    """Run when all of these are done."""
    with written("count") as began:
        _check_before(began.at, before)
        return _stamp()


@task(max_attempts=OFTEN)
async def spread(before: Stamp, many: int, seconds: float) -> list[float]:
    """What a map goes over."""
    with written("spread") as began:
        _check_before(began.at, [before])
        return [seconds] * many


@task(max_attempts=OFTEN)
async def grow(before: Stamp, many: int) -> TaskResult:
    """Add some tasks to the job, and no more when run again."""
    with written("grow") as began:
        _check_before(began.at, [before])
        return TaskResult(data=_stamp(), tasks=[tick(0.05) for _ in range(many)])


@task(max_attempts=OFTEN)
async def descend(left: int) -> Any:
    """Be continued so many times: what waits for this waits for the last of them."""
    with written("descend"):
        return descend(left - 1) if left else _stamp()


@task(max_attempts=OFTEN)
async def clean_up(before: list[Stamp | None]) -> int:
    """Run when all are done, however they ended."""
    with written("clean_up") as began:
        there = [stamp for stamp in before if stamp is not None]
        _check_before(began.at, there)
        return len(there)


@task
async def be_skipped() -> None:
    """Skip itself."""
    with written("be_skipped"):
        raise Skip("on purpose")


@job
def pipeline(parts: int, width: int, mapped: int, seconds: float) -> Any:
    """One, many in groups, a map, tasks that are added, one."""
    first, last = tick(0.0), tick(0.0)
    ends = []
    for number in range(parts):
        with Group(f"part {number}", max_parallel=3) as part, Group(f"inside {number}"):
            ticks = [tick(seconds) for _ in range(width)]
        first >> part >> last
        ends.append(grow(count(ticks), 2))
    over = tick.map(spread(first, mapped, seconds))
    return last >> count([*ends, count(fan_in(over, "collect")), descend(2)])


@job
def broken(seconds: float) -> Any:
    """A failure, a skipped branch, what depends on them, and a cleaning up that runs in any case."""
    good = [tick(seconds) for _ in range(3)]
    bad = fail()
    behind = count.options(name="behind the failure")([bad, *good])
    skipped = count.options(name="behind the skipped")([be_skipped()])
    return clean_up.options(rule="all_done")([*good, behind, skipped])


@job
def beat(seconds: float) -> Any:
    """What the schedule runs."""
    return count([tick(seconds), in_thread(seconds)])


def pipeline_size(parts: int, width: int, mapped: int) -> int:
    """How many tasks a pipeline has come to when it has ended: see its body, line by line."""
    return 2 + parts * (width + 2 + 2) + 2 + mapped + 2 + 3 + 1
