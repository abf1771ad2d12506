"""Metrics: what a process enqueued and executed can be read from its registry."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from aaiclick_queue import (
    Client,
    Enqueuing,
    Middleware,
    Proceed,
    Settings,
    Snooze,
    TaskFailed,
    current,
    middleware,
    task,
    use,
)
from aaiclick_queue.integrations.prometheus import Metrics
from tests.tools import running_worker, until


@task(entrypoint="tests.metrics.fine", queue="mail")
async def fine(n: int = 0) -> int:
    return n


@task(entrypoint="tests.metrics.fails", max_attempts=2, retry_delay=0, queue="mail")
async def fails() -> None:
    raise ValueError("no luck")


@task(entrypoint="tests.metrics.snoozes", queue="mail")
async def snoozes() -> None:
    if current().run_epoch == 1:
        raise Snooze(0)


class Late(Middleware):
    async def enqueue(self, call: Enqueuing, proceed: Proceed[list[int]]) -> list[int]:
        await proceed()
        raise RuntimeError("too late")


async def test_tasks_are_counted_and_timed(quick: Settings, client: Client) -> None:
    registry = CollectorRegistry()
    use(Metrics(registry))

    def value(name: str, **labels: str) -> float:
        return registry.get_sample_value(f"aaiclick_queue_{name}", {"queue": "mail", **labels}) or 0.0

    fine_is, fails_is, snoozes_is = ({"entrypoint": f"tests.metrics.{name}"} for name in ("fine", "fails", "snoozes"))
    async with running_worker(quick, queues={"mail": 1}):
        await fine.enqueue_many([{"n": n} for n in range(5)], client=client)
        assert await (await fine.enqueue(7, client=client)).result(timeout=30) == 7
        with pytest.raises(TaskFailed):
            await (await fails.enqueue(client=client)).result(timeout=30)
        await (await snoozes.enqueue(client=client)).result(timeout=30)
        await until(lambda: value("tasks_completed_total", **fine_is) == 6)
        await until(lambda: value("tasks_completed_total", **snoozes_is) == 1)
    assert value("tasks_created_total", **fine_is) == 6
    assert value("tasks_created_total", **fails_is) == 1
    assert value("tasks_failed_total", **fails_is) == 1
    assert value("tasks_failed_total", **fine_is) == 0
    assert value("attempts_finished_total", **fails_is, outcome="retried") == 1
    assert value("attempts_finished_total", **fails_is, outcome="failed") == 1
    assert value("attempts_finished_total", **snoozes_is, outcome="snoozed") == 1
    assert value("task_duration_seconds_count", **fine_is) == 6
    assert value("task_duration_seconds_count", **fails_is) == 2
    assert value("task_wait_seconds_count") == 10
    assert value("tasks_running", **fine_is) == 0
    assert value("task_duration_seconds_bucket", **fine_is, le="+Inf") == 6


async def test_errors_of_middleware_can_be_read(client: Client) -> None:
    registry = CollectorRegistry()
    use(Metrics(registry), Late())
    before = middleware.failures["Late"]
    await fine.enqueue(client=client)
    name, labels = "aaiclick_queue_middleware_errors_total", {"middleware": "Late"}
    assert registry.get_sample_value(name, labels) == before + 1
    assert b"aaiclick_queue_tasks_created_total{" in generate_latest(registry)


def test_registries_are_independent_and_a_second_in_one_is_refused() -> None:
    registry = CollectorRegistry()
    Metrics(registry)
    Metrics(CollectorRegistry())
    with pytest.raises(ValueError, match="Duplicated"):
        Metrics(registry)
