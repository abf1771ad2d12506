"""A POST that is sent again under its key gives what the first one made."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from aaiclick_queue.settings import Settings
from tests.server.serving import bearer, rows, token

BODY = {"entrypoint": "shop.mail.send", "kwargs": {"to": "ada"}}


def post(http: httpx.Client, key: str, path: str = "/tasks", body: dict[str, Any] = BODY) -> httpx.Response:
    return http.post(path, json=body, headers={"Idempotency-Key": key})


def test_the_same_key_gives_the_first_task_and_another_key_a_new_one(http: httpx.Client) -> None:
    first, second, other = post(http, "a"), post(http, "a"), post(http, "b")
    assert (first.status_code, second.status_code, other.status_code) == (201, 200, 201)
    assert first.json() == second.json() != other.json()
    assert http.get(f"/tasks/{first.json()['id']}").json()["dedupe_key"] is None
    assert len(http.get("/tasks").json()["items"]) == 2


def test_the_same_key_with_another_body_is_refused(http: httpx.Client) -> None:
    post(http, "a")
    refused = post(http, "a", body=BODY | {"queue": "mail"})
    assert (refused.status_code, refused.json()["type"].rpartition(":")[2]) == (422, "idempotency-key-reused")


def test_the_same_key_of_two_tokens_of_one_name_makes_two(closed: httpx.Client, settings: Settings) -> None:
    shown = [bearer(token(settings, "writer")) for _ in range(2)]
    answers = [closed.post("/tasks", json=BODY, headers={"Idempotency-Key": "a", **one}) for one in (*shown, *shown)]
    assert [answer.status_code for answer in answers] == [201, 201, 200, 200]
    assert len({answer.json()["id"] for answer in answers}) == 2


def test_many_at_once_make_one(http: httpx.Client) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: post(http, "race"), range(16)))
    assert sorted(answer.status_code for answer in answers) == [200] * 15 + [201]
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert len(http.get("/tasks").json()["items"]) == 1


def test_jobs_have_keys_too_and_a_key_is_free_after_a_day(http: httpx.Client, settings: Settings) -> None:
    body = {"name": "etl", "entrypoint": "shop.jobs.etl"}
    first, second = post(http, "a", "/jobs", body), post(http, "a", "/jobs", body)
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json() == second.json()
    rows(settings, "UPDATE aaiclick_queue.dedupe SET until = now() - interval '1 second'")
    third = post(http, "a", "/jobs", body)
    assert third.status_code == 201
    assert third.json() != first.json()
