"""The command line that every measured system answers to; what it measured goes to stdout as JSON.

Standard library alone, because it is imported in every peer's venv. Every rate is taken for a given time and not for a
given number, so that a slow system costs a run no more than a quick one.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol

from tests.bench.apps import tally

WARM_LATENCIES = 20
WIDTH = 50  # coroutines, or threads, that enqueue at once
TICK_SECONDS = 0.01
LOOK_SECONDS = 0.002  # at the count of arrivals: one stat, under a hundredth of a core
NOOP, CLOCKED, SLEPT, BURNT, PLAIN = "noop", "clocked", "slept", "burnt", "plain"


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
    open_producer: Open, command: str, size: float, *others: float
) -> dict[str, float]:
    async with open_producer() as producer:
        match command:
            case "fill" | "sleepers" | "burners" | "plain":
                name = {"fill": NOOP, "sleepers": SLEPT, "burners": BURNT, "plain": PLAIN}[command]
                await producer.many(name, range(int(size)))
                return {}
            case "bulk":
                return await _rate(lambda seconds: _in_bulk(producer, seconds, int(others[0])), size)
            case "single":
                return await _rate(lambda seconds: _one_by_one(producer, seconds), size)
            case "concurrent":
                return await _rate(lambda seconds: _at_once(producer, seconds), size)
            case "threads":
                with ThreadPoolExecutor(WIDTH) as pool:
                    return await _rate(lambda seconds: _in_threads(producer, seconds, pool), size)
            case "latency":
                return await _spaced(producer, int(size), *(gap_ms / 1000 for gap_ms in others))
            case "results":
                return await _round_trips(producer.result, int(size))
            case "sustained":
                return await _sustained(producer, size, others[0])
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


async def _in_threads(producer: Producer, seconds: float, pool: ThreadPoolExecutor) -> int:
    """As at once, for a client whose calls block: each thread has a loop, and nothing on it ever waits."""

    def one_thread() -> int:
        return asyncio.run(_one_by_one(producer, seconds))

    loop = asyncio.get_running_loop()
    return sum(await asyncio.gather(*(loop.run_in_executor(pool, one_thread) for _ in range(WIDTH))))


async def _spaced(producer: Producer, count: int, least_seconds: float, most_seconds: float) -> dict[str, float]:
    """One task after another; a gap begins when the one before has arrived, so no task waits behind another."""
    for _ in range(WARM_LATENCIES):
        await producer.one(CLOCKED, time.time_ns())
    await _arrived(WARM_LATENCIES)
    for number in range(1, count + 1):
        # Not in step with anybody's polling.
        await asyncio.sleep(random.uniform(least_seconds, most_seconds))
        await producer.one(CLOCKED, time.time_ns())
        await _arrived(WARM_LATENCIES + number)
    return {"warm": WARM_LATENCIES}


async def _round_trips(call: Callable[[int], Coroutine[Any, Any, None]], count: int) -> dict[str, float]:
    """Enqueue and wait for the result, one after another; the median, in milliseconds."""
    took = []
    for number in range(WARM_LATENCIES + count):
        began = time.perf_counter()
        await call(number)
        took.append(time.perf_counter() - began)
    return {"p50": 1000 * statistics.median(took[WARM_LATENCIES:])}


async def _sustained(producer: Producer, rate: float, seconds: float) -> dict[str, float]:
    """Enqueue at that rate, what is due every ten milliseconds by one bulk call; each task knows when it was due.

    The rate is of those that had arrived by the end, so who sends or runs too slowly shows it in both figures.
    """
    await producer.many(CLOCKED, [time.time_ns()])
    await _arrived(1)
    began, began_ns, sent = time.perf_counter(), time.time_ns(), 0
    while (at := time.perf_counter() - began) < seconds:
        if due := int(at * rate) - sent:
            stamps = [began_ns + int((sent + n) * 1e9 / rate) for n in range(1, due + 1)]
            await producer.many(CLOCKED, stamps)
            sent += due
        await asyncio.sleep(max(0.0, TICK_SECONDS - (time.perf_counter() - began - at)))
    arrived, took = tally.late_count(tally.own_folder()) - 1, time.perf_counter() - began
    await _arrived(1 + sent)
    return {"sent": sent, "rate": arrived / took}


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
            await asyncio.sleep(LOOK_SECONDS)
