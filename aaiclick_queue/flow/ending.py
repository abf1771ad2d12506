"""What the end of a task may bring beyond its status: hooks are enqueued, a row that nobody wants kept is dropped.

Parts of the statements of complete and settle: they happen with the end or not at all.
"""

from __future__ import annotations

import msgspec

from ..outcome import Error
from .place import enter_line

# Of the tasks in `gone`.
FORGET_ROWS = """forgotten AS (
    DELETE FROM aaiclick_queue.tasks WHERE id = ANY(ARRAY(SELECT task_id FROM gone))
), forgotten_progress AS (
    DELETE FROM aaiclick_queue.progress WHERE task_id = ANY(ARRAY(SELECT task_id FROM gone))
), forgotten_checkpoints AS (
    DELETE FROM aaiclick_queue.checkpoints WHERE task_id = ANY(ARRAY(SELECT task_id FROM gone))
)"""
# Whatever a client has written there, the end of a task or a job must not fail for it.
_READABLE = "CASE WHEN jsonb_typeof({0}.hooks) = 'object' THEN {0}.hooks END"
_HOOKS = """hooked AS (
    INSERT INTO aaiclick_queue.tasks (id, entrypoint, kwargs, queue, priority, correlation_id, parent_id, spawn_key,
                                      metadata)
    SELECT aaiclick_queue.new_id(), hook.value->>'entrypoint', (jsonb_build_object('ended', jsonb_build_object(
               'id', t.id::text, 'entrypoint', t.entrypoint, 'name', t.name, 'queue', t.queue, 'status', {status},
               'attempt', run.attempt, 'kwargs', t.kwargs, 'result', {result}, 'error', {error}))
               || coalesce(hook.value->'kwargs', jsonb_build_object()))
               - CASE hook.value->>'tells' WHEN 'false' THEN 'ended' ELSE '' END,
           coalesce(hook.value->>'queue', t.queue), t.priority, t.correlation_id, t.id,
           format('on_%s:%s', hook.key, run.run_epoch), CASE WHEN t.metadata->'$headers' IS NOT NULL THEN
               jsonb_build_object('$headers', t.metadata->'$headers') END
    FROM {source} AS run JOIN aaiclick_queue.tasks t ON t.id = run.task_id
    CROSS JOIN LATERAL (SELECT key, split_part(key, '.', 1) AS name, value FROM jsonb_each({hooks})) AS hook
    WHERE run.flags & 16 = 16 AND hook.value->>'entrypoint' <> '' AND ({fired})
    ON CONFLICT DO NOTHING
    RETURNING id AS task_id, queue, -priority::int AS rank, entrypoint
)"""
SUCCESS_HOOKS = _HOOKS.format(
    hooks=_READABLE.format("t"),
    source="ended",
    fired="hook.name = 'success'",
    status="'COMPLETED'",
    result="run.result::jsonb",
    error="NULL::jsonb",
)
FAILURE_HOOKS = _HOOKS.format(
    hooks=_READABLE.format("t"),
    source="taken",
    fired="""hook.name = 'retry' AND run.kind = 'RETRYING' OR run.kind = 'FAILED' AND (hook.name = 'failure'
           OR hook.name = 'give_up' AND (run.attempt >= t.max_attempts
                                         OR (run.error::jsonb)->>'type' = 'WorkerLost'))""",
    status="run.kind",
    result="NULL::jsonb",
    error="run.error::jsonb",
)
HOOKED_ROWS = """(SELECT task_id, task_id AS order_key, 0 AS run_epoch, 0 AS attempt, 0 AS lost_count, 0 AS snoozes,
           0 AS flags, queue, rank, entrypoint, NULL::text AS concurrency_key, NULL::text AS order_by,
           NULL::bigint AS job_id, NULL::text AS crowd FROM hooked)"""

_JOB_HOOKS = """hooked AS (
    INSERT INTO aaiclick_queue.tasks (id, entrypoint, kwargs, queue, priority, correlation_id, metadata)
    SELECT aaiclick_queue.new_id(), hook.value->>'entrypoint', (jsonb_build_object('ended', jsonb_build_object(
               'id', job.id::text, 'name', job.name, 'status', job.status, 'kwargs', job.kwargs, 'error', job.error))
               || coalesce(hook.value->'kwargs', jsonb_build_object()))
               - CASE hook.value->>'tells' WHEN 'false' THEN 'ended' ELSE '' END,
           coalesce(hook.value->>'queue', 'default'), job.priority, job.correlation_id,
           CASE WHEN job.metadata->'$headers' IS NOT NULL THEN
               jsonb_build_object('$headers', job.metadata->'$headers') END
    FROM {source} AS job CROSS JOIN LATERAL jsonb_each({hooks}) AS hook(name, value)
    WHERE hook.value->>'entrypoint' <> ''
      AND split_part(hook.name, '.', 1) = CASE job.status WHEN 'COMPLETED' THEN 'success' ELSE 'failure' END
    RETURNING id AS task_id, queue, -priority::int AS rank, entrypoint
)"""


def job_hooks(source: str) -> str:
    """CTEs that enqueue what is to be told of the ends of the jobs in `source`; `entered` has them."""
    return f"{_JOB_HOOKS.format(source=source, hooks=_READABLE.format('job'))}, {enter_line(HOOKED_ROWS)}"


def has_ended(holder: str) -> str:
    """Whether the task or job that holds a key is final, or not there any more."""
    return f"""coalesce(
        (SELECT t.status IS NOT NULL FROM aaiclick_queue.tasks t WHERE t.id = {holder}),
        (SELECT j.status NOT IN ('PENDING', 'RUNNING') FROM aaiclick_queue.jobs j WHERE j.id = {holder}), true)"""


def slots_of(task_id: str) -> str:
    """A subquery that finds and locks the slots a task holds; joined the obvious way a plan reads all of them."""
    return f"""
        SELECT s.ctid AS at, s.limit_id, s.seconds FROM aaiclick_queue.slots s
        WHERE s.task_id = {task_id} AND s.stopping = 0 FOR UPDATE"""


class EndedJob(msgspec.Struct, frozen=True):
    """What a job's hook is told of the job, as its one argument `ended`."""

    id: str
    name: str
    status: str
    kwargs: dict[str, object]
    error: Error | None = None


class EndedTask(msgspec.Struct, frozen=True):
    """What a hook is told of the task that it was set on, as its one argument `ended`."""

    id: str
    entrypoint: str
    name: str | None
    queue: str
    status: str
    attempt: int
    kwargs: dict[str, object]
    result: object = None
    error: Error | None = None
