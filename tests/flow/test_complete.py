"""Complete: outcomes are written behind the fence, a batch at a time, and one bad row holds up nobody."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from aaiclick_queue.errors import PostgresUnavailable
from aaiclick_queue.flow.cancel import cancel
from aaiclick_queue.flow.claim import Claimed
from aaiclick_queue.flow.complete import Completer, complete
from aaiclick_queue.outcome import Cancelled, Ended, Error, Failed, Later, Outcome, Released, Succeeded
from aaiclick_queue.postgres import Connection, Database
from aaiclick_queue.settings import Settings
from tests.tools import claim, count, end, holder_of, leased, place_of, put, register_worker, row, rows

BOOM = Error("Boom", "it went wrong")
OUTCOMES: list[Outcome] = [
    Succeeded('{"n": 1}'),
    Failed(BOOM),
    Cancelled(BOOM),
    Later("RETRYING", BOOM),
    Later("SNOOZED", BOOM, 5),
    Later("UNKNOWN", BOOM, 5),
    Released(),
]


def ended(run: Claimed, outcome: Outcome, *, ran: float = 0.0) -> Ended:
    now = time.monotonic()
    return Ended(run.task_id, run.run_epoch, outcome, now - ran, now)


async def test_a_success_writes_the_result_and_ends_the_lease(db: Database) -> None:
    run = await leased(db)
    worker_id = await holder_of(db, run.task_id)
    assert worker_id
    assert await complete(db, [ended(run, Succeeded('{"n": 1}'), ran=7)], worker_id=worker_id) == {run.task_id}
    assert await place_of(db, run.task_id) == ["COMPLETED"]
    task = await row(db, "tasks", run.task_id)
    assert msgspec.json.decode(task["result"]) == {"n": 1}
    assert (task["attempt"], task["run_epoch"], task["worker_id"], task["error"]) == (1, 1, worker_id, None)
    assert (task["finished_at"] - task["started_at"]).total_seconds() == pytest.approx(7, abs=0.1)


async def test_no_result_is_no_result(db: Database) -> None:
    run = await leased(db)
    assert await end(db, run, Succeeded(None))
    assert (await row(db, "tasks", run.task_id))["result"] is None


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda outcome: getattr(outcome, "kind", type(outcome).__name__))
@pytest.mark.parametrize("breach", ["another worker", "an older epoch", "a newer epoch", "another task"])
async def test_nothing_is_written_without_the_whole_fence(db: Database, outcome: Outcome, breach: str) -> None:
    run = await leased(db)
    worker_id = await holder_of(db, run.task_id)
    assert worker_id
    wrong = ended(run, outcome)
    if breach == "another worker":
        worker_id = await register_worker(db)
    elif breach == "another task":
        wrong = msgspec.structs.replace(wrong, task_id=run.task_id + 1)
    else:
        wrong = msgspec.structs.replace(wrong, run_epoch=0 if breach == "an older epoch" else 2)
    before = await row(db, "tasks", run.task_id), await row(db, "leases", run.task_id)
    assert await complete(db, [wrong], worker_id=worker_id) == set()
    assert (await row(db, "tasks", run.task_id), await row(db, "leases", run.task_id)) == before
    assert [await count(db, table) for table in ("ready", "delayed", "attempts", "events")] == [0] * 4


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda outcome: getattr(outcome, "kind", type(outcome).__name__))
async def test_a_run_whose_lease_is_gone_writes_nothing(db: Database, outcome: Outcome) -> None:
    run = await leased(db)
    worker_id = await holder_of(db, run.task_id)
    assert worker_id
    assert await cancel(db, [run.task_id])
    assert await complete(db, [ended(run, outcome)], worker_id=worker_id) == set()
    assert await place_of(db, run.task_id) == ["CANCELLED"]
    assert (await row(db, "tasks", run.task_id))["result"] is None


async def test_an_outcome_is_taken_once(db: Database) -> None:
    run = await leased(db)
    worker_id = await holder_of(db, run.task_id)
    assert worker_id
    assert await end(db, run, Succeeded("1"))
    assert await complete(db, [ended(run, Succeeded("2"))], worker_id=worker_id) == set()
    assert (await row(db, "tasks", run.task_id))["result"] == "1"


async def test_a_batch_of_all_kinds_lands_together_and_names_what_did_not(db: Database) -> None:
    worker_id = await register_worker(db)
    await put(db, count=len(OUTCOMES) + 1)
    *runs, stale = await claim(db, worker_id, 20)
    await cancel(db, [stale.task_id])
    batch = [ended(run, outcome) for run, outcome in zip(runs, OUTCOMES, strict=True)]
    landed = await complete(db, [*batch, ended(stale, Succeeded("1"))], worker_id=worker_id)
    assert landed == {run.task_id for run in runs}
    assert [await place_of(db, run.task_id) for run in runs] == [
        ["COMPLETED"],
        ["FAILED"],
        ["CANCELLED"],
        ["delayed"],
        ["delayed"],
        ["delayed"],
        ["ready"],
    ]


async def test_completing_inside_a_transaction_that_rolls_back_leaves_the_lease(db: Database) -> None:
    run = await leased(db)
    worker_id = await holder_of(db, run.task_id)
    assert worker_id
    with pytest.raises(ZeroDivisionError):
        async with db.transaction() as tx:
            assert await complete(tx, [ended(run, Succeeded("1"))], worker_id=worker_id)
            raise ZeroDivisionError
    assert await place_of(db, run.task_id) == ["leases"]
    assert await end(db, run, Succeeded("2"))


# The completer of a worker.


class Landings:
    """Who landed and who did not, as a worker hears of it."""

    def __init__(self) -> None:
        self.landed: set[int] = set()
        self.stale: set[int] = set()
        self.batches = 0

    def __call__(self, batch: Sequence[Ended], landed: set[int]) -> None:
        self.batches += 1
        self.landed |= landed
        self.stale |= {run.task_id for run in batch} - landed


@asynccontextmanager
async def completer(db: Database, worker_id: int | Callable[[], int]) -> AsyncIterator[tuple[Completer, Landings]]:
    landings = Landings()
    one = Completer(db, worker_id=worker_id if callable(worker_id) else lambda: worker_id, landed=landings)
    running = asyncio.create_task(one.run())
    try:
        yield one, landings
        async with asyncio.timeout(30):
            await one.drained()
    finally:
        running.cancel()
        await asyncio.wait([running])


class LosesAnswers(Database):
    """Statements are carried out and committed, and the first `lost` answers never arrive."""

    def __init__(self, settings: Settings, *, lost: int) -> None:
        super().__init__(settings, size=2)
        self.lost = lost

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        async with super().connection() as connection:
            yield connection
            if self.lost:
                self.lost -= 1
                raise ConnectionResetError("the answer was lost")


async def test_what_gathers_during_a_flush_is_written_by_the_next_one(db: Database) -> None:
    worker_id = await register_worker(db)
    await put(db, count=50)
    runs = await claim(db, worker_id, 50)
    async with completer(db, worker_id) as (one, landings):
        for run in runs:
            one.add(ended(run, Succeeded(None)))
    assert landings.landed == {run.task_id for run in runs}
    assert landings.batches == 1


async def test_an_answer_that_was_lost_is_looked_up_and_not_guessed(db: Database, settings: Settings) -> None:
    worker_id = await register_worker(db)
    await put(db, count=4)
    succeeded, failed, retried, stale = await claim(db, worker_id)
    await cancel(db, [stale.task_id])
    async with LosesAnswers(settings, lost=2) as losing, completer(losing, worker_id) as (one, landings):
        one.add(ended(succeeded, Succeeded("1")))
        one.add(ended(failed, Failed(BOOM)))
        one.add(ended(retried, Later("RETRYING", BOOM, 5)))
        one.add(ended(stale, Succeeded("3")))
    assert landings.landed == {succeeded.task_id, failed.task_id, retried.task_id}
    assert landings.stale == {stale.task_id}


async def test_what_another_worker_recorded_under_the_same_epoch_is_not_taken_for_ours(
    db: Database, settings: Settings
) -> None:
    worker_id, other = await register_worker(db), await register_worker(db)
    await put(db, count=2)
    succeeded, retried = await claim(db, worker_id)
    # As after a crash that forgot the claim: given out again, to somebody else.
    await db.fetch("UPDATE aaiclick_queue.leases SET worker_id = $1", other)
    outcomes = [ended(succeeded, Succeeded("1")), ended(retried, Later("RETRYING", BOOM, 5))]
    assert len(await complete(db, outcomes, worker_id=other)) == 2
    async with LosesAnswers(settings, lost=1) as losing, completer(losing, worker_id) as (one, landings):
        for outcome in outcomes:
            one.add(outcome)
    assert (landings.landed, landings.stale) == (set(), {succeeded.task_id, retried.task_id})


async def test_outcomes_wait_while_postgres_is_away(db: Database, settings: Settings) -> None:
    class Away(Database):
        refusals = 2

        @asynccontextmanager
        async def connection(self) -> AsyncIterator[Connection]:
            if self.refusals:
                self.refusals -= 1
                raise PostgresUnavailable("away")
            async with super().connection() as connection:
                yield connection

    run = await leased(db)
    worker_id = await holder_of(db, run.task_id)
    assert worker_id
    async with Away(settings, size=1) as away, completer(away, worker_id) as (one, landings):
        one.add(ended(run, Succeeded("1")))
    assert landings.landed == {run.task_id}
    assert (await row(db, "tasks", run.task_id))["result"] == "1"


@pytest.mark.parametrize(
    "refused",
    [Succeeded('"\\u0000"'), Succeeded("no JSON"), Later("RETRYING", BOOM, 1e300)],
    ids=["NUL", "no JSON", "out of range"],
)
async def test_one_row_that_postgres_refuses_fails_alone(db: Database, refused: Outcome) -> None:
    worker_id = await register_worker(db)
    await put(db, count=7)
    runs = await claim(db, worker_id)
    outcomes: list[Any] = [Succeeded("1"), Later("RETRYING", BOOM, 5), Failed(BOOM), refused]
    outcomes += [Succeeded("2"), Released(), Cancelled(BOOM)]
    async with completer(db, worker_id) as (one, landings):
        for run, outcome in zip(runs, outcomes, strict=True):
            one.add(ended(run, outcome))
    assert [await place_of(db, run.task_id) for run in runs] == [
        ["COMPLETED"],
        ["delayed"],
        ["FAILED"],
        ["FAILED"],
        ["COMPLETED"],
        ["ready"],
        ["CANCELLED"],
    ]
    error = msgspec.json.decode((await row(db, "tasks", runs[3].task_id))["error"], type=Error)
    assert "asyncpg" in error.type
    assert landings.stale == set()
    assert landings.landed == {run.task_id for run in runs}


async def test_a_retry_policy_that_postgres_cannot_read_fails_its_task_and_no_other(db: Database) -> None:
    worker_id = await register_worker(db)
    broken, sound = await put(db, count=2)
    await db.fetch("""UPDATE aaiclick_queue.tasks SET retry = '{"delay": "soon"}' WHERE id = $1""", broken)
    runs = await claim(db, worker_id)
    async with completer(db, worker_id) as (one, landings):
        for run in runs:
            one.add(ended(run, Later("RETRYING", BOOM)))
    assert await place_of(db, broken) == ["FAILED"]
    assert await place_of(db, sound) == ["delayed"]
    assert landings.landed == {broken, sound}


async def test_a_worker_that_came_back_writes_nothing_for_the_runs_of_its_old_self(db: Database) -> None:
    run = await leased(db)
    new_self = await register_worker(db)
    async with completer(db, new_self) as (one, landings):
        one.add(ended(run, Succeeded("1")))
    assert landings.stale == {run.task_id}
    assert await place_of(db, run.task_id) == ["leases"]
    assert await rows(db, "attempts") == []


async def test_no_index_names_what_the_end_of_a_task_writes(db: Database) -> None:
    # One that did would cost every end a row in all indexes: no update in place any more.
    written = {
        "status",
        "attempt",
        "run_epoch",
        "worker_id",
        "result",
        "error",
        "ready_at",
        "started_at",
        "finished_at",
    }
    columns = "SELECT attname::text FROM pg_attribute WHERE attrelid = 'aaiclick_queue.tasks'::regclass"
    assert written <= {row["attname"] for row in await db.fetch(columns)}
    indexes = (
        "SELECT pg_get_indexdef(indexrelid) AS sql FROM pg_index WHERE indrelid = 'aaiclick_queue.tasks'::regclass"
    )
    named = {row["sql"]: written & set(re.findall(r"\w+", row["sql"])) for row in await db.fetch(indexes)}
    assert named, "tasks has no index"
    assert not any(named.values()), named
