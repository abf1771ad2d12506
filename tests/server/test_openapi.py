"""The OpenAPI document is true: real answers fit it, a fuzzer finds no error of ours, the page names every route."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click
import httpx
import jsonschema
import pytest
from fastapi.routing import APIRoute

from aaiclick_queue.cli import main
from aaiclick_queue.server import create_app
from aaiclick_queue.settings import Settings
from tests.server.serving import API, running

PAGE = Path(__file__).parents[2] / "docs" / "http.md"
# What each command does, by the operations that do it over HTTP; a text says why there is none.
COMMANDS: dict[str, str | tuple[str, ...]] = {
    "completion": "of the shell",
    "background": "a process of its own",
    "config": ("config",),
    "demo": "a process of its own",
    "doctor": ("doctor",),
    "failures ack": ("acknowledge_failure", "mute_failure"),
    "failures retry": ("retry_failure",),
    "failures show": ("list_failures", "get_failure"),
    "fleet reload": "processes of one machine",
    "fleet down": "processes of one machine",
    "fleet scale": "processes of one machine",
    "fleet status": "processes of one machine",
    "fleet up": "processes of one machine",
    "health": "processes of one machine",
    "job cancel": ("cancel_job", "bulk_cancel_jobs"),
    "job get": ("get_job", "job_progress", "job_graph", "job_outputs"),
    "job list": ("list_jobs",),
    "job pause": ("pause_job", "bulk_pause_jobs"),
    "job rerun": ("rerun_job",),
    "job resume": ("resume_job", "bulk_resume_jobs"),
    "job retry": ("retry_job", "bulk_retry_jobs"),
    "job stats": ("job_stats",),
    "job timeline": ("job_timeline",),
    "job wait": ("job_progress", "stream"),
    "key limit": ("set_limits",),
    "local start": "processes of one machine",
    "metrics": "the same text is at /metrics",
    "migrate current": "the schema is changed before a server starts",
    "migrate downgrade": "the schema is changed before a server starts",
    "migrate history": "the schema is changed before a server starts",
    "migrate roles": "by the owner of the schema, where the database is",
    "migrate upgrade": "the schema is changed before a server starts",
    "operation cancel": ("cancel_operation",),
    "operation get": ("get_operation",),
    "operation list": ("list_operations",),
    "prune": ("prune",),
    "queue limit": ("limit_queue",),
    "queue limits": ("list_limits",),
    "queue list": ("list_queues", "get_queue"),
    "queue move": ("move_queue",),
    "queue pause": ("pause_queue",),
    "queue purge": ("purge_queue",),
    "queue resume": ("resume_queue",),
    "register-job": ("register_job", "replace_registered_job", "check_schedule"),
    "registered-job backfill": ("backfill_job",),
    "registered-job delete": ("delete_registered_job",),
    "registered-job disable": ("disable_job",),
    "registered-job enable": ("enable_job",),
    "registered-job get": ("get_registered_job",),
    "registered-job history": ("schedule_ticks",),
    "registered-job list": ("list_registered_jobs",),
    "registered-job next": ("schedule_next",),
    "registered-job reset": ("reset_registered_job",),
    "run-job": ("run_job", "run_registered_job"),
    "server": "a process of its own",
    "task cancel": ("cancel_task", "bulk_cancel"),
    "task clear": ("clear_task",),
    "task enqueue": ("enqueue_task",),
    "task explain": ("explain_task",),
    "task get": ("get_task",),
    "task limit": ("set_limits",),
    "task list": ("list_tasks", "job_tasks"),
    "task logs": ("task_logs",),
    "task move": ("move_task", "bulk_move"),
    "task pause": ("pause_entrypoint",),
    "task priority": ("bulk_priority",),
    "task resume": ("resume_entrypoint",),
    "task retry": ("retry_task", "bulk_retry"),
    "task timeline": ("task_timeline",),
    "task unblock": ("unblock_task",),
    "token create": ("create_token",),
    "token list": ("list_tokens",),
    "token revoke": ("revoke_token",),
    "top": ("overview",),
    "worker": "a process of its own",
    "workers list": ("list_workers", "get_worker"),
    "workers stacks": ("worker_stacks",),
    "workers stop": ("stop_worker",),
}


def app() -> Any:
    return create_app(Settings.load({}), auth="open")


def operations(document: dict[str, Any]) -> dict[str, tuple[str, str, dict[str, Any]]]:
    return {
        operation["operationId"]: (method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }


def commands(group: click.Command = main, path: tuple[str, ...] = ()) -> list[str]:
    if not isinstance(group, click.Group):
        return [" ".join(path)]
    return [one for name, command in group.commands.items() for one in commands(command, (*path, name))]


def test_everything_the_command_line_can_do_has_a_route() -> None:
    known = operations(app().openapi()).keys()
    for command in commands():
        assert command in COMMANDS, f"name the operations that do what `{command}` does"
    wrong = {one for found in COMMANDS.values() if isinstance(found, tuple) for one in found if one not in known}
    assert wrong == set()


def test_every_operation_has_a_name_of_its_own_a_sentence_and_a_schema() -> None:
    document = app().openapi()
    found = operations(document)
    assert len(found) == sum(len(methods) for methods in document["paths"].values())
    for name, (method, path, operation) in found.items():
        assert operation["description"].endswith("."), f"{method} {path}"
        assert operation["tags"], name
        assert "default" in operation["responses"]
        good = [one for status, one in operation["responses"].items() if status[0] == "2"]
        assert name == "stream" or all("schema" in one["content"]["application/json"] for one in good), name


def test_the_page_of_the_api_names_every_route_with_its_role_and_no_other() -> None:
    from aaiclick_queue.server.roles import needed_role

    rows = re.findall(r"^\| `(GET|POST|PUT|DELETE) ([^`]+)` \| (\w+|–) \|", PAGE.read_text(), re.MULTILINE)
    told = {(method, path, role) for method, path, role in rows}
    there = {
        (method, getattr(route, "path_format", ""), needed_role(route) or "–")
        for route in app().routes
        if isinstance(route, APIRoute) or getattr(route, "methods", None)
        for method in set(getattr(route, "methods", ())) - {"HEAD"}
        if getattr(route, "path", "").startswith(
            ("/api/", "/mcp", "/log", "/livez", "/readyz", "/startupz", "/healthz")
        )
    }
    assert told == there, f"missing: {sorted(there - told)}; not there: {sorted(told - there)}"


def fits(document: dict[str, Any], name: str, answer: httpx.Response) -> None:
    _, _, operation = operations(document)[name]
    responses = operation["responses"]
    assert str(answer.status_code) in responses or answer.status_code in (200, 202), f"{name}: {answer.status_code}"
    [declared] = [one for status, one in responses.items() if status[0] == "2"]
    schema = declared["content"]["application/json"]["schema"] | {"components": document["components"]}
    jsonschema.Draft202012Validator(schema).validate(answer.json())


def test_real_answers_fit_the_document(http: httpx.Client) -> None:
    document = http.get("/openapi.json").json()
    made = http.post("/tasks", json={"entrypoint": "a.b", "kwargs": {"x": 1}})
    fits(document, "enqueue_task", made)
    job = http.post("/jobs", json={"name": "etl", "entrypoint": "a.b"})
    fits(document, "run_job", job)
    schedule = {"name": "n", "entrypoint": "a.b", "schedule": "0 8 * * *", "starts_at": "2026-01-01T00:00:00Z"}
    fits(document, "register_job", http.post("/schedules", json=schedule))
    fits(document, "run_registered_job", http.post("/schedules/n/run"))
    fits(document, "set_limits", http.put("/limits", json={"scope": "key", "name": "k", "running": 1}))
    fits(document, "create_token", http.post("/tokens", json={"name": "t"}))
    fits(document, "pause_queue", http.post("/queues/default/pause"))
    fits(document, "bulk_cancel", http.post("/bulk/cancel", json={"where": {"queue": "x"}, "dry_run": True}))
    fits(document, "cancel_job", http.post(f"/jobs/{job.json()['id']}/cancel"))
    values = {"job": job.json()["id"], "task_id": made.json()["id"], "name": "default", "operation_id": "1"}
    seen = 0
    for name, (method, path, operation) in operations(document).items():
        if method != "get" or name == "stream":
            continue
        given = values | ({"name": "n"} if "/schedules/" in path else {}) | ({"name": "b"} if "/nodes/" in path else {})
        url = path.removeprefix(API).format_map({**given, "worker_id": 1, "group_id": 1, "fingerprint": "0" * 16})
        params = {
            one["name"]: "x" for one in operation.get("parameters", ()) if one["in"] == "query" and one["required"]
        }
        answer = http.get(url, params=params)
        assert answer.status_code in (200, 404, 503), f"{url}: {answer.text}"
        if answer.status_code == 200:
            fits(document, name, answer)
            seen += 1
    assert seen > 35


def some(operation: Any) -> Any:
    """Requests as the document has them, and others where there is something to be wrong."""
    from hypothesis import strategies
    from schemathesis import GenerationMode

    right = operation.as_strategy(generation_mode=GenerationMode.POSITIVE)
    if not operation.definition.raw.get("requestBody"):
        return right
    return strategies.one_of(right, operation.as_strategy(generation_mode=GenerationMode.NEGATIVE))


@pytest.mark.timeout(240)
def test_a_fuzzer_finds_no_error_of_ours(settings: Settings) -> None:
    import schemathesis
    from hypothesis import HealthCheck, Phase, given, seed
    from hypothesis import settings as tries

    slow = ("stream", "worker_stacks", "doctor")
    with running(create_app(settings, auth="open")) as address:
        with httpx.Client(base_url=address + API, timeout=20) as http:
            task = http.post("/tasks", json={"entrypoint": "a.b"}).json()["id"]
            job = http.post("/jobs", json={"name": "etl", "entrypoint": "a.b"}).json()["id"]
            document = http.get("/openapi.json").json()
        known = {"task_id": task, "job": job, "name": "default", "operation_id": "1", "token_id": "1"}
        schema = schemathesis.openapi.from_dict(document)
        for found in schema.get_all_operations():
            operation: Any = found.ok()  # type: ignore[union-attr]
            if operation.definition.raw.get("operationId") in slow:
                continue

            @seed(1)
            @given(case=some(operation), real=...)
            @tries(
                max_examples=8,
                deadline=None,
                database=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            def calls(case: Any, real: bool) -> None:
                if real:
                    case.path_parameters = {
                        name: known.get(name, value) for name, value in case.path_parameters.items()
                    }
                answer = case.call(base_url=address)
                no_loops = answer.status_code == 503 and "/orchestrator/" in case.path
                assert answer.status_code < 500 or no_loops, (case.as_curl_command(), answer.text)

            calls()
