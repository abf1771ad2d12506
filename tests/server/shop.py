"""A small shop: the tasks and jobs that the tests of the server run."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from aaiclick_queue import current, job, task

log = logging.getLogger("shop")


@task(queue="mail", max_attempts=2, retry_delay=0.01)
async def send_mail(to: str, subject: str = "Your order") -> str:
    log.info("sending %r to %s", subject, to)
    if to.endswith(".invalid"):
        log.warning("the server of %s does not answer", to)
        raise ConnectionError(f"421 too many connections from {to.partition('@')[2]}")
    return f"sent to {to}"


@task(queue="default", max_attempts=1)
async def fetch_page(url: str) -> int:
    if "slow" in url:
        raise TimeoutError(f"no answer from {url} within 10 s")
    await current().checkpoint({"url": url, "bytes": 2048})
    return 2048


@task(queue="reports")
async def build_report(number: int) -> dict[str, int]:
    await asyncio.sleep(0)
    return {"rows": number * 100}


@task(queue="default")
async def nap(seconds: float = 60) -> None:
    await asyncio.sleep(seconds)


@task
async def talk(words: list[str], seconds: float = 0) -> None:
    for word in words:
        print(word, flush=True)  # noqa: T201 - on purpose
        await asyncio.sleep(seconds)


@task(max_attempts=3, retry_delay=0.01)
async def talk_again(seconds: float = 0) -> None:
    attempt = current().attempt
    for word in ("begins and says much more than the next", "ends") if attempt == 1 else ("begins", "ends"):
        print(f"attempt {attempt} {word}", flush=True)  # noqa: T201 - on purpose
        await asyncio.sleep(seconds)
    if attempt < 3:
        raise ConnectionError("once more")


@task
async def plan(day: str) -> list[int]:
    return [1, 2, 3]


@task
async def extract(source: str, parts: Any) -> dict[str, Any]:
    await asyncio.sleep(0.02)
    return {"source": source}


@task
async def clean(rows: Any) -> dict[str, Any]:
    return {"rows": 9}


@task(max_attempts=2, retry_delay=0.01)
async def join_rows(left: Any, right: Any, *, broken: bool = False) -> int:
    if broken:
        raise ValueError("bad row 9912: 'price' is no number")
    return 18


@task
async def load(rows: Any) -> str:
    return "loaded"


@task
async def notify(rows: Any, seconds: float = 0) -> str:
    await asyncio.sleep(seconds)
    return "told"


@job("etl_nightly")
def etl(day: str = "2026-11-16", broken: bool = False, slow: float = 0) -> Any:
    parts = plan(day)
    eu, us = extract.options(name="extract_eu")("eu", parts), extract.options(name="extract_us")("us", parts)
    joined = join_rows(clean.options(name="clean_eu")(eu), clean.options(name="clean_us")(us), broken=broken)
    return {"load": load(joined), "told": notify(joined, slow)}
