"""Random jobs run by a small fleet while everything about them is changed by hand; in the end all of it is right.

The seed decides what each does; it is shown when the test fails and can be given as RACES_SEED. RACES_ROUNDS plays as
many as one likes, RACES_SECONDS is how long each of them is erratic.
"""

from __future__ import annotations

import os
import random
from collections import Counter

from aaiclick_queue import doctor
from aaiclick_queue.flow.admit import Admission
from aaiclick_queue.flow.job_retry import retry_in_job
from aaiclick_queue.flow.operate import work_once
from aaiclick_queue.flow.reaper import Reaper
from aaiclick_queue.flow.resolve import Resolver
from aaiclick_queue.postgres import Database
from aaiclick_queue.settings import Settings
from tests.dag.hands import Hands, assert_counted, job_row
from tests.dag.test_random import EMPTY
from tests.races.fleet import Fleet
from tests.races.props import Props

SECONDS = 10.0
PLACES = ("waiting", "arrivals", "ready", "delayed", "held", "leases", "slots")
EPOCHS = """
SELECT task_id, run_epoch FROM aaiclick_queue.attempts WHERE worker_id IS NOT NULL
UNION ALL SELECT id, run_epoch FROM aaiclick_queue.tasks WHERE worker_id IS NOT NULL
"""
DEADLOCKS = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
LEFT_BADLY = """
SELECT id, job_id, status FROM aaiclick_queue.tasks
WHERE member_gate IS NOT NULL AND (status IS NULL OR status NOT IN ('COMPLETED', 'SKIPPED'))
"""


async def settle(db: Database) -> None:
    """What is left to be done by those who were stopped in the middle of it."""
    while await work_once(db):
        pass
    resolver = Resolver(db)
    while (done := await resolver.resolve_once()).folded or done.more:
        pass
    await db.fetch("UPDATE aaiclick_queue.workers SET status = 'LOST'")
    await Admission(db).admit_once()
    await Reaper(db).sweep_once()


async def all_is_right(db: Database, fleet: Fleet) -> None:
    """Every job has ended, nothing is left anywhere, and all that is counted is what the tasks say."""
    for job_id in fleet.jobs:
        await assert_counted(db, job_id)
    assert not await db.fetch("SELECT FROM aaiclick_queue.tasks WHERE status IS NULL")
    for place in PLACES:
        left = [dict(row) for row in await db.fetch(f"SELECT * FROM aaiclick_queue.{place}")]
        assert not left, f"left in {place}: {left}"
    assert not [finding for finding in await doctor.check(db) if not finding.ok]
    assert not await db.fetchval(DEADLOCKS)


async def runs_are_right(db: Database, fleet: Fleet) -> None:
    epochs = Counter((row["task_id"], row["run_epoch"]) for row in await db.fetch(EPOCHS))
    assert max(epochs.values()) == 1, "a run is recorded twice"
    assert fleet.landed <= epochs.keys(), "a run that landed is not recorded"
    assert fleet.done["clear"], fleet.done


async def all_of_it_can_be_done_well(db: Database, fleet: Fleet) -> None:
    """What failed or was cancelled is retried in peace, and every job completes."""
    for job_id in fleet.jobs:
        async with db.transaction() as tx:
            await retry_in_job(tx, job_id, by="me")
    await (await Hands.register(db)).run()
    left = [dict(row) for row in await db.fetch(LEFT_BADLY)]
    assert not left, f"nothing fails any more, and these did not complete: {left}"
    for job_id in fleet.jobs:
        job = await job_row(db, job_id)
        assert job["status"] in ("COMPLETED", "CANCELLED") or job["failing_at"] is not None, job
    await all_is_right(db, fleet)


async def test_whatever_is_changed_by_hand_every_job_ends_and_all_its_counts_are_right(
    settings: Settings, props: Props
) -> None:
    rounds = int(os.environ.get("RACES_ROUNDS") or 1)
    seconds = float(os.environ.get("RACES_SECONDS") or SECONDS)
    base = os.environ.get("RACES_SEED") or str(random.randrange(10**6))
    for played in range(rounds):
        seed = f"{base}-{played}" if rounds > 1 else base
        fleet = Fleet(settings, props, seed, seconds=seconds)
        try:
            await fleet.run()
            await settle(props.db)
            await all_is_right(props.db, fleet)
            await runs_are_right(props.db, fleet)
            await all_of_it_can_be_done_well(props.db, fleet)
        except BaseException as error:
            error.add_note(f"RACES_SEED={seed} RACES_SECONDS={seconds} {dict(fleet.done)}")
            raise
        print(f"round {played + 1} {seed}: {dict(fleet.done)}")  # noqa: T201 - shown with -s, for long runs
        if played + 1 < rounds:
            await props.db.fetch(EMPTY)
