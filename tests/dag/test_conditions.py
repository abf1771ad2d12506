"""Conditions of several kinds on one task all have to hold: what a task waits for, and what its group waits for."""

from __future__ import annotations

import pytest

from aaiclick_queue.flow.enqueue import id_source
from aaiclick_queue.flow.graph import Plan, Previous
from aaiclick_queue.flow.submit import Adding, add_to_job
from aaiclick_queue.outcome import Error, Outcome, Skipped, Succeeded
from aaiclick_queue.postgres import Database
from tests.planned import Job, resolve
from tests.tools import claim, end, place_of, register_worker

SKIP = Skipped(Error("Skip", "no need"))
LEFT = Previous(0, choices=("left",), known=("left", "right"))


async def run(db: Database, job: Job, outcomes: dict[int, Outcome]) -> None:
    """End these tasks so, and see what that opens."""
    by_id = {job[number]: outcome for number, outcome in outcomes.items()}
    for one in await claim(db, await register_worker(db)):
        await end(db, one, by_id[one.task_id])
    await resolve(db)


@pytest.mark.parametrize(("outcome", "place"), [(SKIP, ["SKIPPED"]), (Succeeded(None), ["ready"])])
async def test_any_of_that_brought_nothing_skips_although_all_of_was_done(
    db: Database, outcome: Outcome, place: list[str]
) -> None:
    job = Job()
    one, other = job.tasks(2)
    behind = job.task(one, Previous(other, any_of=True))
    await job.submit(db)
    await run(db, job, {one: Succeeded(None), other: outcome})
    assert await place_of(db, job[behind]) == place


@pytest.mark.parametrize("rule", ["all_success", "one_success", "all_done", "none_failed", "always"])
@pytest.mark.parametrize(("result", "place"), [('"right"', ["SKIPPED"]), ('"left"', ["ready"])])
async def test_a_group_on_the_side_not_taken_does_not_run_whatever_its_tasks_wait_for(
    db: Database, rule: str, result: str, place: list[str]
) -> None:
    job = Job()
    chooser, other = job.tasks(2)
    group = job.group(LEFT._replace(number=chooser), rule=rule)
    alone, inside = job.task(group=group), job.task(other, group=group)
    await job.submit(db)
    await run(db, job, {chooser: Succeeded(result), other: Succeeded(None)})
    assert await place_of(db, job[alone]) == place
    assert await place_of(db, job[inside]) == place


@pytest.mark.parametrize(("result", "place"), [('"right"', ["SKIPPED"]), ('"left"', ["ready"])])
async def test_a_task_that_is_added_to_a_group_before_its_branch_is_decided_goes_with_it(
    db: Database, result: str, place: list[str]
) -> None:
    job = Job()
    chooser, other = job.tasks(2)
    group = job.group(LEFT._replace(number=chooser))
    job.task(group=group)
    await job.submit(db)
    late = Job()
    added = late.task(job[other], group=job[group])
    ids = await id_source(db)
    async with db.transaction() as tx:
        written = await add_to_job(tx, Adding(job.id), Plan(late.plan.tasks, []), ids.take)
    await run(db, job, {chooser: Succeeded(result), other: Succeeded(None)})
    assert await place_of(db, written.ids[added]) == place


@pytest.mark.parametrize(
    ("result", "place"), [('["left", "up"]', ["ready"]), ('"left"', ["SKIPPED"]), ('["right", "up"]', ["SKIPPED"])]
)
async def test_a_choice_for_a_task_and_another_one_for_its_group_have_both_to_be_taken(
    db: Database, result: str, place: list[str]
) -> None:
    job = Job()
    chooser = job.task()
    group = job.group(LEFT._replace(number=chooser))
    inside = job.task(Previous(chooser, choices=("up",), known=("up", "down", "left", "right")), group=group)
    await job.submit(db)
    await run(db, job, {chooser: Succeeded(result)})
    assert await place_of(db, job[inside]) == place


async def test_a_task_on_two_sides_of_one_branch_runs_when_either_is_taken(db: Database) -> None:
    job = Job()
    chooser = job.task()
    sides = [Previous(chooser, choices=(side,), known=("left", "right", "up")) for side in ("left", "right")]
    both = job.task(*sides)
    await job.submit(db)
    await run(db, job, {chooser: Succeeded('"right"')})
    assert await place_of(db, job[both]) == ["ready"]
