"""What routes give and do: jobs, tasks, queues, limits, workers, schedules, operations."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from aaiclick_queue import connect, create_job
from aaiclick_queue.server.api import jobs as api_jobs
from aaiclick_queue.settings import Settings
from tests.server.serving import rows, until

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
    again = http.post(f"/jobs/{job_id}/retry").json()
    assert again == {"count": 1, "task_ids": [task["id"]]}
    assert http.post(f"/jobs/{job_id}/rerun", json={"from": node}).json()["count"] == 1


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


def test_no_loops_are_503_with_a_reason(http: httpx.Client) -> None:
    answer = http.get("/orchestrator/status")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "10")
    assert "aaiclick-queue background" in answer.json()["detail"]


def test_pruning_says_what_it_would_forget(http: httpx.Client) -> None:
    told = http.post("/prune", json={"completed_days": 0, "dry_run": True}).json()
    assert (told["dry_run"], told["tasks"]) == (True, 0)


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


def test_many_jobs_are_counted_and_acted_on_by_filter_and_by_id(http: httpx.Client) -> None:
    made = [http.post("/jobs", json={"name": name, "entrypoint": "a.b"}).json()["id"] for name in ("etl", "etl", "x")]

    def act(what: str, **body: Any) -> Any:
        answer = http.post(f"/bulk/jobs/{what}", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    assert act("cancel", where={"name": "etl"}, dry_run=True) == {"matching": 2, "is_more": False}
    assert act("pause", where={"like": "e*"}) == {"done": 2, "skipped": 0, "left": False}
    assert act("pause", ids=made) == {"done": 1, "skipped": 2, "left": False}
    assert act("resume", where={"run_type": "API"}) == {"done": 3, "skipped": 0, "left": False}
    assert act("cancel", ids=[made[0], str(MISSING)]) == {"done": 1, "skipped": 1, "left": False}
    assert act("cancel", where={"name": "etl"}) == {"done": 1, "skipped": 1, "left": False}
    assert act("retry", where={"status": "PENDING"}, dry_run=True) == {"matching": 0, "is_more": False}
    until(lambda: http.get(f"/jobs/{made[0]}/tasks").json()["items"][0]["status"] == "CANCELLED")
    assert act("retry", where={"status": "CANCELLED", "name": "etl"})["done"] >= 1
    assert http.get(f"/jobs/{made[2]}").json()["status"] == "PENDING"
    audited = [one["data"] for one in http.get("/events", params={"types": "AUDIT"}).json()["items"]]
    assert [one["action"] for one in audited if one["action"].startswith("bulk")].count("bulk_pause_jobs") == 2
    assert next(one for one in audited if one["action"] == "bulk_resume_jobs")["filter"] == {"run_type": "API"}


def test_a_bulk_act_on_jobs_says_which_and_leaves_what_is_too_many(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aaiclick_queue.server.job_sets.MOST_JOBS", 2)
    for _ in range(3):
        http.post("/jobs", json={"name": "etl", "entrypoint": "a.b"})
    wrong: tuple[dict[str, Any], ...] = (
        *({}, {"where": {}}, {"ids": []}, {"where": {"name": "a"}, "ids": ["1"]}, {"where": {"nme": "a"}}),
        *({"where": {"name": "a", "like": "b"}}, {"where": {"status": "LOST"}}, {"ids": ["x"]}),
    )
    for body in wrong:
        assert http.post("/bulk/jobs/cancel", json=body).status_code == 422, body
    body = {"where": {"status": "PENDING"}}
    assert http.post("/bulk/jobs/cancel", json=body).json() == {"done": 2, "skipped": 0, "left": True}
    assert http.post("/bulk/jobs/cancel", json=body).json() == {"done": 1, "skipped": 0, "left": False}
