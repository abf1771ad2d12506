"""The stream of changes."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import msgspec
import pytest
import uvicorn
from fastapi import FastAPI

from aaiclick_queue.cli.web import Web
from aaiclick_queue.postgres import Database
from aaiclick_queue.server import create_app
from aaiclick_queue.server import watching as watching_module
from aaiclick_queue.server.watching import AGAIN_MILLISECONDS, HOSTED_SECONDS, STREAM_SECONDS, TOPICS, WHAT_CHANGED
from aaiclick_queue.settings import Settings
from aaiclick_queue.testing.redis_server import free_port
from tests.plans.explain import Node
from tests.server.serving import API, running, until


class Heard:
    """What one client was told."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.is_over = False

    @property
    def topics(self) -> list[str]:
        return [topic for line in self.lines if line.startswith("data: ") for topic in json.loads(line[6:])["topics"]]

    @property
    def last_id(self) -> str:
        return [line[4:] for line in self.lines if line.startswith("id: ")][-1]


@contextmanager
def listening(http: httpx.Client, topics: str, **headers: str) -> Iterator[Heard]:
    heard = Heard()
    client = httpx.Client(base_url=http.base_url, timeout=httpx.Timeout(20, read=60))
    context = client.stream("GET", "/stream", params={"topics": topics}, headers=headers)
    answer = context.__enter__()
    assert answer.status_code == 200, answer.read()

    def listen() -> None:
        try:
            for line in answer.iter_lines():
                heard.lines.append(line)
        except (httpx.HTTPError, httpx.StreamError):
            pass
        heard.is_over = True

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    until(lambda: heard.lines)
    try:
        yield heard
    finally:
        answer.close()
        thread.join(5)
        client.close()


@contextmanager
def watched(settings: Settings) -> Iterator[tuple[httpx.Client, Any]]:
    app = create_app(settings, auth="open")
    with running(app) as address, httpx.Client(base_url=address + API, timeout=20) as http:
        yield http, app.state.watching


def test_a_client_hears_of_its_topics_and_of_no_others(settings: Settings) -> None:
    with watched(settings) as (http, watching):
        task_id = http.post("/tasks", json={"entrypoint": "a.b", "countdown": 600}).json()["id"]
        with listening(http, "queues") as queues, listening(http, f"task:{task_id},workers") as task:
            looks = watching.looks
            until(lambda: watching.looks > looks + 1)
            http.post("/queues/mail/pause")
            until(lambda: "queues" in queues.topics)
            http.post(f"/tasks/{task_id}/cancel")
            until(lambda: f"task:{task_id}" in task.topics)
            assert "queues" not in task.topics
            assert "retry: 3000" in queues.lines
            assert "event: changed" in queues.lines


def test_every_topic_tells_of_its_changes(settings: Settings) -> None:
    topics = "queues,tasks,jobs,schedules,limits,operations,events,overview"
    with watched(settings) as (http, watching), listening(http, topics) as heard:
        until(lambda: watching.looks > 1)
        job = http.post("/jobs", json={"entrypoint": "shop.jobs.etl"}).json()["id"]
        http.post("/schedules", json={"name": "n", "entrypoint": "a.b", "schedule": "0 8 * * *"})
        http.put("/limits", json={"scope": "key", "name": "k", "running": 1})
        http.post("/bulk/cancel", json={"where": {"queue": "nothing"}})
        until(lambda: set(heard.topics) >= set(topics.split(",")))
        with listening(http, f"job:{job}") as of_job:
            looks = watching.looks
            until(lambda: watching.looks > looks + 1)
            http.post(f"/jobs/{job}/pause")
            until(lambda: of_job.topics)


def test_nothing_is_asked_of_postgres_while_nobody_watches(settings: Settings) -> None:
    with watched(settings) as (http, watching):
        with listening(http, "queues"), listening(http, "jobs,workers"):
            until(lambda: watching.looks > 3)
        until(watching._looking.done)
        looks = watching.looks
        http.get("/jobs")
        assert watching.looks == looks


def test_a_client_that_comes_back_is_told_what_it_missed(settings: Settings) -> None:
    with watched(settings) as (http, watching):
        with listening(http, "queues,events") as first:
            until(lambda: watching.looks > 1)
            http.post("/queues/mail/pause")
            until(lambda: "queues" in first.topics)
        until(watching._looking.done)
        http.post("/queues/mail/resume")
        with listening(http, "queues,events", **{"Last-Event-ID": first.last_id}) as again:
            until(lambda: "queues" in again.topics)
        with listening(http, "queues", **{"Last-Event-ID": "another-7"}) as stranger:
            until(lambda: "*" in stranger.topics)


def test_topics_that_are_none_are_refused_with_the_nearest(http: httpx.Client) -> None:
    answer = http.get("/stream", params={"topics": "queus"})
    assert (answer.status_code, "'queues'" in answer.json()["detail"]) == (422, True)
    for topics in ("", "job:0", "job:99999999999999999999", "task:x", "*"):
        assert http.get("/stream", params={"topics": topics}).status_code == 422, topics


def test_a_server_that_stops_lets_its_listeners_go(settings: Settings) -> None:
    app = create_app(settings, auth="open")
    with running(app) as address, httpx.Client(base_url=address + API) as http, listening(http, "queues") as heard:
        app.state.watching.end()
        until(lambda: heard.is_over)


def test_a_host_that_stops_waits_for_its_listeners_no_longer_than_their_streams_last(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching_module, "HOSTED_SECONDS", 1.0)
    shop, queue, port = FastAPI(), create_app(settings, auth="open"), free_port()
    shop.mount("/queue", queue)
    host = uvicorn.Server(uvicorn.Config(shop, port=port, log_config=None))

    async def serve() -> None:
        await host.serve()
        await queue.state.opening.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    until(lambda: host.started)
    with httpx.Client(base_url=f"http://127.0.0.1:{port}/queue{API}") as http, listening(http, "queues") as heard:
        host.should_exit = True
        thread.join(20)
        assert not thread.is_alive()
    until(lambda: heard.is_over)
    assert f"retry: {AGAIN_MILLISECONDS}" in heard.lines


def test_streams_of_our_own_server_last_longer(settings: Settings) -> None:
    assert HOSTED_SECONDS < 30 < STREAM_SECONDS  # what Kubernetes gives a pod to stop
    assert create_app(settings).state.watching.is_hosted
    assert not Web(host="127.0.0.1", port=0).app(settings).state.watching.is_hosted


MANY = 30_000
FILL = (
    "aaiclick_queue.queues (name) SELECT 'q' || i",
    "aaiclick_queue.alarms (kind, what) SELECT 'stuck', 'q' || i",
    "aaiclick_queue.failure_groups (fingerprint) SELECT md5(i::text)",
    """aaiclick_queue.leases (task_id, worker_id, order_key, ready_at, deadline_at, rank, run_epoch, attempt,
       lost_count, snoozes, flags, queue) SELECT i, 1, i, now(), now(), 0, 1, 1, 0, 0, 0, 'q'""",
)


@pytest.mark.breaks_invariants
@pytest.mark.parametrize("analysed", [False, True])
async def test_however_much_there_is_a_look_reads_a_bounded_number_of_rows(settings: Settings, analysed: bool) -> None:
    async with Database(settings, size=1, flow=True) as db, db.connection() as connection:
        for rows in FILL:
            await connection.fetch(f"INSERT INTO {rows} FROM generate_series(1, {MANY}) AS i")
        if analysed:
            await connection.alone("ANALYZE")
        await connection.raw.execute(f"PREPARE look AS {WHAT_CHANGED}")
        topics = ", ".join(f"'{topic}'" for topic in TOPICS)
        asked = f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) EXECUTE look(ARRAY[{topics}], '{{}}', '{{}}')"
        [[found]] = await connection.raw.fetch(asked)
    plan = msgspec.convert(msgspec.json.decode(found)[0]["Plan"], Node, strict=False)
    read = {node.relation_name: node.read for node in plan.walk() if node.relation_name is not None}
    assert all(rows <= 10_000 for rows in read.values()), f"{read}\n{plan}"
