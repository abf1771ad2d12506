"""keep: which tasks leave a row behind when they have ended."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from aaiclick_queue import Client, Settings, current, task
from aaiclick_queue.errors import ResultExpired, TaskFailed
from aaiclick_queue.flags import KEEP_FAILED, KEEP_NONE
from aaiclick_queue.flow.cancel import cancel
from aaiclick_queue.flow.complete import _landed_before
from aaiclick_queue.outcome import Ended, Error, Failed, Later, Succeeded
from aaiclick_queue.postgres import Database
from tests.tools import count, end, leased, put_one, row, rows, running_worker, until

SPECS: dict[str, dict[str, Any]] = {
    "all": {},
    "failed": {"keep": "failed", "flags": KEEP_FAILED},
    "none": {"keep": "none", "flags": KEEP_NONE},
}


@task(max_attempts=1)
async def note(text: str) -> str:
    await current().checkpoint(text)
    await current().progress(0.5)
    if not text:
        raise ValueError("nothing to note")
    return text


@pytest.mark.parametrize(
    ("keep", "success", "failure"), [("all", True, True), ("failed", False, True), ("none", False, False)]
)
async def test_a_row_is_kept_as_its_task_says(db: Database, keep: str, success: bool, failure: bool) -> None:
    done = await leased(db, **SPECS[keep])
    assert await end(db, done, Succeeded("1"))
    failed = await leased(db, **SPECS[keep])
    assert await end(db, failed, Failed(Error("ValueError")))
    kept = {one["id"] for one in await rows(db, "tasks")}
    assert (done.task_id in kept, failed.task_id in kept) == (success, failure)
    assert await count(db, "leases") == 0


@pytest.mark.parametrize(("keep", "stays"), [("all", True), ("failed", True), ("none", False)])
async def test_a_cancelled_task_is_kept_unless_nothing_is(db: Database, keep: str, stays: bool) -> None:
    waiting = await put_one(db, **SPECS[keep])
    running = (await leased(db, queue="mail", **SPECS[keep])).task_id
    assert await cancel(db, [waiting, running]) == {waiting, running}
    assert {one["id"] for one in await rows(db, "tasks")} == ({waiting, running} if stays else set())
    assert (await count(db, "ready"), await count(db, "leases")) == (0, 0)


async def test_a_task_keeps_its_row_while_it_is_to_be_tried_again(db: Database) -> None:
    run = await leased(db, **SPECS["none"])
    assert await end(db, run, Later("RETRYING", Error("ValueError"), 60.0))
    assert (await row(db, "tasks", run.task_id))["status"] is None


async def test_nothing_of_a_task_that_is_not_kept_is_left_and_its_dedupe_key_is_free(
    client: Client, quick: Settings, db: Database
) -> None:
    async with running_worker(quick):
        for text in ("hello", ""):
            handle = await note.options(keep="none", dedupe_key="one").enqueue(text, client=client)
            await until(lambda: _is_empty(db))
            with pytest.raises(ResultExpired):
                await handle.result(timeout=30)
    for table in ("progress", "checkpoints", "dedupe", "attempts"):
        assert await count(db, table) == 0


async def _is_empty(db: Database) -> bool:
    return await count(db, "tasks") == 0


async def test_failures_can_be_kept_alone(client: Client, quick: Settings, db: Database) -> None:
    async with running_worker(quick):
        done = await note.options(keep="failed").enqueue("hello", client=client)
        failed = await note.options(keep="failed").enqueue("", client=client)
        with pytest.raises(TaskFailed):
            await failed.result(timeout=30)
        with pytest.raises(ResultExpired):
            await done.result(timeout=30)
    assert [one["id"] for one in await rows(db, "tasks")] == [failed.id]


@pytest.mark.parametrize("outcome", [Succeeded("1"), Failed(Error("ValueError"))], ids=["succeeded", "failed"])
async def test_an_end_whose_answer_was_lost_is_found_though_its_row_is_gone(
    db: Database, outcome: Succeeded | Failed
) -> None:
    run = await leased(db, **SPECS["none"])
    worker_id = (await row(db, "leases", run.task_id))["worker_id"]
    assert await end(db, run, outcome)
    ended = Ended(run.task_id, run.run_epoch, outcome, 0, 0)
    assert await _landed_before(db, [ended], worker_id) == {run.task_id}


@pytest.mark.parametrize("keep", ["some", 3, True])
def test_what_cannot_be_kept_so_is_refused(keep: Literal["all"]) -> None:
    with pytest.raises(TypeError, match="give one of all, failed, none"):
        note.options(keep=keep)
