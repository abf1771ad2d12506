"""What routes give and do: jobs, tasks, queues, limits, workers, schedules, operations."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import httpx
import msgspec
import pytest

from aaiclick_queue import connect, create_job
from aaiclick_queue.flow import prune
from aaiclick_queue.postgres import Database
from aaiclick_queue.redaction import SIGN
from aaiclick_queue.server.api import jobs as api_jobs
from aaiclick_queue.server.api import system
from aaiclick_queue.settings import Settings
from tests.operate.test_workflows import ended as ended_job
from tests.planned import Job
from tests.server.serving import bearer, rows, token, until
from tests.tools import claim, register_worker

MISSING = 7123456789012345678


def enqueue(http: httpx.Client, entrypoint: str = "shop.mail.send", **body: Any) -> str:
    answer = http.post("/tasks", json={"entrypoint": entrypoint, **body})
    assert answer.status_code == 201, answer.text
    found: str = answer.json()["id"]
    return found


def test_a_task_that_was_enqueued_over_http_is_found_by_its_id_and_in_lists(http: httpx.Client) -> None:
    task_id = enqueue(http, kwargs={"to": "ada"}, queue="mail", priority=3, correlation_id="order-7")
    found = http.get(f"/tasks/{task_id}").json()
    assert (found["id"], found["status"], found["kwargs"]) == (task_id, "QUEUED", {"to": "ada"})
    assert (found["queue"], found["priority"], found["correlation_id"]) == ("mail", 3, "order-7")
    listed = http.get("/tasks", params={"queue": "mail", "status": "QUEUED", "entrypoint": "send"}).json()
    assert [one["id"] for one in listed["items"]] == [task_id]
    assert http.get("/tasks", params={"queue": "other"}).json()["items"] == []
    for search, found_by in (("ada", [task_id]), ("to=ada", [task_id]), ("to=bob", [])):
        assert [one["id"] for one in http.get("/tasks", params={"search": search}).json()["items"]] == found_by
    assert http.get("/tasks", params={"fingerprint": "0" * 16}).json()["items"] == []
    assert [one["type"] for one in http.get(f"/tasks/{task_id}/timeline").json()["events"]]
    assert http.get(f"/tasks/{task_id}/explain").json()["code"]
    assert http.get(f"/tasks/{task_id}/logs").json()["lines"] == []


def test_pages_of_tasks_and_jobs_follow_each_other_without_a_gap(http: httpx.Client) -> None:
    tasks = [enqueue(http, f"shop.work.part{number}") for number in range(7)]
    jobs = [http.post("/jobs", json={"entrypoint": "shop.jobs.etl"}).json()["id"] for _ in range(5)]
    for path, made in (("/tasks", None), ("/jobs", jobs)):
        seen: list[str] = []
        before = None
        while True:
            page = http.get(path, params={"limit": 3} | ({"before": before} if before else {})).json()
            seen += [one["id"] for one in page["items"]]
            before = page["before"]
            if before is None:
                break
        assert seen == sorted(seen, key=int, reverse=True)
        assert len(seen) == len(set(seen))
        assert set(made or tasks) <= set(seen)


def test_pages_by_name_follow_each_other_without_a_gap(http: httpx.Client, settings: Settings) -> None:
    async def workers() -> None:
        async with Database(settings, size=1) as db:
            for number in range(5):
                await register_worker(db, status="ACTIVE" if number % 2 else "STOPPED")

    asyncio.run(workers())
    for number in range(5):
        body = {"scope": "queue", "name": f"q/{number}", "running": 1, "max_depth": 5}
        assert http.put("/limits", json=body).status_code == 200
        http.put(f"/schedules/s{number}", json={"entrypoint": "shop.jobs.etl"})
    for path, count in (("/queues", 6), ("/limits", 10), ("/workers", 5), ("/schedules", 5)):
        whole = [msgspec.json.encode(_name(one)) for one in http.get(path).json()["items"]]
        assert len(whole) == count
        seen: list[bytes] = []
        after: dict[str, str] = {}
        while True:
            page = http.get(path, params={"limit": 2, **after}).json()
            seen += [msgspec.json.encode(_name(one)) for one in page["items"]]
            if page["after"] is None:
                break
            after = {"after": page["after"]}
        assert seen == whole, path
    for path in ("/limits", "/workers"):
        assert http.get(path, params={"after": "nonsense"}).status_code == 422


def _name(one: dict[str, Any]) -> list[Any]:
    return [one.get(word) for word in ("id", "name", "scope", "kind")]


def test_a_job_is_started_looked_into_paused_resumed_and_cancelled(http: httpx.Client, settings: Settings) -> None:
    body = {"name": "etl", "entrypoint": "shop.jobs.etl", "kwargs": {"day": 1}, "queue": "bulk"}
    made = http.post("/jobs", json=body)
    assert made.status_code == 201
    job_id = made.json()["id"]
    found = http.get(f"/jobs/{job_id}").json()
    assert (found["name"], found["run_type"], found["kwargs"], found["total"]) == ("etl", "API", {"day": 1}, 1)
    assert http.get("/jobs/etl").json()["id"] == job_id
    progress = http.get(f"/jobs/{job_id}/progress").json()
    assert (progress["progress"]["total"], progress["percent"]) == (1, 0.0)
    assert len(http.get(f"/jobs/{job_id}/graph").json()["nodes"]) == 1
    assert http.get(f"/jobs/{job_id}/stats").json()["tasks"][0]["count"] == 1
    [task] = http.get(f"/jobs/{job_id}/tasks").json()["items"]
    node = task["name"] or task["entrypoint"]
    assert http.get(f"/jobs/{job_id}/nodes/{node}/progress").json()["count"] == 1
    assert http.get(f"/jobs/{job_id}/nodes/{node}/timeline").status_code == 200
    assert http.get(f"/jobs/{job_id}/nodes/nothing/progress").status_code == 404
    assert http.get(f"/jobs/{job_id}/timeline", params={"event_types": "JOB_CREATED"}).status_code == 200
    assert http.get(f"/jobs/{job_id}/outputs").json()["has_result"] is False
    for params, count in (({"name": "etl"}, 1), ({"like": "et*"}, 1), ({"run_type": "API"}, 1), ({"name": "no"}, 0)):
        assert len(http.get("/jobs", params=params).json()["items"]) == count, params
    assert http.post(f"/jobs/{job_id}/pause", json={"reason": "lunch"}).json()["changed"] is True
    assert http.get(f"/jobs/{job_id}").json()["reason"] == "lunch"
    assert http.post(f"/jobs/{job_id}/resume").json()["changed"] is True
    ended = http.post(f"/jobs/{job_id}/cancel")
    assert ended.status_code == 202
    operation = f"/operations/{ended.json()['operation_id']}"
    until(lambda: http.get(operation).json()["status"] == "DONE")
    assert http.get(f"/jobs/{job_id}").json()["status"] == "CANCELLED"
    assert http.post(f"/jobs/{job_id}/cancel").status_code == 409
    once = {"count": 1, "task_ids": [task["id"]], "is_more": False, "leaving": 0}
    assert http.post(f"/jobs/{job_id}/retry", json={"dry_run": True}).json() == once
    assert http.get(f"/jobs/{job_id}").json()["status"] == "CANCELLED"
    assert http.post(f"/jobs/{job_id}/retry").json() == once
    assert http.post(f"/jobs/{job_id}/retry", json={"dry_run": True}).json()["count"] == 0
    cleared = "SELECT task_id FROM aaiclick_queue.events WHERE type = 'TASK_CLEARED'"
    assert http.post(f"/jobs/{job_id}/rerun", json={"from": node, "dry_run": True}).json() == once
    assert http.post(f"/tasks/{task['id']}/clear", json={"dry_run": True}).json() == once
    assert rows(settings, cleared) == []
    assert http.post(f"/jobs/{job_id}/rerun", json={"from": node}).json()["count"] == 1
    assert rows(settings, cleared) == [{"task_id": int(task["id"])}]
    audited = [one["data"]["action"] for one in http.get("/events", params={"types": "AUDIT"}).json()["items"]]
    assert [audited.count(action) for action in ("retry_job", "rerun_job", "clear_task")] == [1, 1, 0]


def test_the_progress_of_a_job_names_what_runs_and_how_far_it_is(http: httpx.Client, settings: Settings) -> None:
    async def work() -> int:
        async with Database(settings, size=2) as db:
            job = Job(name="etl")
            job.tasks(3, kwargs='{"password": "hunter2"}')
            await job.submit(db)
            first, second = await claim(db, await register_worker(db), 2)
            for run, told in ((first, {"current": 30, "total": 120, "message": "tile 30 of hunter2"}), (second, 0.5)):
                for table in ("progress", "checkpoints"):
                    columns = f"aaiclick_queue.{table} (task_id, run_epoch, data)"
                    written = f"INSERT INTO {columns} VALUES ($1, $2, $3::text::jsonb)"
                    await db.fetch(written, run.task_id, run.run_epoch, json.dumps(told))
            return job.id

    job_id = asyncio.run(work())
    told = http.get(f"/jobs/{job_id}/progress").json()
    first, second = told["current_tasks"]
    assert (first["percent"], first["message"], first["attempt"]) == (25.0, f"tile 30 of {SIGN}", 1)
    assert (second["percent"], second["message"], second["progress"]) == (50.0, None, 0.5)
    assert told["progress"]["running"] == 2
    node = http.get(f"/jobs/{job_id}/nodes/{first['name']}/progress").json()
    assert (node["count"], node["status"], node["attempt"]) == (1, "RUNNING", 1)
    assert (node["newest_id"], node["progress"]["current"]) == (first["task_id"], 30)
    assert node["checkpoint"]["message"] == f"tile 30 of {SIGN}"


def test_a_timeline_of_given_types_looks_at_all_tasks_of_a_large_job(
    http: httpx.Client, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def submitted() -> int:
        async with connect(settings=settings) as client:
            steps = [{"entrypoint": "shop.work.step", "kwargs": {"n": n}} for n in range(3)]
            return (await create_job("steps", steps, client=client)).id

    job_id = asyncio.run(submitted())
    monkeypatch.setattr(api_jobs, "TASKS_ASKED", 2)
    path = f"/jobs/{job_id}/timeline"
    first = http.get(path).json()
    assert (first["summary"]["counts"]["TASK_READY"], first["tasks_left_out"]) == (2, 1)
    for params in ({"event_types": "TASK_READY"}, {"tasks": 3}):
        found = http.get(path, params=params).json()
        assert (found["summary"]["counts"]["TASK_READY"], found["tasks_left_out"]) == (3, 0), params


def test_a_task_is_moved_run_now_cancelled_and_retried(http: httpx.Client) -> None:
    task_id = enqueue(http, countdown=3600)
    assert http.get(f"/tasks/{task_id}").json()["status"] == "SCHEDULED"
    assert http.post(f"/tasks/{task_id}/move", json={"queue": "slow"}).json()["changed"] is True
    assert http.post(f"/tasks/{task_id}/run-now").json()["changed"] is True
    due = datetime.fromisoformat(http.get(f"/tasks/{task_id}").json()["not_before"])
    assert due <= datetime.now(UTC) + timedelta(seconds=5)
    assert http.post(f"/tasks/{task_id}/cancel").json()["changed"] is True
    assert http.post(f"/tasks/{task_id}/cancel").json()["changed"] is False
    assert http.post(f"/tasks/{task_id}/run-now").status_code == 409
    assert http.post(f"/tasks/{task_id}/retry").json()["changed"] is True
    assert http.get(f"/tasks/{task_id}").json()["queue"] == "slow"
    assert http.post(f"/tasks/{task_id}/retry").status_code == 409
    assert http.post(f"/tasks/{task_id}/clear").status_code == 409
    assert http.post(f"/tasks/{task_id}/unblock").json()["changed"] is False


def test_a_bulk_act_is_counted_first_and_then_an_operation_that_ends(http: httpx.Client) -> None:
    for _ in range(5):
        enqueue(http, queue="mail")
    counted = http.post("/bulk/cancel", json={"where": {"queue": "mail"}, "dry_run": True})
    assert (counted.status_code, counted.json()["matching"], counted.json()["operation_id"]) == (200, 5, None)
    moved = http.post("/bulk/move", json={"where": {"queue": "mail"}, "to": "slow"})
    assert moved.status_code == 202
    operation = f"/operations/{moved.json()['operation_id']}"
    until(lambda: http.get(operation).json()["status"] == "DONE")
    assert http.get(operation).json()["done"] == 5
    raised = http.post("/bulk/priority", json={"where": {"queue": "slow"}, "priority": 9}).json()["operation_id"]
    until(lambda: http.get(f"/operations/{raised}").json()["status"] == "DONE")
    purged = http.post("/queues/slow/purge").json()["operation_id"]
    until(lambda: http.get(f"/operations/{purged}").json()["status"] == "DONE")
    back = http.post("/bulk/retry", json={"where": {"status": "CANCELLED", "queue": "slow"}}).json()["operation_id"]
    until(lambda: http.get(f"/operations/{back}").json()["status"] == "DONE")
    assert http.post("/queues/slow/move", json={"to": "mail", "dry_run": True}).json()["matching"] == 5
    first = http.get("/operations", params={"limit": 2}).json()
    second = http.get("/operations", params={"limit": 2, "before": first["before"]}).json()
    ids = [one["id"] for one in (*first["items"], *second["items"])]
    assert ids == sorted(ids, key=int, reverse=True)
    assert len(set(ids)) == 4
    assert http.post(f"/operations/{back}/cancel").json()["changed"] is False
    assert http.post("/bulk/cancel", json={"where": {}}).status_code == 422
    assert "'queue'" in http.post("/bulk/cancel", json={"where": {"quue": "mail"}}).json()["detail"]


def test_a_queue_is_paused_limited_and_says_how_many_workers_it_wants(http: httpx.Client) -> None:
    for _ in range(25):
        enqueue(http, queue="mail")
    assert http.get("/queues/mail").json()["ready"] == 25
    scale = http.get("/queues/mail/scale").json()
    assert (scale["ready"], scale["slots_per_worker"], scale["desired_workers"]) == (25, 10, 3)
    assert http.get("/queues/nobody/scale").json()["desired_workers"] == 0
    assert http.get("/queues/nobody").status_code == 404
    assert http.post("/queues/mail/pause", json={"reason": "provider"}).json()["changed"] is True
    assert http.get("/queues/mail/scale").json()["desired_workers"] == 0
    assert http.post("/queues/mail/resume").json()["changed"] is True
    put = http.put("/queues/mail/limits", json={"running": 5, "max_depth": 100, "objective_seconds": 0.001})
    assert {one["kind"] for one in put.json()} == {"running", "depth"}
    until(lambda: http.get("/operations").json()["items"][0]["status"] == "DONE")
    until(lambda: http.get("/queues/mail/scale").json()["desired_workers"] > 0)
    put = http.put("/queues/mail/limits", json={"running": None})
    assert [one["kind"] for one in put.json()] == ["depth"]
    assert http.get("/queues/mail/history").status_code == 200
    full = http.put("/queues/mail/limits", json={"max_depth": 1})
    assert full.status_code == 200
    refused = http.post("/tasks", json={"entrypoint": "shop.mail.send", "queue": "mail"})
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "5")


@pytest.mark.parametrize("name", ["eu/mail", "eu/limits", "/", "a b/ü%2F"])
def test_a_queue_whose_name_has_slashes_takes_every_act(http: httpx.Client, name: str) -> None:
    enqueue(http, queue=name)
    at = "/queues/" + quote(name, safe="")
    assert http.get(at).json()["name"] == name
    assert http.get(f"{at}/scale").json()["queue"] == name
    assert http.post(f"{at}/pause", json={"reason": "x"}).json()["detail"] == f"{name} is paused"
    assert http.post(f"{at}/resume").json()["changed"] is True
    assert [one["name"] for one in http.put(f"{at}/limits", json={"max_depth": 9}).json()] == [name]
    assert http.get(f"{at}/history").status_code == 200
    assert http.post(f"{at}/move", json={"to": "slow", "dry_run": True}).json()["matching"] == 1
    purged = http.post(f"{at}/purge").json()
    assert purged["matching"] == 1
    until(lambda: http.get(f"/operations/{purged['operation_id']}").json()["done"] == 1)


def test_schedules_and_jobs_whose_names_have_slashes_take_every_act(http: httpx.Client) -> None:
    http.post("/schedules", json={"name": "eu/nightly", "entrypoint": "a.b", "schedule": "0 8 * * *"})
    at = "/schedules/eu%2Fnightly"
    assert http.get(at).json()["name"] == "eu/nightly"
    assert http.post(f"{at}/disable").json()["enabled"] is False
    assert http.post(f"{at}/enable").json()["enabled"] is True
    ran = http.post(f"{at}/run").json()["id"]
    assert len(http.get(f"{at}/next").json()) == 5
    assert http.get(f"{at}/ticks").status_code == 200
    [task] = http.get("/jobs/eu%2Fnightly/tasks").json()["items"]
    assert http.get("/jobs/eu%2Fnightly").json()["id"] == ran
    node = quote(task["name"] or task["entrypoint"], safe="")
    assert http.get(f"/jobs/eu%2Fnightly/nodes/{node}/progress").json()["count"] == 1
    assert http.get("/jobs/eu%2Fnightly/progress").json()["progress"]["total"] == 1
    assert http.post("/jobs/eu%2Fnightly/pause").json()["changed"] is True
    assert http.get("/metrics/workflows/eu%2Fnightly/nodes").status_code == 200
    assert http.delete(at).json()["changed"] is True


def test_limits_of_tasks_and_keys_come_and_go(http: httpx.Client) -> None:
    assert http.put("/limits", json={"scope": "key", "name": "tenant-7", "running": 2}).status_code == 200
    assert http.put("/limits", json={"scope": "task", "name": "shop.mail.send", "rate": "10/s"}).status_code == 200
    assert http.put("/limits", json={"scope": "key", "name": "tenant-7", "fair": True}).status_code == 422
    assert http.put("/limits", json={"scope": "task", "name": "shop.mail.send", "rate": "often"}).status_code == 422
    limits = http.get("/limits").json()["items"]
    assert {(one["scope"], one["kind"]) for one in limits} == {("key", "running"), ("task", "rate")}
    for one in limits:
        assert http.delete(f"/limits/{one['id']}").json()["changed"] is True
    assert http.get("/limits").json()["items"] == []
    assert http.delete("/limits/1").status_code == 404
    assert http.post("/entrypoints/shop.mail.send/pause", json={"seconds": 60, "reason": "down"}).status_code == 200
    enqueue(http)
    [found] = http.get("/entrypoints").json()["items"]
    assert (found["entrypoint"], found["is_paused"], found["reason"]) == ("shop.mail.send", True, "down")
    assert http.post("/entrypoints/shop.mail.send/resume").json()["changed"] is True


def test_a_schedule_is_registered_changed_run_backfilled_and_forgotten(http: httpx.Client) -> None:
    body = {"name": "nightly", "entrypoint": "shop.jobs.etl", "schedule": "0 8 * * *", "timezone": "Europe/Berlin"}
    made = http.post("/schedules", json=body)
    assert (made.status_code, len(made.json()["next_runs"])) == (201, 3)
    assert http.post("/schedules", json=body).status_code == 409
    assert http.post("/schedules", json=body | {"name": "bad", "schedule": "61 * * * *"}).status_code == 422
    put = http.put("/schedules/nightly", json={"entrypoint": "shop.jobs.etl", "interval": "1h", "description": "now"})
    assert put.json()["description"] == "now"
    assert [one["name"] for one in http.get("/schedules").json()["items"]] == ["nightly"]
    assert http.post("/schedules/nightly/disable").json()["enabled"] is False
    assert http.get("/schedules", params={"enabled_only": True}).json()["items"] == []
    assert http.post("/schedules/nightly/enable").json()["enabled"] is True
    assert http.post("/schedules/nightly/reset").status_code == 422
    run = http.post("/schedules/nightly/run", json={"kwargs": {"x": 1}})
    assert http.get(f"/jobs/{run.json()['id']}").json()["registered"] == "nightly"
    now = datetime.now(UTC)
    window = {"from": (now - timedelta(hours=5)).isoformat(), "to": now.isoformat()}
    planned = http.post("/schedules/nightly/backfill", json=window | {"dry_run": True})
    assert (planned.status_code, planned.json()["operation_id"]) == (200, None)
    assert len(planned.json()["ticks"]) in (4, 5)
    begun = http.post("/schedules/nightly/backfill", json=window).json()["operation_id"]
    until(lambda: http.get(f"/operations/{begun}").json()["status"] == "DONE")
    ticks = http.get("/schedules/nightly/ticks", params={"limit": 2}).json()
    assert len(ticks["items"]) == 2
    older = http.get("/schedules/nightly/ticks", params={"before": ticks["before"]}).json()["items"]
    assert all(one["fire_at"] < ticks["items"][-1]["fire_at"] for one in older)
    assert len(http.get("/schedules/nightly/next", params={"count": 4}).json()) == 4
    assert http.delete("/schedules/nightly").json()["changed"] is True
    assert http.delete("/schedules/nightly").status_code == 404


def test_a_schedule_is_checked_without_being_registered(http: httpx.Client) -> None:
    body: dict[str, Any] = {"name": "nightly", "entrypoint": "shop.jobs.etl", "schedule": "0 8 * * *"}
    told = http.post("/schedules/check", json=body).json()
    assert (told["name"], len(told["next_runs"])) == ("nightly", 3)
    assert http.post("/schedules/check", json=body | {"schedule": "sometimes"}).status_code == 422
    assert http.post("/schedules/check", json={"name": "by hand", "entrypoint": "a.b"}).json()["next_runs"] == []
    assert http.get("/schedules").json()["items"] == []


def test_groups_of_a_job_are_pages(http: httpx.Client, settings: Settings) -> None:
    async def work() -> int:
        async with Database(settings, size=2) as db:
            job = Job(name="etl")
            groups = [job.group() for _ in range(3)]
            for group in groups:
                job.tasks(2, group=group)
            return (await job.submit(db)).id

    job_id = asyncio.run(work())
    page = http.get(f"/jobs/{job_id}/groups", params={"limit": 2}).json()
    rest = http.get(f"/jobs/{job_id}/groups", params={"limit": 2, "after": page["after"]}).json()
    found = [*page["items"], *rest["items"]]
    assert ([one["total"] for one in found], rest["after"]) == ([2, 2, 2], None)
    assert http.get(f"/groups/{found[0]['id']}").json() == found[0]
    assert http.get("/failures", params={"hours": 24 * 366}).status_code == 200


def test_a_change_of_a_schedule_names_who_asked_for_it(closed: httpx.Client, settings: Settings) -> None:
    closed.headers.update(bearer(token(settings, "writer")))
    closed.post("/schedules", json={"name": "nightly", "entrypoint": "shop.jobs.etl", "interval": "1d"})
    closed.put("/schedules/nightly", json={"entrypoint": "shop.jobs.etl", "interval": "2d"})
    closed.post("/schedules/nightly/disable")
    closed.post("/schedules/nightly/enable")
    closed.delete("/schedules/nightly")
    found = rows(settings, "SELECT type, data->>'by' AS by FROM aaiclick_queue.events WHERE type LIKE 'SCHEDULE%'")
    assert {one["type"].removeprefix("SCHEDULE_") for one in found} == {
        *("REGISTERED", "CHANGED", "DISABLED", "ENABLED", "DELETED")
    }
    assert {one["by"] for one in found} == {"a writer"}


@pytest.mark.parametrize(
    "path",
    [
        *(
            "/overview",
            "/outbox",
            "/doctor",
            "/config",
            "/workers",
            "/operations",
            "/limits",
            "/entrypoints",
            "/events",
        ),
        *("/alarms", "/failures", "/metrics/workflows", "/metrics/workflows/etl/nodes", "/metrics/failures"),
        *("/metrics/throughput", "/metrics/queues", "/metrics/entrypoints", "/orchestrator/memory", "/tokens"),
        *("/whoami", "/health", "/openapi.json"),
    ],
)
def test_what_is_read_of_an_empty_system_is_empty_and_no_error(http: httpx.Client, path: str) -> None:
    answer = http.get(path)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    "path",
    [
        *(f"/jobs/{MISSING}", f"/tasks/{MISSING}", f"/workers/{MISSING}", f"/groups/{MISSING}", "/jobs/nobody"),
        *(f"/operations/{MISSING}", "/schedules/nobody", "/failures/0123456789abcdef", f"/tasks/{MISSING}/explain"),
    ],
)
def test_what_is_not_there_is_404(http: httpx.Client, path: str) -> None:
    assert http.get(path).status_code == 404


def test_figures_are_asked_for_by_the_name_of_a_job(http: httpx.Client, settings: Settings) -> None:
    async def work() -> None:
        async with Database(settings, size=2) as db:
            for name in ("etl", "mail"):
                await ended_job(db, name, fails=True)
            await ended_job(db, "etl", seconds=4.0)

    asyncio.run(work())
    [etl] = http.get("/metrics/workflows", params={"workflow_id": "etl"}).json()["items"]
    assert (etl["name"], etl["total"], etl["failed"]) == ("etl", 2, 1)
    told = http.get("/metrics/failures").json()
    assert {(one["workflow"], one["node"], one["count"]) for one in told["by_node"]} == {
        *(("etl", "load", 1), ("mail", "load", 1))
    }
    told = http.get("/metrics/failures", params={"workflow_id": "mail"}).json()
    assert [(one["workflow"], one["node"]) for one in told["by_node"]] == [("mail", "load")]
    assert (told["total"], sum(one["count"] for one in told["items"]), told["is_cut"]) == (1, 1, False)
    assert http.get("/metrics/failures", params={"workflow_id": "nothing"}).json()["items"] == []
    for hours, entries in ((1, 60), (24, 24)):
        found = http.get("/metrics/throughput", params={"hours": hours}).json()
        assert len(found) == entries
        assert [sum(one[name] for one in found) for name in ("jobs_completed", "jobs_failed")] == [1, 2]
        assert [one["average_job_seconds"] for one in found if one["jobs_completed"]] == [4.0]


def test_types_of_events_are_given_several_times_or_with_commas(http: httpx.Client) -> None:
    job_id = http.post("/jobs", json={"entrypoint": "shop.jobs.etl"}).json()["id"]
    path = f"/jobs/{job_id}/timeline"
    types = sorted({one["type"] for one in http.get(path).json()["events"]})
    assert len(types) >= 1
    asked = [",".join([*types, "TASK_FAILED"]), [*types, "TASK_FAILED"], f" {types[0]} ,TASK_FAILED,"]
    found = [http.get(path, params={"event_types": one}).json()["events"] for one in asked]
    assert found[0] == found[1]
    assert {one["type"] for one in found[2]} == {types[0]}
    http.post("/queues/mail/pause")
    assert len(http.get("/events", params={"types": "AUDIT,QUEUE_NONE"}).json()["items"]) == 2


def test_no_loops_are_503_with_a_reason(http: httpx.Client) -> None:
    answer = http.get("/orchestrator/status")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "10")
    assert "aaiclick-queue background" in answer.json()["detail"]


def test_what_the_loops_did_is_summed(http: httpx.Client, settings: Settings) -> None:
    loops = {
        "relay": {"cycles": 3, "cycle_ago": 2.0, "worked": 5, "errors": 1, "last_error": "away", "error_ago": 1.0},
        "resolver": {"cycles": 4, "cycle_ago": 1.0, "worked": 6, "folded": 7},
    }
    rows(
        settings,
        """INSERT INTO aaiclick_queue.orchestrators (id, pid, hostname, version, loops)
           VALUES (1, 2, 'here', '0', $1::text::jsonb)""",
        json.dumps(loops),
    )
    told = http.get("/orchestrator/stats").json()
    assert (told["is_running"], told["cycles_completed"], told["tasks_dispatched"]) == (True, 7, 6)
    assert (told["results_processed"], told["errors"], told["last_error"]) == (7, 1, "away")
    assert told["started_at"]
    assert told["last_cycle_at"]
    assert told["uptime_seconds"] >= 0
    assert [one["name"] for one in told["loops"]] == ["relay", "resolver"]


def test_pruning_says_what_it_would_forget(http: httpx.Client) -> None:
    told = http.post("/prune", json={"completed_days": 0, "dry_run": True}).json()
    assert (told["dry_run"], told["tasks"]) == (True, 0)


def test_a_pruning_ends_in_time_and_goes_on_from_where_it_was(
    http: httpx.Client, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "PRUNE_SECONDS", 0.0)
    monkeypatch.setattr(prune, "ROWS", 3)
    tasks = [enqueue(http) for _ in range(7)]
    for one in tasks:
        http.post(f"/tasks/{one}/cancel")
    asked: dict[str, Any] = {"completed_days": 0, "failed_days": "forever"}
    assert http.post("/prune", json={"completed_days": "forever", "failed_days": "forever"}).json()["done"]
    for dry_run in (True, False):
        told: list[dict[str, Any]] = []
        while not told or not told[-1]["done"]:
            after = {"after": told[-1]["after"]} if told else {}
            told.append(http.post("/prune", json={**asked, **after, "dry_run": dry_run}).json())
            assert len(told) < 20
        assert [one["cancelled"] for one in told[:3]] == [3, 3, 1]
        assert sum(one["tasks"] for one in told) == 7
    assert rows(settings, "SELECT id FROM aaiclick_queue.tasks") == []
    assert http.post("/prune", json={"after": "tomorrow"}).status_code == 422


def test_every_act_is_written_down_with_who_and_what(http: httpx.Client, settings: Settings) -> None:
    enqueue(http, kwargs={"password": "hunter2"})
    http.post("/queues/mail/pause", json={"reason": "lunch"})
    http.post("/bulk/cancel", json={"where": {"queue": "default"}, "dry_run": True})
    http.post("/bulk/cancel", json={"where": {"queue": "default"}})
    found = http.get("/events", params={"types": "AUDIT"}).json()["items"]
    assert [one["data"]["action"] for one in found] == ["bulk_cancel", "pause_queue", "enqueue_task"]
    bulk, pause, _ = found
    assert (pause["by"], pause["data"]["role"], pause["data"]["address"]) == ("local", "admin", "127.0.0.1")
    assert (pause["data"]["target"], pause["data"]["given"]) == ({"name": "mail"}, {"reason": "lunch"})
    assert (bulk["data"]["filter"], bulk["data"]["count"]) == ({"queue": "default"}, 1)
    [kept] = rows(settings, "SELECT count(*) AS n FROM aaiclick_queue.system_events WHERE data::text LIKE '%hunter2%'")
    assert kept["n"] == 0


def test_nothing_is_done_that_cannot_be_written_down(http: httpx.Client, settings: Settings) -> None:
    rows(settings, "ALTER TABLE aaiclick_queue.system_events RENAME TO hidden")
    try:
        assert http.post("/queues/mail/pause").status_code == 500
        assert rows(settings, "SELECT name FROM aaiclick_queue.queues") == []
    finally:
        rows(settings, "ALTER TABLE aaiclick_queue.hidden RENAME TO system_events")


def act_on_jobs(http: httpx.Client, what: str, **body: Any) -> Any:
    """The operation of a bulk act on jobs, when it has ended."""
    answer = http.post(f"/bulk/jobs/{what}", json=body)
    assert answer.status_code == 202, answer.text
    number = answer.json()["operation_id"]
    until(lambda: http.get(f"/operations/{number}").json()["status"] != "OPEN")
    return http.get(f"/operations/{number}").json()


def test_many_jobs_are_counted_and_acted_on_by_filter_and_by_id(http: httpx.Client) -> None:
    made = [http.post("/jobs", json={"name": name, "entrypoint": "a.b"}).json()["id"] for name in ("etl", "etl", "x")]

    def act(what: str, **body: Any) -> tuple[Any, ...]:
        ended = act_on_jobs(http, what, **body)
        return tuple(ended[word] for word in ("kind", "status", "done", "total"))

    counted = http.post("/bulk/jobs/cancel", json={"where": {"name": "etl"}, "dry_run": True})
    assert counted.status_code == 200
    assert counted.json() == {"matching": 2, "is_more": False, "operation_id": None, "looked_at": None}
    assert act("pause", where={"like": "e*"}) == ("pause_jobs", "DONE", 2, 2)
    assert act("pause", ids=made) == ("pause_jobs", "DONE", 1, 1)
    assert act("resume", where={"run_type": "API"}) == ("resume_jobs", "DONE", 3, 3)
    assert act("cancel", ids=[made[0], str(MISSING)]) == ("cancel_jobs", "DONE", 1, 1)
    assert act("cancel", where={"name": "etl"}) == ("cancel_jobs", "DONE", 1, 1)
    assert act("retry", where={"status": "PENDING"}) == ("retry_jobs", "DONE", 0, 0)
    until(lambda: http.get(f"/jobs/{made[0]}/tasks").json()["items"][0]["status"] == "CANCELLED")
    until(lambda: http.get(f"/jobs/{made[1]}/tasks").json()["items"][0]["status"] == "CANCELLED")
    assert act("retry", where={"status": "CANCELLED", "name": "etl"}) == ("retry_jobs", "DONE", 2, 2)
    assert [http.get(f"/jobs/{one}").json()["status"] for one in made] == ["RUNNING", "RUNNING", "PENDING"]
    audited = [one["data"] for one in http.get("/events", params={"types": "AUDIT"}).json()["items"]]
    assert [one["action"] for one in audited if one["action"].startswith("bulk")].count("bulk_pause_jobs") == 2
    assert next(one for one in audited if one["action"] == "bulk_resume_jobs")["filter"] == {"run_type": "API"}


def test_a_bulk_act_on_jobs_says_which_and_how_many_were_looked_at(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        http.post("/jobs", json={"name": "etl", "entrypoint": "a.b"})
    wrong: tuple[dict[str, Any], ...] = (
        *({}, {"where": {}}, {"ids": []}, {"where": {"name": "a"}, "ids": ["1"]}, {"where": {"nme": "a"}}),
        *({"where": {"name": "a", "like": "b"}}, {"where": {"status": "LOST"}}, {"ids": ["x"]}),
    )
    for body in wrong:
        assert http.post("/bulk/jobs/cancel", json=body).status_code == 422, body
    monkeypatch.setattr("aaiclick_queue.flow.job_sets.LOOK_LIMIT", 2)
    answer = http.post("/bulk/jobs/cancel", json={"where": {"status": "PENDING"}, "dry_run": True}).json()
    assert (answer["is_more"], answer["looked_at"]) == (True, 2)
