"""Place: the one way of a task into the line, straight into `ready`, or into `held` where limits or an order apply.

Before: enqueue, a delay that ended, a run that was handed back. After: the claim, or admission. Limits act here and
never in the claim; a task that no limit names costs a look at an empty index.
"""

from __future__ import annotations

_OF_TASK = "EXISTS (SELECT FROM aaiclick_queue.limits m WHERE m.scope = 'task' AND m.name = {entrypoint})"
_OF_QUEUE = "EXISTS (SELECT FROM aaiclick_queue.limits m WHERE m.scope = 'queue' AND m.name = {queue})"
_OF_JOB = "EXISTS (SELECT FROM aaiclick_queue.limits m WHERE m.scope = 'job' AND m.name = {job_id}::text)"
_OF_KEY = "EXISTS (SELECT FROM aaiclick_queue.limits m WHERE m.scope = 'key' AND m.name = {key})"


def of_task(entrypoint: str) -> str:
    """Whether limits name the entrypoint."""
    return _OF_TASK.format(entrypoint=entrypoint)


def of_queue(queue: str) -> str:
    """Whether limits name the queue."""
    return _OF_QUEUE.format(queue=queue)


def of_key(key: str) -> str:
    """Whether limits name the concurrency key."""
    return f"({key} IS NOT NULL AND {_OF_KEY.format(key=key)})"


def of_job(job_id: str, crowd: str) -> str:
    """Whether a task of a job waits for its turn there: the job or one of its groups is capped, or it is paused."""
    return f"({crowd} IS NOT NULL OR {job_id} IS NOT NULL AND {_OF_JOB.format(job_id=job_id)})"


def crowd_of(job_id: str, crowd: str) -> str:
    """What a held task of a job waits in: its job, for a pause, and what is capped, the job or groups of it.

    Nothing where neither is: else each of a thousand jobs in a limited queue would be a lane of its own.
    """
    return f"CASE WHEN {of_job(job_id, crowd)} THEN {job_id}::text || coalesce('/' || {crowd}, '') ELSE '' END"


# A task of a strict order waits in the order of its enqueue, whatever its priority.
_ENTER = """
placed AS (
    SELECT s.task_id, s.order_key, s.run_epoch, s.attempt, s.lost_count, s.snoozes, s.flags & ~2 AS flags, s.queue,
           s.rank, coalesce(s.concurrency_key, '') AS key, coalesce(s.order_by, '') AS chain,
           CASE WHEN {of_task} THEN s.entrypoint ELSE '' END AS entrypoint, {crowd} AS crowd,
           s.order_by IS NOT NULL OR {of_queue} OR {of_task} OR {of_key} OR {of_job} AS limited
    FROM {source} AS s
), in_ready AS (
    INSERT INTO aaiclick_queue.ready (queue, rank, order_key, task_id, run_epoch, attempt, lost_count, snoozes, flags)
    SELECT queue, rank, order_key, task_id, run_epoch, attempt, lost_count, snoozes, flags FROM placed
    WHERE NOT limited
    ON CONFLICT DO NOTHING RETURNING queue, rank, order_key, task_id
), in_held AS (
    INSERT INTO aaiclick_queue.held (queue, rank, order_key, task_id, run_epoch, attempt, lost_count, snoozes, flags,
                                     entrypoint, key, chain, crowd)
    SELECT queue, CASE WHEN chain = '' THEN rank ELSE 0 END, order_key, task_id, run_epoch, attempt, lost_count,
           snoozes, flags, entrypoint, key, chain, crowd FROM placed WHERE limited
    ON CONFLICT DO NOTHING RETURNING queue, rank, order_key, task_id
), entered AS (
    SELECT queue, rank, order_key, task_id FROM in_ready
    UNION ALL SELECT queue, rank, order_key, task_id FROM in_held
)"""


def enter_line(source: str) -> str:
    """CTEs that put the rows of `source` in line; `entered` tells the outbox.

    `source` has: task_id, order_key, run_epoch, attempt, lost_count, snoozes, flags, queue, rank, entrypoint,
    concurrency_key, order_by, job_id, crowd.
    """
    return _ENTER.format(
        source=source,
        of_task=of_task("s.entrypoint"),
        of_queue=of_queue("s.queue"),
        of_key=of_key("s.concurrency_key"),
        of_job=of_job("s.job_id", "s.crowd"),
        crowd=crowd_of("s.job_id", "s.crowd"),
    )


def in_line(place: str, task: str) -> str:
    """The key of a task's row in `ready`: under fair turns its place in line is on its slot."""
    return f"""{place}.queue = {task}.queue AND {place}.rank = -{task}.priority::int AND {place}.order_key = coalesce(
            (SELECT s.order_key FROM aaiclick_queue.slots s WHERE s.task_id = {task}.id AND s.order_key IS NOT NULL
             LIMIT 1), {task}.job_id, {task}.id) AND {place}.task_id = {task}.id"""


def lacks_slot(task: str) -> str:
    """Whether a limit applies to the task that it holds no slot of, or one that ends with its run.

    One made since it got in, or a rate whose period is over.
    """
    return f"""EXISTS (
        SELECT FROM (VALUES ('queue', {task}.queue), ('task', {task}.entrypoint), ('key', {task}.concurrency_key),
                     ('job', {task}.job_id::text)) AS its(scope, name)
        JOIN aaiclick_queue.limits m ON m.scope = its.scope AND m.name = its.name
        WHERE (NOT m.per_key OR {task}.concurrency_key IS NOT NULL) AND NOT EXISTS (
            SELECT FROM aaiclick_queue.slots s
            WHERE s.task_id = {task}.id AND s.limit_id = m.id AND s.stopping = 0 AND NOT s.adopted
              AND (s.ends_at IS NULL OR s.ends_at > now())))"""


# Looked up by key for a task `t` that is open: it runs, or stands in one of the places from which it will.
IS_ON_ITS_WAY = f"""(EXISTS (SELECT FROM aaiclick_queue.leases l WHERE l.task_id = t.id)
                 OR EXISTS (SELECT FROM aaiclick_queue.delayed d WHERE d.task_id = t.id)
                 OR EXISTS (SELECT FROM aaiclick_queue.held h WHERE h.task_id = t.id)
                 OR EXISTS (SELECT FROM aaiclick_queue.ready r WHERE {in_line("r", "t")}))"""
