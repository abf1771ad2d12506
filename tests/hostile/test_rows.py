"""Whatever rows a hostile client writes, or one that is newer than we are, the fleet goes on with good work."""

from __future__ import annotations

import logging
import os
import re
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from aaiclick_queue import Settings, connect, doctor
from aaiclick_queue.errors import PostgresUnavailable, StreamsDown
from aaiclick_queue.flow.prune import Pruner
from aaiclick_queue.flow.quarantine import SET_ASIDE_DELAYED, set_aside
from aaiclick_queue.postgres import Database
from aaiclick_queue.server import create_app
from tests.hostile.conftest import good, write_rows
from tests.server.serving import running
from tests.tools import put_one, row, running_worker, until

MANY = int(os.environ.get("HOSTILE_ROWS", "3"))  # of each kind that are asked for one by one
OPEN = "SELECT count(*) FROM aaiclick_queue.tasks WHERE id = ANY($1::bigint[]) AND status IS NULL"
IN_LINE = "SELECT count(*) FROM aaiclick_queue.ready WHERE queue = 'default'"
QUARANTINED = "SELECT id, error->>'message' AS message FROM aaiclick_queue.tasks WHERE error->>'type' = 'Quarantined'"
NAMES = {
    "task_id": f"SELECT id FROM aaiclick_queue.tasks ORDER BY id % 7 LIMIT {MANY}",
    "job": f"SELECT id FROM aaiclick_queue.jobs ORDER BY id % 7 LIMIT {MANY}",
    "schedule": f"SELECT name FROM aaiclick_queue.registered_jobs ORDER BY id % 7 LIMIT {MANY}",
    "worker_id": "SELECT id FROM aaiclick_queue.workers",
    "operation_id": f"SELECT id FROM aaiclick_queue.operations LIMIT {MANY}",
    "group_id": "SELECT id FROM aaiclick_queue.groups",
    "fingerprint": "SELECT DISTINCT fingerprint FROM aaiclick_queue.failures",
    "name": "SELECT unnest(ARRAY['default', 'odd', '{\"a\": 1}'])",
}
LOST_HERE = "SELECT count(*) FROM aaiclick_queue.workers WHERE hostname <> 'elsewhere' AND status = 'LOST'"


@pytest.mark.breaks_invariants
async def test_no_row_of_a_hostile_client_stops_a_queue_a_loop_or_the_doctor(
    quick: Settings, db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, logger="aaiclick_queue")
    async with connect(settings=quick) as client:
        before = [await good.enqueue(n, client=client) for n in range(5)]
        refused = await write_rows(str(quick.postgres_url))
        after = [await good.enqueue(n, client=client) for n in range(20)]
        async with running_worker(quick) as worker:
            ids = [handle.id for handle in (*before, *after)]
            await until(lambda: _none(db, OPEN, ids), patience=60)
            await until(lambda: _none(db, IN_LINE), patience=60)
            loops = worker._background._loops
            await until(lambda: all(loop.counts.cycles for loop in loops), patience=60)
            failing = {loop.name: loop.counts.last_error for loop in loops if loop.counts.errors}
            expected = (PostgresUnavailable.__name__, StreamsDown.__name__)  # a busy machine
            assert not {name: error for name, error in failing.items() if not str(error).startswith(expected)}
            await worker._background._reaper.sweep_once()
            await worker._background._books_pass()
            await Pruner(db).prune_once()
    assert [await row(db, "tasks", one) for one in ids if (await row(db, "tasks", one))["status"] != "COMPLETED"] == []
    assert await db.fetchval(LOST_HERE) == 0
    # What is refused is refused for what it says, by a rule that has a name.
    assert all(said.startswith(("23514", "22", "54", "23505")) for said in refused.values()), refused
    assert "tasks: timeout_seconds = 'nan'" in refused
    broken = {finding.name for finding in await doctor.check(db) if not finding.ok}
    assert "whatever waits or runs is a task" in broken
    quarantined = await db.fetch(QUARANTINED)
    assert quarantined
    assert all("aaiclick-queue task retry" in one["message"] for one in quarantined)


@pytest.mark.breaks_invariants
async def test_pages_answers_and_metrics_can_be_read_whatever_was_written(settings: Settings, db: Database) -> None:
    await write_rows(str(settings.postgres_url))
    names = {name: [str(one[0]) for one in await db.fetch(sql)] for name, sql in NAMES.items()}
    app = create_app(settings, auth="open")
    paths = [path for route in app.routes for path in _paths(route, names)]
    with running(app) as address:
        async with httpx.AsyncClient(base_url=address, timeout=60, follow_redirects=True) as http:
            answers = {path: await http.get(path) for path in paths}
    failed = {path: answer.text[:300] for path, answer in answers.items() if answer.status_code == 500}
    assert not failed
    assert sum(answer.status_code == 200 for answer in answers.values()) > len(paths) // 2


async def test_a_task_that_somebody_else_has_taken_by_then_is_not_set_aside(db: Database) -> None:
    task_id = await put_one(db, task={"countdown": 60})
    assert await set_aside(db, SET_ASIDE_DELAYED, task_id, ValueError("cannot be read"))
    assert not await set_aside(db, SET_ASIDE_DELAYED, task_id, ValueError("cannot be read"))
    ended = await row(db, "tasks", task_id)
    assert (ended["status"], "cannot be read" in ended["error"]) == ("FAILED", True)


async def _none(db: Database, sql: str, *args: object) -> bool:
    return not await db.fetchval(sql, *args)


def _paths(route: Any, names: dict[str, list[str]]) -> list[str]:
    """What this route can be asked for, without what never ends."""
    if "GET" not in (getattr(route, "methods", None) or ()) or route.path.endswith("/stream"):
        return []
    found = re.search(r"{(\w+)(?::path)?}", route.path)
    if found is None:
        return [route.path]
    kind = "schedule" if found[1] == "name" and "schedules" in route.path else found[1]
    return [
        route.path.replace(found[0], quote(one, safe="")).replace("{name}", "odd") for one in names.get(kind, ["1"])
    ]
