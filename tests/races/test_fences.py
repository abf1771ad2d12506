"""Races of a run's own writes against those who take its lease away: one of them wins, the other writes nothing."""

from __future__ import annotations

import pytest

from aaiclick_queue.flow.cancel import cancel
from aaiclick_queue.flow.complete import complete
from aaiclick_queue.flow.enqueue import NewTask, Spec
from aaiclick_queue.flow.fenced import extend, hold_lease, keep_checkpoint, keep_progress, spawn
from aaiclick_queue.flow.heartbeat import Beat, Counters, beat
from aaiclick_queue.flow.reaper import Reaper
from aaiclick_queue.flow.settle import settle_runs
from aaiclick_queue.outcome import Error, Failed, Later, Outcome, Released
from aaiclick_queue.postgres import Database
from tests.races.orders import Play, Stage
from tests.races.props import LEASE_SECONDS, Props, claim, ended, fence

ERROR = Error("ValueError", "no")


@pytest.mark.parametrize(
    ("outcome", "place"),
    [(None, None), (Failed(ERROR), None), (Later("RETRYING", ERROR, 60), "delayed"), (Released(), "ready")],
    ids=["succeeded", "failed", "retried", "released"],
)
async def test_of_a_completion_and_a_reaper_exactly_one_writes(
    stage: Stage, props: Props, outcome: Outcome | None, place: str | None
) -> None:
    async def scene(play: Play) -> None:
        worker = await props.worker()
        claimed = await props.leased(worker)
        await props.lose(worker)
        landed, reaped = await play.run(
            complete=lambda db: complete(db, [ended(claimed, outcome)], worker_id=worker),
            reap=lambda db: Reaper(db).reap_once(),
        )
        state = await props.state(claimed.task_id)
        assert len(landed) + reaped.lost == 1
        assert state["leased"] == 0
        if reaped.lost:
            assert (state["status"], state["result"], state["ready"]) == (None, None, 0)
            assert (state["delayed"], state["lost_count"], state["attempts"]) == (1, 1, 1)
        elif place is None:
            assert state["status"] == ("FAILED" if outcome else "COMPLETED")
            assert (state["ready"], state["delayed"], state["attempts"]) == (0, 0, 0)
        else:
            assert (state["status"], state[place]) == (None, 1)
            assert not state["lost_count"]
        await cancel(props.db, [claimed.task_id])

    await stage.in_every_order(scene)


async def test_of_a_completion_and_a_cancel_exactly_one_writes(stage: Stage, props: Props) -> None:
    worker = await props.worker()

    async def scene(play: Play) -> None:
        claimed = await props.leased(worker)
        landed, cancelled = await play.run(
            complete=lambda db: complete(db, [ended(claimed)], worker_id=worker),
            cancel=lambda db: cancel(db, [claimed.task_id]),
        )
        state = await props.state(claimed.task_id)
        assert len(landed) + len(cancelled) == 1
        assert state["status"] == ("COMPLETED" if landed else "CANCELLED")
        assert (state["result"] is None, state["leased"]) == (not landed, 0)

    await stage.in_every_order(scene)


async def test_two_reapers_take_a_lost_run_once(stage: Stage, props: Props) -> None:
    async def scene(play: Play) -> None:
        worker = await props.worker()
        claimed = [await props.leased(worker) for _ in range(3)]
        await props.silence(worker)
        reaped = await play.run(one=lambda db: Reaper(db).reap_once(2), other=lambda db: Reaper(db).reap_once(2))
        assert [one.workers for one in reaped] in ([1, 0], [0, 1])
        left = await Reaper(props.db).reap_once()
        assert sum(one.lost for one in [*reaped, left]) == 3
        for one in claimed:
            state = await props.state(one.task_id)
            assert (state["leased"], state["delayed"], state["lost_count"], state["attempts"]) == (0, 1, 1, 1)
        await cancel(props.db, [one.task_id for one in claimed])

    await stage.in_every_order(scene, preemptions=2)


async def test_a_heartbeat_says_that_it_was_given_up_or_the_worker_is_not(stage: Stage, props: Props) -> None:
    async def scene(play: Play) -> None:
        worker = await props.worker()
        claimed = await props.leased(worker)
        await props.silence(worker)
        answer, reaped = await play.run(
            beat=lambda db: _beat(db, worker, [(claimed.task_id, claimed.run_epoch)]),
            reap=lambda db: Reaper(db).reap_once(),
        )
        [row] = await props.db.fetch("SELECT status FROM aaiclick_queue.workers WHERE id = $1", worker)
        assert answer.status == ("ACTIVE" if row["status"] == "ACTIVE" else None)
        assert (row["status"] == "LOST") == bool(reaped.workers)
        if row["status"] == "ACTIVE":
            assert (answer.gone, reaped.lost) == ((), 0)
        await cancel(props.db, [claimed.task_id])

    await stage.in_every_order(scene)


async def test_a_kept_progress_was_kept_while_the_lease_was_held(stage: Stage, props: Props) -> None:
    async def scene(play: Play) -> None:
        worker = await props.worker()
        claimed = await props.leased(worker)
        await props.lose(worker)

        async def write(db: Database) -> tuple[bool, bool, bool]:
            one = fence(claimed, worker)
            return await keep_progress(db, one, "1"), await keep_checkpoint(db, one, "1"), await extend(db, one, 60)

        landed, reaped = await play.run(write=write, reap=lambda db: Reaper(db).reap_once())
        assert list(landed) == sorted(landed, reverse=True), "a later write landed after an earlier one had not"
        rows = await props.db.fetch(
            """SELECT (SELECT count(*) FROM aaiclick_queue.progress WHERE task_id = $1) AS progress,
                      (SELECT count(*) FROM aaiclick_queue.checkpoints WHERE task_id = $1) AS checkpoints""",
            claimed.task_id,
        )
        assert (rows[0]["progress"], rows[0]["checkpoints"]) == (landed[0], landed[1])
        taken = next((at for at, step in enumerate(play.trace) if step.startswith("reap: WITH candidates")), None)
        if taken is not None and reaped.lost:
            before = sum(step.startswith("write: WITH lease") for step in play.trace[:taken])
            assert landed[0] <= (before >= 1)
            assert landed[1] <= (before >= 2)
        await cancel(props.db, [claimed.task_id])

    await stage.in_every_order(scene)


async def test_a_child_is_written_while_the_lease_is_held_or_not_at_all(stage: Stage, props: Props) -> None:
    async def scene(play: Play) -> None:
        worker = await props.worker()
        claimed = await props.leased(worker)
        await props.lose(worker)

        async def spawn_child(db: Database) -> tuple[bool, bool]:
            async with db.transaction() as tx:
                held = await hold_lease(tx, fence(claimed, worker))
                if held:
                    child = Spec("shop.mail.send", "children", parent_id=claimed.task_id)
                    await spawn(tx, child, NewTask("{}", spawn_key="1"), props.take)
                lease = "SELECT FROM aaiclick_queue.leases WHERE task_id = $1"
                return held, bool(await tx.fetch(lease, claimed.task_id))

        (held, is_held), reaped = await play.run(spawn=spawn_child, reap=lambda db: Reaper(db).reap_once())
        assert held <= is_held, "a child was written after its parent's lease was taken"
        rows = await props.db.fetch("SELECT id FROM aaiclick_queue.tasks WHERE parent_id = $1", claimed.task_id)
        assert len(rows) == held
        assert held or reaped.lost == 1
        await cancel(props.db, [claimed.task_id, *(row["id"] for row in rows)])

    await stage.in_every_order(scene)


async def test_more_time_and_the_end_of_the_same_run_both_land(stage: Stage, props: Props) -> None:
    """An update of the lease moves its row: the completion that waited for it must find it where it is then."""
    worker = await props.worker()

    async def scene(play: Play) -> None:
        claimed = await props.leased(worker)
        _, landed = await play.run(
            extend=lambda db: extend(db, fence(claimed, worker), 60),
            complete=lambda db: complete(db, [ended(claimed)], worker_id=worker),
        )
        assert landed == {claimed.task_id}
        assert (await props.state(claimed.task_id))["status"] == "COMPLETED"

    await stage.in_every_order(scene)


async def test_strangers_are_handed_back_once_and_at_no_cost(stage: Stage, props: Props) -> None:
    worker = await props.worker()

    async def scene(play: Play) -> None:
        strangers = [await props.leased(worker) for _ in range(2)]
        ids = {claimed.task_id for claimed in strangers}
        await props.db.fetch("UPDATE aaiclick_queue.leases SET claimed_at = now() - interval '6 s'")

        async def hand_back(db: Database) -> set[int]:
            found = dict((await _beat(db, worker, [])).strangers)
            runs = [ended(claimed, Released()) for claimed in strangers if claimed.task_id in found]
            return await settle_runs(db, runs, worker_id=worker, now=0.0) if runs else set()

        one, other = await play.run(one=hand_back, other=hand_back)
        assert sorted([*one, *other]) == sorted(ids)
        for task_id in ids:
            state = await props.state(task_id)
            assert (state["ready"], state["leased"], state["attempts"]) == (1, 0, 0)
        again = await claim(props.db, worker)
        assert [(claimed.attempt, claimed.lost_count, claimed.run_epoch) for claimed in again] == [(1, 0, 2)] * 2
        await cancel(props.db, sorted(ids))

    await stage.in_every_order(scene)


async def _beat(db: Database, worker: int, runs: list[tuple[int, int]]) -> Beat:
    return await beat(db, worker, runs, lease_seconds=LEASE_SECONDS, look_for_strangers=True, counters=Counters())
