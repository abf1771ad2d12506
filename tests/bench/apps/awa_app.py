# mypy: ignore-errors
"""awa under measurement, in a venv of its own."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, urlsplit

from awa import AsyncClient

from tests.bench.apps import driver, tally


def _url() -> str:
    """Its driver wants the folder of a unix socket where others have the host."""
    parts = urlsplit(os.environ["BENCH_POSTGRES_URL"])
    query = dict(parse_qsl(parts.query))
    if not query.get("host", "").startswith("/"):
        return parts.geturl()
    user = parts.username or "postgres"
    return f"postgresql://{user}@{quote(query['host'], safe='')}:{query.get('port', 5432)}{parts.path}"


URL = _url()
ROWS = 5000  # of one COPY


@dataclass
class Noop:
    value: int


@dataclass
class Clocked:
    value: int


@dataclass
class Slept:
    value: int


@dataclass
class Burnt:
    value: int


KINDS = {"noop": Noop, "clocked": Clocked, "slept": Slept, "burnt": Burnt}


async def work() -> None:
    client = AsyncClient(URL, max_connections=24)  # its guide: 4 a queue and 20

    @client.task(Noop)
    async def noop(job) -> None:
        tally.ran()

    @client.task(Clocked)
    async def clocked(job) -> None:
        tally.clocked(job.args.value)

    @client.task(Slept)
    async def slept(job) -> None:
        await asyncio.sleep(tally.SLEEP_SECONDS)
        tally.ran()

    @client.task(Burnt)
    async def burnt(job) -> None:
        tally.burn()
        tally.ran()

    await client.start([("default", int(os.environ.get("BENCH_SLOTS", "256")))])
    await asyncio.Event().wait()


class Producer:
    def __init__(self, client) -> None:
        self._client = client

    async def one(self, name, value) -> None:
        await self._client.insert(KINDS[name](value))

    async def many(self, name, values) -> None:
        kind = KINDS[name]
        for start in range(0, len(values), ROWS):
            await self._client.enqueue_many_copy([kind(value) for value in values[start : start + ROWS]])


@asynccontextmanager
async def producer():
    async with AsyncClient(URL, max_connections=24) as client:
        yield Producer(client)


async def setup() -> None:
    async with AsyncClient(URL) as client:
        await client.migrate()
        await client.install_queue_storage()


if __name__ == "__main__":
    driver.main(producer, setup=setup, work=work)
