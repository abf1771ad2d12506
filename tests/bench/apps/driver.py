"""The command line that every measured system answers to: `setup`, `bulk`, `single`, `concurrent`, `latency`, `work`.

Ours also to `wide` and `deep`, which are jobs.

Standard library alone, because it is imported in every peer's venv.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from tests.bench.apps import tally

WARM_LATENCIES = 20
PATIENCE_SECONDS = 60


class Producer(Protocol):
    """How one system enqueues, by its own means."""

    async def noop(self, n: int) -> None:
        """Enqueue the task that does nothing."""

    async def clocked(self, sent_ns: int) -> None:
        """Enqueue the task that tells how late it starts."""

    async def many(self, count: int) -> None:
        """Enqueue that many that do nothing, in the quickest way that the system documents."""


Open = Callable[[], AbstractAsyncContextManager[Producer]]
Step = Callable[[], Coroutine[Any, Any, None]]


def main(producer: Open, *, setup: Step | None = None, work: Step | None = None) -> None:
    """Run the command that was given; what it measured goes to stdout as JSON."""
    command, *arguments = sys.argv[1:]
    if command == "work" and work is not None:
        run(work())
    elif command == "setup":
        run(setup()) if setup is not None else None
    else:
        print(json.dumps(run(_measure(producer, command, *map(int, arguments)))))  # noqa: T201 - the answer


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run it on uvloop where there is one."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(coroutine)
    return uvloop.run(coroutine)


async def _measure(open_producer: Open, command: str, count: int, other: int = 0) -> dict[str, float]:
    async with open_producer() as producer:
        match command:
            case "bulk":
                if other:
                    await producer.many(other)
                return await _timed(producer.many(count))
            case "single":
                await _one_by_one(producer, count // 10)
                return await _timed(_one_by_one(producer, count))
            case "concurrent":
                await _at_once(producer, count // 10, other)
                return await _timed(_at_once(producer, count, other))
            case "wide" | "deep":
                return await _timed(getattr(producer, command)(count))
            case "latency":
                return await _spaced(producer, count, gap_seconds=other / 1000)
    raise SystemExit(f"{command!r} is no command of the benchmark's drivers")


async def _timed(work: Awaitable[None]) -> dict[str, float]:
    began = time.perf_counter()
    await work
    return {"seconds": time.perf_counter() - began}


async def _one_by_one(producer: Producer, count: int) -> None:
    for n in range(count):
        await producer.noop(n)


async def _at_once(producer: Producer, count: int, width: int) -> None:
    await asyncio.gather(*(_one_by_one(producer, count // width) for _ in range(width)))


async def _spaced(producer: Producer, count: int, *, gap_seconds: float) -> dict[str, float]:
    for _ in range(WARM_LATENCIES):
        await producer.clocked(time.time_ns())
    await _arrived(WARM_LATENCIES)
    for _ in range(count):
        # Not in step with anybody's polling.
        await asyncio.sleep(gap_seconds * random.uniform(0.5, 1.5))
        await producer.clocked(time.time_ns())
    await _arrived(WARM_LATENCIES + count)
    return {"warm": WARM_LATENCIES}


async def _arrived(count: int) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(tally.lates(tally.own_folder())) < count:  # noqa: ASYNC110 - another process writes them
            await asyncio.sleep(0.05)
