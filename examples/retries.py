"""What becomes of a task that raises: backoff, giving up, and the four words a task can raise to steer itself.

Run it: python examples/retries.py
"""

from __future__ import annotations

import asyncio
from collections import Counter

from aaiclick_queue import (
    Cancel,
    Fail,
    Handle,
    Retry,
    Settings,
    Snooze,
    TaskCancelled,
    TaskFailed,
    Worker,
    current,
    task,
)

starts: Counter[str] = Counter()


# Three attempts are the default. These delays are short so that the example is.
@task(max_attempts=4, retry_delay=0.05, retry_factor=2, retry_max_delay=1)
async def flaky() -> int:
    starts["flaky"] += 1
    if current().attempt < 3:
        raise ConnectionError("the other side is not ready")
    return current().attempt


@task(max_attempts=2, retry_delay=0.05)
async def hopeless() -> None:
    starts["hopeless"] += 1
    raise RuntimeError("always")


@task(give_up_on=(ValueError,))
async def picky(text: str) -> int:
    starts["picky"] += 1
    return int(text)


@task(max_attempts=5)
async def steered(word: str) -> str:
    starts[word] += 1
    if starts[word] == 1 and word == "retry":
        raise Retry(in_=0.05)  # spends an attempt, at the time I say
    if starts[word] <= 2 and word == "snooze":
        raise Snooze(in_=0.05)  # spends none
    if word == "fail":
        raise Fail("no attempt will change this")
    if word == "cancel":
        raise Cancel("not needed any more")
    return f"{word}: attempt {current().attempt}, start {starts[word]}"


async def failure(handle: Handle[None] | Handle[int] | Handle[str]) -> TaskFailed:
    try:
        await handle.result(timeout=30)
    except TaskFailed as failed:
        return failed
    raise AssertionError(f"task {handle.id} should have failed")


async def main() -> None:
    async with asyncio.TaskGroup() as group:
        worker = Worker(Settings.load())
        group.create_task(worker.run())

        attempt = await (await flaky.enqueue()).result(timeout=30)
        print(f"flaky: raised twice, done in attempt {attempt}")
        assert attempt == starts["flaky"] == 3

        failed = await failure(await hopeless.enqueue())
        print(f"hopeless: {failed.error_type} after {failed.attempts} attempts")
        assert failed.error_type == "RuntimeError"
        assert failed.attempts == starts["hopeless"] == 2
        assert "always" in failed.traceback

        failed = await failure(await picky.enqueue("seven"))
        print(f"picky: {failed.error_type}, attempts left but given up")
        assert starts["picky"] == 1

        retried = await (await steered.enqueue("retry")).result(timeout=30)
        snoozed = await (await steered.enqueue("snooze")).result(timeout=30)
        print(retried, "|", snoozed)
        assert retried == "retry: attempt 2, start 2"
        assert snoozed == "snooze: attempt 1, start 3"

        await failure(await steered.enqueue("fail"))
        assert starts["fail"] == 1
        try:
            await (await steered.enqueue("cancel")).result(timeout=30)
        except TaskCancelled as cancelled:
            print(cancelled)
        assert starts["cancel"] == 1

        worker.stop()


if __name__ == "__main__":
    asyncio.run(main())
