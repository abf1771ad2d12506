"""Jobs started by name: the job and one entry task are written, and a worker runs the body there.

A registered job gives its entrypoint, arguments and options; what is given here comes before them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from .building import Building
from .client import Client, default_client
from .codec import decode_json, encode_json
from .errors import BadJob, UnknownJob
from .job_handles import JobHandle
from .job_options import JobOptions
from .jobs import Job, key_of, known_job, new_job
from .nodes import Node
from .redaction import opened
from .sealing import sealed_by_name
from .tasks import Task, by_name, registry
from .wiring import refuse_look_alikes

REGISTERED = """
SELECT id, entrypoint, default_kwargs, queue, priority, timeout_seconds AS timeout, max_attempts, max_parallel,
       retention_seconds, options
FROM aaiclick_queue.registered_jobs WHERE name = $1::text
"""


async def run_job(  # noqa: PLR0913 - one value a fact
    name: str,
    /,
    entrypoint: str | Mapping[str, Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    connection: Any = None,
    client: Client | None = None,
    max_attempts: int | None = None,
    run_type: str = "MANUAL",
    **options: Any,
) -> JobHandle[Any]:
    """Start a job by its registered name, its own name, or its entrypoint, on whichever worker has imported it.

    `run_job(name, kwargs)` is the short form. Each option is the first one given: here, where it is registered, in its
    code, in the environment. Arguments are merged over the registered ones, and checked here if it is known here.
    """
    if isinstance(entrypoint, Mapping):
        if kwargs is not None:
            raise BadJob(f"run_job({name!r}, …): the arguments are given twice")
        entrypoint, kwargs = None, entrypoint
    client = client or await default_client()
    rows = await (await client.database()).fetch(REGISTERED, name) if isinstance(name, str) else []
    registered = dict(rows[0]) if rows else None
    found = _function(name, entrypoint, registered)
    given, arguments = JobOptions.given(options), dict(kwargs or {})
    if registered is not None:
        given = given.over(_options(registered))
        text = registered["default_kwargs"]
        arguments = msgspec.json.decode(opened(text) if found.entrypoint in registry else text) | arguments
        max_attempts = registered["max_attempts"] if max_attempts is None else max_attempts
    if isinstance(found, Job):
        given = given.over(found.defaults)
    known = found.entrypoint in registry
    if not known:
        arguments = await sealed_by_name(await client.database(), found.entrypoint, arguments)
    text = found.signature.encode((), arguments) if known else encode_json(arguments)
    refuse_look_alikes(text, 0, f"an argument of {name}")
    entry = _entry(found, given, max_attempts)
    building = Building(queue=given.queue, priority=given.priority, correlation_id=given.correlation_id)
    with building:
        node = building.add_node(Node(entry, text, [], building.frame))
    shown = given.name or (name if registered is not None or entrypoint is not None else entry.node_name)
    new = new_job(shown, given, client.settings, entrypoint=entry.entrypoint, kwargs=text)
    new.returns, new.run_type = building.value(node, what=shown), run_type
    if registered is not None:
        new.registered_job_id, new.hooks = registered["id"], new.hooks or _hooks(registered)
    submitted = await client.submit(new, building.finish(client.settings), key=key_of(given), connection=connection)
    decode = found.signature.decode_result if known else decode_json
    return JobHandle(
        submitted.job_id, decode=decode, client=client, in_callers_transaction=connection is not None, ids=submitted.ids
    )


def _function(
    name: str, entrypoint: str | None, registered: Mapping[str, Any] | None
) -> Job[Any, Any] | Task[Any, Any]:
    """What runs: that of the entrypoint given, of the registered job, or the job of that name."""
    wanted = entrypoint or (registered["entrypoint"] if registered is not None else name)
    if (job := known_job(wanted)) is not None:
        return job
    if "." not in wanted:
        raise UnknownJob(
            f"no job {wanted!r} is registered, or known here: register it, import the module that defines it, or give "
            "its entrypoint, module.function"
        )
    return registry.get(wanted) or by_name(wanted)


def _entry(found: Job[Any, Any] | Task[Any, Any], given: JobOptions, max_attempts: int | None) -> Task[Any, Any]:
    """Its first task; what was asked for comes before the function's own options."""
    entry = found.entry if isinstance(found, Job) else found
    asked: dict[str, Any] = {"queue": given.queue, "priority": given.priority, "max_attempts": max_attempts}
    return entry.options(**{option: value for option, value in asked.items() if value is not None})


def _hooks(registered: Mapping[str, Any]) -> str | None:
    hooks = msgspec.json.decode(registered["options"]).get("hooks") if registered["options"] else None
    return encode_json(hooks) if hooks else None


def _options(registered: Mapping[str, Any]) -> JobOptions:
    more = msgspec.json.decode(registered["options"]) if registered["options"] else {}
    return JobOptions(
        queue=registered["queue"],
        priority=registered["priority"],
        timeout=registered["timeout"],
        max_parallel=registered["max_parallel"],
        retention=registered["retention_seconds"],
        fail_fast=more.get("fail_fast"),
        metadata=more.get("metadata"),
    )
