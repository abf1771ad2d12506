"""Tracing: one trace from the enqueue to the run and what it enqueues, and not one call of it when it is off."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import httpx
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, Tracer, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from aaiclick_queue import Client, Secret, Settings, TaskFailed, connect, current, middleware, task, use
from aaiclick_queue.integrations import otel_setup
from aaiclick_queue.integrations.otel import Tracing
from aaiclick_queue.integrations.otel_flow import FlowSpans
from aaiclick_queue.middleware import Running
from aaiclick_queue.postgres import Database
from aaiclick_queue.server import create_app
from aaiclick_queue.spans import TOLD
from tests.tools import put_one, row, rows, running_worker, until


@task(entrypoint="tests.otel.child")
def child(n: int) -> str:
    return f"{n} {trace.get_current_span().get_span_context().span_id:016x}"


@task(entrypoint="tests.otel.parent", queue="mail")
async def parent() -> int:
    with trace.get_tracer("app", tracer_provider=made.provider).start_as_current_span("work"):
        return (await current().enqueue(child, 1)).id


@task(entrypoint="tests.otel.fails", max_attempts=2, retry_delay=0)
async def fails() -> None:
    raise ValueError("no luck")


class Made:
    """Spans that were made."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    def named(self, name: str) -> list[ReadableSpan]:
        found = [span for span in self.exporter.get_finished_spans() if span.name == name]
        return sorted(found, key=lambda span: span.start_time or 0)

    async def all_named(self, name: str, count: int) -> list[ReadableSpan]:
        await until(lambda: len(self.named(name)) >= count)
        return self.named(name)


made: Made


@pytest.fixture(autouse=True)
def _made() -> None:
    global made  # noqa: PLW0603 - tasks are found by name and have nothing else to share
    made = Made()


def ids(span: ReadableSpan) -> tuple[int, int]:
    context = span.get_span_context()
    assert context is not None
    return context.trace_id, context.span_id


def parent_of(span: ReadableSpan) -> tuple[int, int] | None:
    return (span.parent.trace_id, span.parent.span_id) if span.parent else None


def attributes(span: ReadableSpan, names: Sequence[str]) -> dict[str, Any]:
    given = dict(span.attributes or {})
    return {name: given.get(name, given.get(f"messaging.{name}")) for name in names}


async def test_an_enqueue_its_run_and_its_child_are_one_trace(quick: Settings, client: Client, db: Database) -> None:
    use(Tracing(made.provider))
    async with running_worker(quick, queues={"mail": 1}):
        with trace.get_tracer("app", tracer_provider=made.provider).start_as_current_span("request") as request:
            handle = await parent.enqueue(client=client)
        child_id = await handle.result(timeout=30)
        [process, child_process] = await made.all_named("process mail", 2)
    [work] = made.named("work")
    [enqueue, enqueue_child] = made.named("enqueue mail")
    assert parent_of(enqueue) == (request.get_span_context().trace_id, request.get_span_context().span_id)
    assert parent_of(process) == ids(enqueue)
    assert parent_of(work) == ids(process)
    assert parent_of(enqueue_child) == ids(work)
    assert parent_of(child_process) == ids(enqueue_child)
    kept = await row(db, "tasks", handle.id)
    trace_id, span_id = ids(enqueue)
    assert f'"traceparent": "00-{trace_id:032x}-{span_id:016x}-' in kept["metadata"]
    assert enqueue.kind is SpanKind.PRODUCER
    assert process.kind is SpanKind.CONSUMER
    names = ("system", "operation.name", "operation.type", "destination.name", "message.id", "aaiclick_queue.kind")
    assert attributes(enqueue, names) == {
        "system": "aaiclick_queue",
        "operation.name": "enqueue",
        "operation.type": "send",
        "destination.name": "mail",
        "message.id": str(handle.id),
        "aaiclick_queue.kind": "tests.otel.parent",
    }
    assert attributes(
        process, ["operation.type", "message.id", "aaiclick_queue.attempt", "aaiclick_queue.outcome"]
    ) == {
        "operation.type": "process",
        "message.id": str(handle.id),
        "aaiclick_queue.attempt": 1,
        "aaiclick_queue.outcome": "succeeded",
    }
    told = (await row(db, "tasks", child_id))["result"]
    assert told == f'"1 {ids(child_process)[1]:016x}"'  # the current span in the thread of a `def` task


APART = """
from aaiclick_queue import current, task, use
from aaiclick_queue.integrations.otel import Tracing

use(Tracing())

@task
async def leaf() -> None:
    pass

@task
async def spawns() -> int:
    return (await current().enqueue(leaf)).id
"""


async def test_what_a_run_in_a_process_of_its_own_enqueues_is_of_the_same_trace(
    quick: Settings, db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "otel_apart.py").write_text(APART)
    monkeypatch.syspath_prepend(str(tmp_path))
    import otel_apart  # type: ignore[import-not-found]

    async with connect(settings=quick, middleware=[Tracing(made.provider)]) as client:
        handle = await otel_apart.spawns.enqueue(client=client)
        await db.fetch("UPDATE aaiclick_queue.ready SET lost_count = 2")
        async with running_worker(quick):
            leaf_id = await handle.result(timeout=30)
    [enqueue] = made.named("enqueue default")
    assert f'"traceparent": "00-{ids(enqueue)[0]:032x}-' in (await row(db, "tasks", leaf_id))["metadata"]
    del sys.modules["otel_apart"]


async def test_many_are_one_span(quick: Settings, client: Client, db: Database) -> None:
    use(Tracing(made.provider))
    written = await child.enqueue_many([{"n": n} for n in range(3)], client=client)
    [enqueue] = made.named("enqueue_batch default")
    assert attributes(enqueue, ["batch.message_count", "message.id"]) == {"batch.message_count": 3, "message.id": None}
    [*texts] = [(await row(db, "tasks", one))["metadata"] for one in written]
    assert len(set(texts)) == 1
    assert f"{ids(enqueue)[1]:016x}" in texts[0]


async def test_an_attempt_that_failed_has_status_error_and_the_exception(quick: Settings, client: Client) -> None:
    use(Tracing(made.provider))
    async with running_worker(quick):
        with pytest.raises(TaskFailed):
            await (await fails.enqueue(client=client)).result(timeout=30)
        first, second = await made.all_named("process default", 2)
    for span, outcome in ((first, "retried"), (second, "failed")):
        assert span.status.status_code is StatusCode.ERROR
        assert span.status.description == "ValueError: no luck"
        assert attributes(span, ["error.type", "aaiclick_queue.outcome"]) == {
            "error.type": "ValueError",
            "aaiclick_queue.outcome": outcome,
        }
        [event] = span.events
        assert event.name == "exception"
    assert ids(first)[0] == ids(second)[0]


@task(entrypoint="tests.otel.leaks", max_attempts=1)
async def leaks(code: Annotated[str, Secret()]) -> None:
    raise ValueError(f"cannot use {[code]}")


async def test_no_secret_of_a_task_is_in_its_span(quick: Settings, client: Client, db: Database) -> None:
    async with running_worker(quick, middleware=[Tracing(made.provider)]):
        await leaks.enqueue(code="hunter2-otel", client=client)
        await put_one(db, '{"code": "hunter2-by-name"}', entrypoint=leaks.entrypoint)  # nobody has marked it
        spans = await made.all_named("process default", 2)
    for span in spans:
        [event] = span.events
        assert event.attributes
        assert event.attributes["exception.message"] == "cannot use ['••••']"
        assert "hunter2" not in span.to_json()


async def test_a_refused_enqueue_is_an_error_of_its_span(client: Client) -> None:
    use(Tracing(made.provider))
    await child.options(dedupe_key="k").enqueue(1, client=client)
    with pytest.raises(Exception, match="dedupe_key"):
        await child.options(dedupe_key="k").enqueue(1, client=client)
    assert [span.status.status_code for span in made.named("enqueue default")] == [StatusCode.UNSET, StatusCode.ERROR]


@pytest.mark.parametrize("how", ["link", "old"])
async def test_a_run_of_its_own_trace_is_linked_to_its_enqueue(
    quick: Settings, client: Client, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    use(Tracing(made.provider, propagation="link") if how == "link" else Tracing(made.provider))
    if how == "old":
        monkeypatch.setattr(Running, "age", property(lambda _: 3601.0))
    async with running_worker(quick):
        await (await child.enqueue(1, client=client)).result(timeout=30)
        [process] = await made.all_named("process default", 1)
    [enqueue] = made.named("enqueue default")
    assert parent_of(process) is None
    [link] = process.links
    assert (link.context.trace_id, link.context.span_id) == ids(enqueue)


@pytest.mark.parametrize("metadata", [None, '{"$headers": {"traceparent": "garbage"}}', '{"$headers": 7}', "[]"])
async def test_a_task_without_a_context_of_use_begins_a_trace(
    quick: Settings, client: Client, db: Database, metadata: str | None
) -> None:
    handle = await child.enqueue(1, client=client)
    await db.fetch("UPDATE aaiclick_queue.tasks SET metadata = $1::text::jsonb", metadata)
    async with running_worker(quick, middleware=[Tracing(made.provider)]):
        await handle.result(timeout=30)
        [process] = await made.all_named("process default", 1)
    assert parent_of(process) is None
    assert process.links == ()


def test_a_provider_may_be_set_up_after_the_middleware() -> None:
    code = """
import asyncio
from aaiclick_queue.integrations.otel import Tracing
from aaiclick_queue.middleware import Enqueuing
from aaiclick_queue.around import enqueue_through
from aaiclick_queue.flow.enqueue import NewTask, Spec
tracing = Tracing()
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
trace.set_tracer_provider(TracerProvider())
async def write(spec, tasks):
    print(tasks[0].metadata)
    return [1]
asyncio.run(enqueue_through([tracing], Enqueuing(Spec("e", "q"), [NewTask("{}")]), write))
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert '"traceparent":"00-' in ran.stdout


@asynccontextmanager
async def asking(settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    """Somebody who asks a server of ours, and says in which trace."""
    app = create_app(settings, auth="open")
    headers = {"traceparent": f"00-{7:032x}-{9:016x}-01", "baggage": "user=ada"}
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost", headers=headers) as http,
    ):
        yield http


async def test_what_is_enqueued_over_http_is_in_the_trace_of_the_request(
    quick: Settings, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[bool] = []
    monkeypatch.setattr(otel_setup, "flush", lambda: flushed.append(True))
    monkeypatch.setattr(TOLD, "tracer", FlowSpans(made.provider, quick))
    use(Tracing(made.provider))
    task, job = {"entrypoint": "tests.otel.fine", "queue": "mail"}, {"entrypoint": "tests.otel.fine"}
    called = {"name": "run_job", "arguments": job}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": called}
    async with asking(quick) as http:
        await http.put("/api/v1/schedules/nightly", json=job)
        for path, body in (("tasks", task), ("jobs", job), ("schedules/nightly/run", {}), ("mcp", message)):
            answer = await http.post(f"/api/v1/{path}", json=body)
            assert answer.is_success, answer.text
        assert not flushed
    assert flushed
    [enqueue] = made.named("enqueue mail")
    assert parent_of(enqueue) == (7, 9)
    kept = [one["metadata"] for one in await rows(db, "tasks")]
    assert len(kept) == 4
    assert all(f"00-{7:032x}-" in one and "ada" not in one for one in kept)


async def test_with_tracing_off_no_tracer_is_called(
    quick: Settings, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    for name in ("get_tracer", "get_current_span", "get_tracer_provider"):
        monkeypatch.setattr(trace, name, lambda *a, **k: calls.append((a, k)))
    for kind in (trace.ProxyTracer, trace.NoOpTracer, Tracer):
        for name in ("start_span", "start_as_current_span"):
            monkeypatch.setattr(kind, name, lambda *a, **k: calls.append((a, k)))
    assert middleware.installed == []
    async with running_worker(quick):
        await client.write(*spec_and_tasks())
        await (await fine.enqueue(client=client)).result(timeout=30)
        await asyncio.gather(*(fine.enqueue(client=client) for _ in range(20)))
        async with asking(quick) as http:
            made_now = await http.post("/api/v1/tasks", json={"entrypoint": "tests.otel.fine"})
        assert made_now.status_code == 201
    assert calls == []


@task(entrypoint="tests.otel.fine")
async def fine() -> None:
    pass


def spec_and_tasks() -> tuple[Any, Any]:
    spec, one, _ = fine.prepare((), {}, Settings.load({}))
    return spec, [one]


def test_a_process_without_tracing_does_not_even_import_it() -> None:
    code = """
import sys, aaiclick_queue.worker, aaiclick_queue.tasks
print([name for name in sys.modules if name.split('.')[0] in ('opentelemetry', 'prometheus_client', 'sentry_sdk')])
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [
        ("otel", "opentelemetry", "otel"),
        ("prometheus", "prometheus_client", "metrics"),
        ("sentry", "sentry_sdk", "sentry"),
    ],
)
def test_a_missing_extra_names_its_install_line(module: str, package: str, extra: str) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; import aaiclick_queue.integrations.{module}"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.returncode == 1
    assert re.search(
        rf"MissingExtra: aaiclick_queue.integrations.{module} needs an optional part: "
        rf"pip install 'aaiclick-queue\[{extra}\]'$",
        ran.stderr.strip(),
    )
