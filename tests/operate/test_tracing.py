"""One trace over processes, seen by a real receiver: request, enqueue, relay, claim, process, child, complete, job."""

from __future__ import annotations

import subprocess
import sys
import uuid

import pytest

from aaiclick_queue.settings import Settings
from tests.cli.running import PROJECT, environment, program
from tests.operate.looking import wait_for
from tests.operate.otlp import Receiver, Span, receiving
from tests.servers import Databases

MODULE = "tests.operate.traced_tasks"
WORDS = ("enqueue", "enqueue_batch", "relay", "claim", "process", "complete", "job")
KIND = "messaging.aaiclick_queue.kind"


def traced(settings: Settings, receiver: Receiver) -> dict[str, str]:
    given = {"TRACING": "on", "REDIS_URL": settings.redis_url or "", "REDIS_PREFIX": settings.redis_prefix}
    exporting = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url, "OTEL_BSP_SCHEDULE_DELAY": "100"}
    return environment(settings, **given) | exporting


def the(spans: list[Span]) -> Span:
    [one] = spans
    return one


def of(receiver: Receiver, name: str) -> list[Span]:
    return [span for span in receiver.named("process mail") if span.attributes[KIND].endswith(name)]


def below(receiver: Receiver, span: Span) -> list[str]:
    return sorted(one.name for one in receiver.spans if one.parent_id == span.span_id)


@pytest.fixture(scope="module")
def seen(databases: Databases, template: str, redis_url: str) -> Receiver:
    """What an application and a worker have sent of one request and all that followed from it."""
    with receiving() as receiver, databases.new(template) as name:
        given = {"redis_url": redis_url, "redis_prefix": f"test-{uuid.uuid4().hex[:12]}"}
        env = traced(Settings.load({}, postgres_url=databases.url(name), **given), receiver)
        with program("worker", "-A", MODULE, "-Q", "mail", "--trace", env=env) as worker:
            subprocess.run(
                [sys.executable, "-c", f"import {MODULE}; {MODULE}.main()"],
                env=env,
                cwd=PROJECT,
                check=True,
                timeout=60,
            )
            wait_for(lambda: len(receiver.named("process mail")) >= 10 and receiver.named("job pair"))
            worker.process.terminate()
            assert worker.ends() == 0
        return receiver


def test_a_request_and_all_that_follows_from_it_are_one_trace(seen: Receiver) -> None:
    request = the(seen.named("request"))
    strange = [span for span in seen.spans if span.trace_id != request.trace_id]
    assert {span.name.split()[0] for span in strange} <= {"claim", "relay", "reap", "tick", "prune"}, strange
    kinds = {span.name.split()[0]: span.kind for span in seen.spans if span.name.split()[0] in WORDS}
    assert kinds == {
        "enqueue": "PRODUCER",
        "enqueue_batch": "PRODUCER",
        "relay": "CLIENT",
        "claim": "CLIENT",
        "process": "CONSUMER",
        "complete": "CLIENT",
        "job": "INTERNAL",
    }
    assert {span.service for span in seen.spans} == {"aaiclick-queue"}
    # From the enqueue of the parent to the completion of its child.
    by_id = {span.span_id: span for span in seen.spans}
    ran = next(span for span in seen.named("process mail") if span.attributes[KIND].endswith("parent"))
    enqueued = by_id[ran.parent_id]
    assert (enqueued.name, enqueued.parent_id) == ("enqueue mail", request.span_id)
    assert {"complete mail", "enqueue mail"} <= set(below(seen, ran))
    child_enqueued = next(span for span in seen.named("enqueue mail") if span.parent_id == ran.span_id)
    [child_ran] = [span for span in seen.named("process mail") if span.parent_id == child_enqueued.span_id]
    assert below(seen, child_ran) == ["complete mail"]
    completed = next(span for span in seen.named("complete mail") if span.parent_id == child_ran.span_id)
    assert completed.attributes["messaging.operation.type"] == "settle"
    assert completed.attributes["messaging.aaiclick_queue.outcome"] == "succeeded"
    assert completed.attributes["server.port"] > 0


def test_claims_and_relays_are_linked_to_what_they_bring(seen: Receiver) -> None:
    made = {span.span_id for span in seen.spans if span.kind == "PRODUCER"}
    linked = {span_id for claim in seen.named("claim mail") for _, span_id in claim.links}
    assert linked
    assert linked <= made | {the(seen.named("job pair")).span_id}  # the job's hook
    assert all(span.attributes["messaging.batch.message_count"] > 0 for span in seen.named("claim mail"))
    assert any(span.name.startswith("relay") for span in seen.spans)


def test_a_retry_is_linked_to_the_attempt_before_it(seen: Receiver) -> None:
    first, second = sorted(
        (s for s in seen.named("process mail") if s.attributes[KIND].endswith("second_time")),
        key=lambda span: span.attributes["messaging.aaiclick_queue.attempt"],
    )
    assert first.is_error
    assert not second.is_error
    assert first.attributes["error.type"] == "ValueError"
    assert (first.trace_id, first.span_id) in second.links
    assert first.parent_id == second.parent_id


def test_a_job_is_one_span_over_its_tasks_and_its_hook_is_in_its_trace(seen: Receiver) -> None:
    request, job = the(seen.named("request")), the(seen.named("job pair"))
    assert job.parent_id == request.span_id
    enqueued = [span for span in seen.spans if span.parent_id == job.span_id]
    assert {span.kind for span in enqueued} >= {"PRODUCER", "CONSUMER"}  # its nodes, and its hook
    job_id = job.attributes["messaging.message.conversation_id"]
    of_job = [
        span
        for span in seen.named("process mail")
        if span.attributes.get("messaging.message.conversation_id") == job_id
    ]
    assert len(of_job) == 2
    told = [s for s in seen.named("process mail") if s.attributes[KIND].endswith("told")]
    assert [span.trace_id for span in told] == [request.trace_id]


def test_a_process_without_tracing_imports_nothing_of_it(settings: Settings) -> None:
    code = (
        "import sys, asyncio\n"
        "from aaiclick_queue.tracing import trace_if_wanted\n"
        "from aaiclick_queue.settings import Settings\n"
        "import aaiclick_queue.worker, aaiclick_queue.cli.serving\n"
        "trace_if_wanted(Settings.load({}))\n"
        "from aaiclick_queue.spans import TOLD\n"
        "assert TOLD.tracer is None\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('opentelemetry', 'prometheus_client')])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment(settings))
    assert (ran.stdout.strip(), ran.stderr) == ("[]", "")


def test_tracing_without_its_extra_names_the_install_line(settings: Settings) -> None:
    code = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from aaiclick_queue.cli import main\n"
        f"main(['worker', '-A', '{MODULE}x', '--trace'])"
    )
    code = code.replace(f"{MODULE}x", "tests.cli.cli_tasks")
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment(settings), cwd=PROJECT, timeout=60
    )
    assert ran.returncode == 78
    assert "pip install 'aaiclick-queue[otel]'" in ran.stderr
