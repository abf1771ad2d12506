"""job_test and ajob_test: a job here and now, with the semantics of a real one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from aaiclick_queue import JobFailed, Settings, ajob_test, job, job_test, task
from aaiclick_queue.errors import WrongContext
from aaiclick_queue.postgres import Database
from tests.tools import environment


@task(queue="elsewhere")
async def half(n: int) -> int:
    if n % 2:
        raise ValueError(f"{n} is odd")
    return n // 2


@task
def halves(n: int) -> list[int]:
    return [n, n + 2]


@job
def shrink(n: int) -> object:
    return {"all": half.map(halves(n)).collect(), "one": half.options(max_attempts=1)(n)}


@pytest.fixture
def configured(monkeypatch: pytest.MonkeyPatch, settings: Settings) -> Iterator[None]:
    with environment(monkeypatch, settings):
        yield


def test_a_job_runs_to_its_result_whatever_queues_its_tasks_are_in(configured: None) -> None:
    assert job_test(shrink, 4) == {"all": [2, 3], "one": 2}


async def test_a_failed_job_tells_what_its_first_task_raised(configured: None) -> None:
    with pytest.raises(JobFailed) as raised:
        await ajob_test(half_alone, 3)
    assert "ValueError: 3 is odd" in str(raised.value)
    assert 'raise ValueError(f"{n} is odd")' in "".join(raised.value.__notes__)


@job
def half_alone(n: int) -> object:
    return half.options(max_attempts=1)(n)


async def test_nothing_is_left_of_it_and_nobody_elses_task_is_run(configured: None, settings: Settings) -> None:
    waits = await half.enqueue(8)
    assert await ajob_test(shrink.entrypoint, n=4) == {"all": [2, 3], "one": 2}
    assert await waits.status() == "QUEUED"
    async with Database(settings, size=1) as db:
        left = await db.fetch("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'aaiclick_queue_try%'")
    assert left == []


async def test_inside_a_loop_the_blocking_form_says_what_to_call(configured: None) -> None:
    await asyncio.sleep(0)
    with pytest.raises(WrongContext, match="await ajob_test"):
        job_test(shrink, 4)
