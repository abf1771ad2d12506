"""Races of the claim against everybody else who takes tasks out of the line."""

from __future__ import annotations

from itertools import chain

from aaiclick_queue.flow.cancel import cancel
from aaiclick_queue.flow.complete import complete
from aaiclick_queue.flow.reaper import Reaper
from aaiclick_queue.postgres import Database
from tests.races.orders import Play, Stage
from tests.races.props import Props, claim, ended

PUT_IN_LINE = "INSERT INTO aaiclick_queue.ready (queue, rank, order_key, task_id) VALUES ('default', 0, $1, $1)"


async def test_two_claims_never_get_the_same_task(stage: Stage, props: Props) -> None:
    one, other = await props.worker(), await props.worker()

    async def scene(play: Play) -> None:
        ids = await props.enqueue(props.db, count=3)
        first, second = await play.run(
            one=lambda db: claim(db, one, limit=2), other=lambda db: claim(db, other, limit=2)
        )
        assert sorted(claimed.task_id for claimed in [*first, *second]) == ids
        assert [(await props.state(task_id))["leased"] for task_id in ids] == [1, 1, 1]

    await stage.in_every_order(scene)


async def test_three_claims_share_the_line_and_wait_for_nobody(stage: Stage, props: Props) -> None:
    workers = [await props.worker() for _ in range(3)]

    async def scene(play: Play) -> None:
        ids = await props.enqueue(props.db, count=3)
        claims = await play.run(
            a=lambda db: claim(db, workers[0], limit=1),
            b=lambda db: claim(db, workers[1], limit=1),
            c=lambda db: claim(db, workers[2], limit=1),
        )
        assert sorted(claimed.task_id for claimed in chain(*claims)) == ids

    await stage.in_every_order(scene)


async def test_a_cancel_is_never_lost_to_a_claim(stage: Stage, props: Props) -> None:
    worker = await props.worker()

    async def scene(play: Play) -> None:
        task_id = await props.queued()
        claimed, cancelled = await play.run(claim=lambda db: claim(db, worker), cancel=lambda db: cancel(db, [task_id]))
        assert cancelled == {task_id}
        state = await props.state(task_id)
        assert (state["status"], state["ready"], state["leased"]) == ("CANCELLED", 0, 0)
        assert state["run_epoch"] == len(claimed)

    await stage.in_every_order(scene)


async def test_of_a_cancel_and_a_whole_run_exactly_one_ends_the_task(stage: Stage, props: Props) -> None:
    worker = await props.worker()

    async def run(db: Database) -> set[int]:
        return {
            task_id
            for claimed in await claim(db, worker)
            for task_id in await complete(db, [ended(claimed)], worker_id=worker)
        }

    async def scene(play: Play) -> None:
        task_id = await props.queued()
        completed, cancelled = await play.run(run=run, cancel=lambda db: cancel(db, [task_id]))
        state = await props.state(task_id)
        assert (completed, cancelled) in (({task_id}, set()), (set(), {task_id}))
        assert state["status"] == ("COMPLETED" if completed else "CANCELLED")
        assert (state["result"] is not None) == bool(completed)
        assert (state["ready"], state["leased"]) == (0, 0)

    await stage.in_every_order(scene)


async def test_a_task_in_line_that_is_moved_meets_its_cancel_in_one_of_the_places(stage: Stage, props: Props) -> None:
    """Due, claimed and cancelled at the same time: three connections, and the cancel gets it wherever it is."""
    worker = await props.worker()

    async def scene(play: Play) -> None:
        task_id = await props.queued(countdown=0.0001)
        _, _, cancelled = await play.run(
            due=lambda db: Reaper(db).due_once(),
            claim=lambda db: claim(db, worker),
            cancel=lambda db: cancel(db, [task_id]),
        )
        assert cancelled == {task_id}
        state = await props.state(task_id)
        assert (state["status"], state["ready"], state["delayed"], state["leased"]) == ("CANCELLED", 0, 0, 0)

    await stage.in_every_order(scene, preemptions=2)


async def test_an_expired_task_is_cancelled_or_claimed_with_the_news_that_it_is_expired(
    stage: Stage, props: Props
) -> None:
    worker = await props.worker()

    async def scene(play: Play) -> None:
        task_id = await props.queued(expires=0.0001)
        reaped, claimed = await play.run(expire=lambda db: Reaper(db).reap_once(), claim=lambda db: claim(db, worker))
        state = await props.state(task_id)
        if claimed:
            assert claimed[0].expired
            assert (state["status"], state["leased"], reaped.expired) == (None, 1, 0)
            await cancel(props.db, [task_id])
        else:
            assert (state["status"], state["error"], state["ready"], reaped.expired) == ("CANCELLED", "Expired", 0, 1)

    await stage.in_every_order(scene)


async def test_a_worker_that_is_marked_lost_claims_nothing_that_stays_with_it(stage: Stage, props: Props) -> None:
    async def scene(play: Play) -> None:
        worker = await props.worker()
        task_id = await props.queued()
        await props.silence(worker)
        _, claimed = await play.run(reap=lambda db: Reaper(db).reap_once(), claim=lambda db: claim(db, worker))
        assert await claim(props.db, worker) == []
        await Reaper(props.db).reap_once()  # what was claimed while it was being marked is found by the next pass
        state = await props.state(task_id)
        assert (state["leased"], state["ready"] + state["delayed"]) == (0, 1)
        assert state["delayed"] == len(claimed)
        await cancel(props.db, [task_id])

    await stage.in_every_order(scene)


async def test_a_task_in_two_places_does_not_stop_the_claims_of_others(props: Props) -> None:
    one, other = await props.worker(), await props.worker()
    twice = await props.leased(one)
    await props.db.fetch(PUT_IN_LINE, twice.task_id)
    ids = await props.enqueue(props.db, count=3)
    assert [claimed.task_id for claimed in await claim(props.db, other)] == ids
    state = await props.state(twice.task_id)
    assert (state["ready"], state["leased"]) == (0, 1)
    assert await complete(props.db, [ended(twice)], worker_id=one) == {twice.task_id}


async def test_a_row_in_line_without_a_task_does_not_stop_the_claims_of_others(props: Props) -> None:
    worker = await props.worker()
    await props.db.fetch(PUT_IN_LINE, 1)
    ids = await props.enqueue(props.db, count=3)
    assert [claimed.task_id for claimed in await claim(props.db, worker)] == ids
