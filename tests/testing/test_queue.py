"""The queue of a test: drained by a real worker, looked at, with time that passes on command."""

from __future__ import annotations

from aaiclick_queue import Status, current, task
from aaiclick_queue.testing import Clock, QueueUnderTest

ran: list[str] = []


@task
async def greet(name: str) -> str:
    ran.append(name)
    return f"hello {name}"


@task(max_attempts=2)
def flaky() -> int:
    if current().attempt == 1:
        raise ConnectionError("not yet")
    return current().attempt


async def test_a_drain_runs_what_is_in_line(queue: QueueUnderTest) -> None:
    handle = await greet.enqueue("ada")
    [done] = await queue.drain()
    assert (done.status, done.result, done.kwargs) == (Status.COMPLETED, "hello ada", {"name": "ada"})
    assert await handle.result(timeout=5) == "hello ada"


async def test_a_retry_is_run_when_time_has_passed(queue: QueueUnderTest, clock: Clock) -> None:
    handle = await flaky.enqueue()
    assert await queue.drain() == []
    assert await handle.status() is Status.SCHEDULED
    await clock.advance(minutes=1)
    [done] = await queue.drain()
    assert done.result == 2


async def test_a_killed_run_is_run_again(queue: QueueUnderTest, clock: Clock) -> None:
    ran.clear()
    handle = await greet.enqueue("bob")
    with queue.kill_run(greet):
        assert await queue.drain() == []
    assert await handle.status() is Status.RUNNING
    await clock.advance(minutes=1)
    [done] = await queue.drain()
    assert (done.lost_count, done.attempt, done.runs, ran) == (1, 1, 2, ["bob", "bob"])
