"""The flush of a process carries everybody's outcomes: one that cannot be written must not hold up the others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from aaiclick_queue.flow.complete import Completer
from aaiclick_queue.outcome import Ended, Error, Later, Succeeded
from tests.races.props import Props, claim, ended


@asynccontextmanager
async def completing(props: Props, worker: int) -> AsyncIterator[tuple[Completer, set[int]]]:
    """A completer that runs, and the ids that have landed with it."""
    landed: set[int] = set()

    def note(batch: Sequence[Ended], ids: set[int]) -> None:
        landed.update(ids)

    completer = Completer(props.db, worker_id=lambda: worker, landed=note)
    running = asyncio.create_task(completer.run())
    try:
        yield completer, landed
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize("bad", [{3}, {0, 4, 9}, set(range(10))], ids=["one", "three", "all"])
async def test_an_outcome_that_postgres_refuses_fails_alone(props: Props, bad: set[int]) -> None:
    worker = await props.worker()
    await props.enqueue(props.db, count=10)
    claimed = await claim(props.db, worker)
    async with completing(props, worker) as (completer, landed):
        for at, one in enumerate(claimed):
            completer.add(ended(one, Succeeded('"\\u0000"' if at in bad else '"fine"')))
        await completer.drained()
    assert landed == {one.task_id for one in claimed}
    for at, one in enumerate(claimed):
        state = await props.state(one.task_id)
        assert (state["status"], state["leased"]) == ("FAILED" if at in bad else "COMPLETED", 0)
        assert ("UntranslatableCharacter" in (state["error"] or "")) == (at in bad)


async def test_a_refused_outcome_does_not_write_those_beside_it_twice(props: Props) -> None:
    worker = await props.worker()
    await props.enqueue(props.db, count=6)
    claimed = await claim(props.db, worker)
    async with completing(props, worker) as (completer, landed):
        for at, one in enumerate(claimed):
            later = Later("RETRYING", Error("ValueError", "no"), 60.0)
            completer.add(ended(one, later if at % 2 else Succeeded('"\\u0000"' if at == 0 else "1")))
        await completer.drained()
    assert landed == {one.task_id for one in claimed}
    for at, one in enumerate(claimed):
        state = await props.state(one.task_id)
        assert state["attempts"] == at % 2
        assert state["delayed"] == at % 2


async def test_outcomes_of_runs_that_are_gone_leave_the_others_alone(props: Props) -> None:
    worker, other = await props.worker(), await props.worker()
    await props.enqueue(props.db, count=4)
    claimed = await claim(props.db, worker)
    await props.db.fetch(
        "UPDATE aaiclick_queue.leases SET worker_id = $1 WHERE task_id = $2", other, claimed[0].task_id
    )
    await props.db.fetch("UPDATE aaiclick_queue.leases SET run_epoch = 7 WHERE task_id = $1", claimed[1].task_id)
    async with completing(props, worker) as (completer, landed):
        for one in claimed:
            completer.add(ended(one))
        await completer.drained()
    assert landed == {one.task_id for one in claimed[2:]}
    for one in claimed[:2]:
        state = await props.state(one.task_id)
        assert (state["status"], state["result"], state["leased"]) == (None, None, 1)
