"""The command line that every measured system answers to; what it measured goes to stdout as JSON.

Standard library alone, because it is imported in every peer's venv. Every rate is taken for a given time and not for a
given number, so that a slow system costs a run no more than a quick one.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol

from tests.bench.apps import tally

WARM_LATENCIES = 20
WIDTH = 50  # coroutines that enqueue at once
TICK_SECONDS = 0.01
NOOP, CLOCKED, SLEPT, BURNT = "noop", "clocked", "slept", "burnt"


class Producer(Protocol):
    """How one system enqueues, by its own means. Every task takes one number."""

    async def one(self, name: str, value: int) -> None:
        """Enqueue a task, and wait until the system has it."""

    async def many(self, name: str, values: Sequence[int]) -> None:
        """Enqueue one for each value, in the quickest way that the system documents."""


Open = Callable[[], AbstractAsyncContextManager[Any]]
Step = Callable[[], Coroutine[Any, Any, None]]


def main(producer: Open, *, setup: Step | None = None, work: Step | None = None) -> None:
    """Run the command that was given."""
    command, *arguments = sys.argv[1:]
    if command == "work" and work is not None:
        run(work())
    elif command == "setup":
        run(setup()) if setup is not None else None
    else:
        print(json.dumps(run(_measure(producer, command, *map(float, arguments)))))  # noqa: T201 - the answer


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run it on uvloop where there is one."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(coroutine)
    return uvloop.run(coroutine)


def opened(producer: Any) -> Open:
    """For a system whose producer needs no opening."""

    @asynccontextmanager
    async def given() -> AsyncIterator[Any]:
        yield producer

    return given


async def _measure(  # noqa: PLR0911 - one a command
    open_producer: Open, command: str, size: float, other: float = 0
) -> dict[str, float]:
    async with open_producer() as producer:
        match command:
            case "fill" | "sleepers" | "burners":
                name = {"fill": NOOP, "sleepers": SLEPT, "burners": BURNT}[command]
                await producer.many(name, range(int(size)))
                return {}
            case "bulk":
                return await _rate(lambda seconds: _in_bulk(producer, seconds, int(other)), size)
            case "single":
                return await _rate(lambda seconds: _one_by_one(producer, seconds), size)
            case "concurrent":
                return await _rate(lambda seconds: _at_once(producer, seconds), size)
            case "latency":
                return await _spaced(producer, int(size), gap_seconds=other / 1000)
            case "sustained":
                return await _sustained(producer, size, other)
            case "wide" | "deep":
                return await _job(getattr(producer, command), command, int(size))
    raise SystemExit(f"{command!r} is no command of the benchmark's drivers")


async def _rate(work: Callable[[float], Coroutine[Any, Any, int]], seconds: float) -> dict[str, float]:
    await work(seconds / 5)  # to warm up
    began = time.perf_counter()
    count = await work(seconds)
    return {"rate": count / (time.perf_counter() - began)}


async def _in_bulk(producer: Producer, seconds: float, size: int) -> int:
    end, count = time.perf_counter() + seconds, 0
    while time.perf_counter() < end:
        await producer.many(NOOP, range(count, count + size))
        count += size
    return count


async def _one_by_one(producer: Producer, seconds: float) -> int:
    end, count = time.perf_counter() + seconds, 0
    while time.perf_counter() < end:
        await producer.one(NOOP, count)
        count += 1
    return count


async def _at_once(producer: Producer, seconds: float) -> int:
    return sum(await asyncio.gather(*(_one_by_one(producer, seconds) for _ in range(WIDTH))))


async def _spaced(producer: Producer, count: int, *, gap_seconds: float) -> dict[str, float]:
    for _ in range(WARM_LATENCIES):
        await producer.one(CLOCKED, time.time_ns())
    await _arrived(WARM_LATENCIES)
    for _ in range(count):
        # Not in step with anybody's polling.
        await asyncio.sleep(gap_seconds * random.uniform(0.5, 1.5))
        await producer.one(CLOCKED, time.time_ns())
    await _arrived(WARM_LATENCIES + count)
    return {"warm": WARM_LATENCIES}


async def _sustained(producer: Producer, rate: float, seconds: float) -> dict[str, float]:
    """Enqueue at that rate, what is due every ten milliseconds by one bulk call; each task knows when it was sent."""
    await producer.many(CLOCKED, [time.time_ns()])
    await _arrived(1)
    began, sent, late = time.perf_counter(), 0, 0.0
    while (at := time.perf_counter() - began) < seconds:
        if due := int(at * rate) - sent:
            await producer.many(CLOCKED, [time.time_ns()] * due)
            sent += due
        late = time.perf_counter() - began
        await asyncio.sleep(max(0.0, TICK_SECONDS - (late - at)))
    await _arrived(1 + sent)
    return {"sent": sent, "rate": sent / max(late, seconds)}


async def _job(enqueue: Callable[[int], Coroutine[Any, Any, None]], command: str, count: int) -> dict[str, float]:
    """From the call that enqueues the job to its last task's first line; once small to warm up."""
    seconds = 0.0
    for size in (10, count):
        before = tally.seen(tally.own_folder()).runs
        began = time.perf_counter()
        await enqueue(size)
        wanted = before + size + (2 if command == "wide" else 0)
        async with asyncio.timeout(0.9 * tally.step_seconds()):
            while tally.seen(tally.own_folder()).runs < wanted:  # noqa: ASYNC110 - other processes count
                await asyncio.sleep(0.002)
        seconds = time.perf_counter() - began
    return {"seconds": seconds}


async def _arrived(count: int) -> None:
    async with asyncio.timeout(0.9 * tally.step_seconds()):
        while tally.late_count(tally.own_folder()) < count:  # noqa: ASYNC110 - another process writes them
            await asyncio.sleep(0.05)
