"""Resolve: folds arrivals into gates, and opens, fails or skips what waits there. Any number may work side by side.

Before: complete, settle, submit. After: the line for what opened, more arrivals for what did not, the end of a job.
Resolvers share gates and not arrivals: gates first, by SKIP LOCKED in the order of their ids, then theirs alone.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import msgspec

from ..meters import METERS
from ..postgres import DATA_ERRORS, Connection, Database
from ..spans import TOLD
from .attach import ADOPT_TASKS, LOOK_AT, results_of_continued
from .ending import job_hooks
from .kick import tell_ended
from .mark import Mark
from .outbox import append_from
from .place import enter_line

log = logging.getLogger(__name__)

# The state leaves WAITING once. A gate of a job or group counts the tasks of its subtree, so what arrives there goes on
# to the gate above it; the other kinds have none above.
_FOLD_ARRIVALS = """
WITH head AS MATERIALIZED (
    SELECT id, gate_id FROM aaiclick_queue.arrivals WHERE id >= $2 ORDER BY id LIMIT $1
), mine AS MATERIALIZED (
    SELECT g.id FROM aaiclick_queue.gates g WHERE g.id = ANY(ARRAY(SELECT DISTINCT gate_id FROM head))
    ORDER BY g.id FOR UPDATE SKIP LOCKED
), taken AS (
    DELETE FROM aaiclick_queue.arrivals WHERE id = ANY(ARRAY(
        SELECT head.id FROM head JOIN mine ON mine.id = head.gate_id))
    RETURNING id, gate_id, n, failed, skipped, vetoed
), come AS (
    SELECT gate_id, {n} AS n, {failed} AS failed, {skipped} AS skipped, {vetoed} AS vetoed FROM taken GROUP BY gate_id
), folded AS (
    UPDATE aaiclick_queue.gates g
    SET remaining = g.remaining - come.n, failed = g.failed + come.failed, skipped = g.skipped + come.skipped,
        vetoed = g.vetoed + come.vetoed,
        (state, decided_at) = (SELECT its.state, CASE WHEN its.state <> 'WAITING' THEN coalesce(g.decided_at, now()) END
                               FROM (SELECT CASE
            WHEN g.state <> 'WAITING' THEN g.state
            WHEN g.vetoed + come.vetoed > 0 THEN 'SKIP'
            WHEN g.rule IN ('all_success', 'none_failed') AND g.failed + come.failed > 0 THEN 'FAIL'
            WHEN g.rule = 'one_success' AND g.total - (g.remaining - come.n) > g.failed + come.failed
                                                                               + g.skipped + come.skipped THEN 'OPEN'
            WHEN g.remaining - come.n > 0 THEN 'WAITING'
            WHEN g.rule IN ('one_success', 'whole') AND g.failed + come.failed > 0 THEN 'FAIL'
            WHEN g.rule IN ('all_success', 'one_success', 'whole') AND g.total > 0
                 AND g.skipped + come.skipped = g.total THEN 'SKIP'
            ELSE 'OPEN' END AS state) AS its)
    FROM come WHERE g.id = come.gate_id
    RETURNING g.id, g.kind, g.state, g.remaining, g.parent_id, come.n, come.failed, come.skipped
), passed_on AS (
    INSERT INTO aaiclick_queue.arrivals (gate_id, n, failed, skipped)
    SELECT parent_id, sum(n), sum(failed), sum(skipped) FROM folded
    WHERE parent_id IS NOT NULL AND n > 0 AND remaining >= 0  -- below, it counts for itself: gates in a circle
    GROUP BY parent_id ORDER BY parent_id
    RETURNING gate_id
)
SELECT (SELECT count(*) FROM head) AS seen, (SELECT max(id) FROM head) AS last,
       (SELECT array_agg(id) FROM taken) AS taken,
       (SELECT count(*) FROM passed_on) AS passed_on, folded.id, folded.kind, folded.state, folded.failed,
       folded.remaining, CASE WHEN folded.kind = 'TASK' AND folded.state = 'OPEN' THEN (
           SELECT t.after_gate IS NOT NULL FROM aaiclick_queue.tasks t WHERE t.id = folded.id) END AS continued
FROM (SELECT 1) AS one LEFT JOIN folded ON true
"""
# No gate counts more than a billion, so that what a hostile client says cannot make a number that Postgres refuses.
FOLD_ARRIVALS = _FOLD_ARRIVALS.format(
    **{name: f"least(greatest(sum({name}), 0), 1000000000)::int" for name in ("n", "failed", "skipped", "vetoed")}
)
# An arrival was written with its gate or after it: this one's is gone.
DROP_ORPHANS = """
DELETE FROM aaiclick_queue.arrivals a WHERE a.id = ANY(ARRAY(
    SELECT id FROM aaiclick_queue.arrivals WHERE id >= $2 ORDER BY id LIMIT $1))
AND NOT EXISTS (SELECT FROM aaiclick_queue.gates g WHERE g.id = a.gate_id)
"""
# A page of those that wait: a gate opens by deleting its waiting rows, and a cancel deletes the same row. What waits
# and what is to be told is looked up here and not where gates were folded: that statement may be older than who held
# the gate last, and not see what was put behind it.
OPEN_GATES = f"""
WITH taken AS (
    DELETE FROM aaiclick_queue.waiting WHERE ctid = ANY(ARRAY(
        SELECT w.ctid FROM aaiclick_queue.waiting w WHERE w.gate_id = ANY($1::bigint[])
        ORDER BY w.gate_id, w.task_id LIMIT $2 FOR UPDATE SKIP LOCKED))
    RETURNING gate_id, task_id, run_epoch, flags
), decided AS MATERIALIZED (
    SELECT taken.task_id, taken.run_epoch, taken.flags, g.state, g.vetoed, t.job_id, t.queue, -t.priority::int AS rank,
           t.entrypoint, t.concurrency_key, t.order_by, t.crowd,
           coalesce(now() + make_interval(secs => t.countdown), t.eta) AS due,
           g.state = 'OPEN' AND NOT (j.status = 'CANCELLED' OR j.failing_at IS NOT NULL) AS goes_on
    FROM taken JOIN aaiclick_queue.gates g ON g.id = taken.gate_id JOIN aaiclick_queue.tasks t ON t.id = taken.task_id
    JOIN aaiclick_queue.jobs j ON j.id = g.job_id
), later AS (
    INSERT INTO aaiclick_queue.delayed (task_id, not_before, order_key, rank, run_epoch, flags, queue, reason)
    SELECT task_id, due, job_id, rank, run_epoch, flags, queue, 'eta' FROM decided WHERE goes_on AND due > now()
    ON CONFLICT DO NOTHING
), at_once AS (
    SELECT task_id, job_id AS order_key, run_epoch, 0 AS attempt, 0 AS lost_count, 0 AS snoozes, flags, queue, rank,
           entrypoint, concurrency_key, order_by, job_id, crowd
    FROM decided WHERE goes_on AND (due IS NULL OR due <= now())
), {enter_line("at_once")}, told AS (
    {append_from("entered")}
), final AS (
    UPDATE aaiclick_queue.tasks t
    SET status = CASE decided.state WHEN 'FAIL' THEN 'UPSTREAM_FAILED' WHEN 'SKIP' THEN 'SKIPPED' ELSE 'CANCELLED' END,
        attempt = 0, run_epoch = decided.run_epoch, finished_at = now(), error = CASE
            WHEN decided.state = 'OPEN' THEN jsonb_build_object('type', 'Cancelled',
                'message', 'its job was cancelled, or failed, before it started')
            WHEN decided.state = 'FAIL' THEN jsonb_build_object('type', 'UpstreamFailed',
                'message', 'a task that it waits for did not complete')
            WHEN decided.vetoed > 0 THEN jsonb_build_object('type', 'Skipped', 'message', 'its branch was not taken')
            ELSE jsonb_build_object('type', 'Skipped', 'message', 'all that it waits for was skipped') END
    FROM decided WHERE t.id = decided.task_id AND NOT decided.goes_on
    RETURNING t.id, t.job_id, t.run_epoch, t.status, t.error, t.member_gate, t.exit_gate
), freed AS (
    DELETE FROM aaiclick_queue.dedupe WHERE ctid = ANY(ARRAY(
        SELECT d.ctid FROM aaiclick_queue.dedupe d WHERE d.until IS NULL AND d.task_id = ANY(ARRAY(
            SELECT task_id FROM decided WHERE flags & 1 = 1 AND NOT goes_on))
        FOR UPDATE SKIP LOCKED))
), arrived AS (
    INSERT INTO aaiclick_queue.arrivals (gate_id, n, failed, skipped)
    SELECT at.gate_id, count(*), count(*) FILTER (WHERE final.status <> 'SKIPPED'),
           count(*) FILTER (WHERE final.status = 'SKIPPED')
    FROM final CROSS JOIN LATERAL (VALUES (final.member_gate), (final.exit_gate)) AS at(gate_id)
    WHERE at.gate_id IS NOT NULL GROUP BY at.gate_id ORDER BY at.gate_id
), noted AS (
    INSERT INTO aaiclick_queue.events (task_id, job_id, run_epoch, type, data)
    SELECT id, job_id, run_epoch, 'TASK_' || status, jsonb_build_object('reason', error->>'message') FROM final
)
SELECT (SELECT count(*) FROM taken) AS taken, (SELECT count(*) FROM entered) AS entered,
       (SELECT count(*) FROM in_held) AS limited, (SELECT array_agg(id) FROM final) AS ended,
       (SELECT count(*) FROM (SELECT FROM aaiclick_queue.waiting w WHERE w.gate_id = ANY($1::bigint[]) LIMIT $2)
                             AS row) AS there,
       array(SELECT g.id FROM aaiclick_queue.gates g WHERE g.id = ANY($1::bigint[]) AND EXISTS (
           SELECT FROM aaiclick_queue.gate_edges e WHERE e.gate_id = g.id AND e.next_gate_id > g.edge_cursor OFFSET 0))
           AS untold
"""
# A WAIT gate before another one is one of several conditions, all of which have to hold: skipped, it is not met.
# Gate by gate, the edges of each in order: joined the obvious way, a plan made on an empty table reads all edges.
TELL_EDGES = """
WITH page AS MATERIALIZED (
    SELECT e.gate_id, e.next_gate_id, CASE WHEN g.kind = 'WAIT' AND g.state = 'SKIP' THEN 'VETO' ELSE
               aaiclick_queue.arrives_as(g.state, e.choices, e.known, coalesce(given.result::jsonb, t.result)) END
               AS verdict
    FROM aaiclick_queue.gates g CROSS JOIN LATERAL (
        SELECT e.gate_id, e.next_gate_id, e.choices, e.known FROM aaiclick_queue.gate_edges e
        WHERE e.gate_id = g.id AND e.next_gate_id > g.edge_cursor ORDER BY e.gate_id, e.next_gate_id LIMIT $2) AS e
    LEFT JOIN LATERAL (
        SELECT t.result FROM aaiclick_queue.tasks t WHERE e.choices IS NOT NULL AND t.id = g.id OFFSET 0) AS t ON true
    LEFT JOIN unnest($3::bigint[], $4::text[]) AS given(id, result) ON given.id = g.id
    WHERE g.id = ANY($1::bigint[]) LIMIT $2
), arrived AS (
    INSERT INTO aaiclick_queue.arrivals (gate_id, n, failed, skipped, vetoed)
    SELECT next_gate_id, count(*), count(*) FILTER (WHERE verdict = 'FAIL'), count(*) FILTER (WHERE verdict = 'SKIP'),
           count(*) FILTER (WHERE verdict = 'VETO') FROM page GROUP BY next_gate_id ORDER BY next_gate_id
), moved AS (
    UPDATE aaiclick_queue.gates g SET edge_cursor = told.last
    FROM (SELECT gate_id, max(next_gate_id) AS last FROM page GROUP BY gate_id) AS told WHERE g.id = told.gate_id
)
SELECT count(*) AS told FROM page
"""
# Whoever holds the job's row, a clear or somebody who adds to it, may change the count: then the gate is looked at
# again. A job that was cancelled has ended already.
CLOSE_JOBS = f"""
WITH over AS MATERIALIZED (
    SELECT j.id, g.total, g.failed, g.skipped FROM aaiclick_queue.jobs j JOIN aaiclick_queue.gates g ON g.id = j.id
    WHERE j.id = ANY($1::bigint[]) AND j.status IN ('PENDING', 'RUNNING') AND g.remaining = 0
    ORDER BY j.id FOR UPDATE OF j SKIP LOCKED
), closed AS (
    UPDATE aaiclick_queue.jobs j
    SET status = CASE WHEN over.failed > 0 OR j.failing_at IS NOT NULL THEN 'FAILED' ELSE 'COMPLETED' END,
        finished_at = now(), started_at = coalesce(j.started_at, now()),
        error = CASE WHEN over.failed > 0 OR j.failing_at IS NOT NULL THEN coalesce(j.error,
            jsonb_build_object('type', 'JobFailed', 'message',
                format('%s of %s tasks did not complete', over.failed, over.total))) END
    FROM over WHERE j.id = over.id
    RETURNING j.id, j.name, j.status, j.error, j.kwargs, j.hooks, j.priority, j.correlation_id, j.created_at,
              j.started_at, j.metadata, over.total, over.failed, over.skipped
), freed AS (
    DELETE FROM aaiclick_queue.dedupe WHERE ctid = ANY(ARRAY(
        SELECT d.ctid FROM aaiclick_queue.dedupe d WHERE d.until IS NULL AND d.task_id = ANY(ARRAY(
            SELECT id FROM closed)) FOR UPDATE SKIP LOCKED))
), {job_hooks("closed")}, told AS (
    {append_from("entered")}
), noted AS (
    INSERT INTO aaiclick_queue.events (job_id, type, data)
    SELECT id, 'JOB_' || status, jsonb_strip_nulls(jsonb_build_object(
               'duration', extract(epoch FROM now() - started_at)::float8, 'tasks', total, 'failed', failed,
               'skipped', skipped, 'failed_tasks', CASE WHEN failed > 0 THEN (
                   SELECT jsonb_agg(first.name) FROM (
                       SELECT t.name FROM aaiclick_queue.tasks t WHERE t.job_id = closed.id AND t.status = 'FAILED'
                       ORDER BY t.id LIMIT 20) AS first) END))
    FROM closed
)
SELECT id, (SELECT count(*) FROM entered) AS entered, name, status, error->>'type' AS error_type, metadata,
       extract(epoch FROM now() - started_at)::float8 AS seconds, extract(epoch FROM created_at)::float8 AS created
FROM closed
"""
# The job is not held here, for somebody who holds it may wait for these gates: whoever works the operation stops it.
FAIL_FAST = """
INSERT INTO aaiclick_queue.operations (kind, filter, arguments, up_to, made_by)
SELECT 'cancel_job', jsonb_build_object('job', j.id::text),
       jsonb_build_object('error', jsonb_build_object('type', 'FailFast', 'message', 'another task of the job failed')),
       9223372036854775807, 'fail_fast'
FROM unnest($1::bigint[]) AS failing(id) CROSS JOIN LATERAL (
    SELECT j.id, j.status, j.fail_fast, j.failing_at FROM aaiclick_queue.jobs j WHERE j.id = failing.id OFFSET 0) AS j
WHERE j.fail_fast AND j.failing_at IS NULL AND j.status IN ('PENDING', 'RUNNING')
  AND NOT EXISTS (SELECT FROM aaiclick_queue.operations o WHERE o.status = 'OPEN' AND o.kind = 'cancel_job'
                  AND o.filter->>'job' = j.id::text)
RETURNING id
"""
# OFFSET 0: one by one, never as a hash of all that waits.
LOOK_AGAIN = """
INSERT INTO aaiclick_queue.arrivals (gate_id, n)
SELECT g.id, 0 FROM aaiclick_queue.gates g WHERE g.id = ANY($1::bigint[]) AND g.state <> 'WAITING' AND (
    EXISTS (SELECT FROM aaiclick_queue.waiting w WHERE w.gate_id = g.id OFFSET 0)
    OR EXISTS (SELECT FROM aaiclick_queue.gate_edges e WHERE e.gate_id = g.id AND e.next_gate_id > g.edge_cursor
               OFFSET 0)
    OR (g.remaining = 0 AND EXISTS (SELECT FROM aaiclick_queue.jobs j WHERE j.id = g.id
                                    AND j.status IN ('PENDING', 'RUNNING') OFFSET 0)))
RETURNING gate_id
"""
NEXT_ARRIVALS = "SELECT id, gate_id FROM aaiclick_queue.arrivals ORDER BY id LIMIT $1"
DROP_ARRIVAL = "DELETE FROM aaiclick_queue.arrivals WHERE id = $1"
SINGLY = 100  # a transaction each
BATCH = 1000
PAGE = 2000  # of those that wait at a gate: the arrivals of other jobs come in between


class Resolved(msgspec.Struct):
    """What one pass did: arrivals folded, tasks put in line, operations made; whether to look again, and how soon."""

    folded: int = 0
    entered: int = 0
    limited: bool = False  # whether some of them wait for their turn
    operations: int = 0
    more: bool = False
    held: bool = False  # gates that another resolver or a clear holds: it may not have seen these arrivals


class Resolver:
    """The resolver of one process."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._mark = Mark(0)
        self._beyond = 0  # pages of arrivals at gates that somebody holds: those of other jobs come behind them

    async def resolve_once(self, *, limit: int = BATCH, page: int = PAGE) -> Resolved:
        """One bounded pass, one transaction; where something in it stops all, one by one."""
        try:
            return await self._resolve(limit, page)
        except DATA_ERRORS:
            self._beyond = 0
            self._mark.want()
        done = Resolved(more=True)
        for row in await self._db.fetch(NEXT_ARRIVALS, SINGLY):
            try:
                one = await self._resolve_one(row["id"], page)
            except DATA_ERRORS as error:
                await self._db.fetch(DROP_ARRIVAL, row["id"])
                log.error("what arrived at gate %d cannot be worked on and is dropped: %s", row["gate_id"], error)
            else:
                done.folded, done.entered = done.folded + one.folded, done.entered + one.entered
                done.limited, done.operations = done.limited or one.limited, done.operations + one.operations
        return done

    async def _resolve_one(self, arrival: int, page: int) -> Resolved:
        done, ended = Resolved(), list[int]()
        async with self._db.transaction() as tx:
            rows = await tx.fetch(FOLD_ARRIVALS, 1, arrival)
            done.folded = len(rows[0]["taken"] or ())
            await self._act(tx, [row for row in rows if row["id"] is not None], page, done, ended)
        tell_ended(ended)
        return done

    async def _resolve(self, limit: int, page: int) -> Resolved:
        done = Resolved()
        ended: list[int] = []
        async with self._db.transaction() as tx:
            walks = self._beyond > 0
            start = self._beyond if walks else self._mark.begin()
            rows = await tx.fetch(FOLD_ARRIVALS, limit, start)
            taken, seen = rows[0]["taken"] or [], rows[0]["seen"]
            is_full, skipped = seen >= limit, seen > len(taken)
            if not walks:
                self._mark.end(taken, full=is_full)
            self._beyond = rows[0]["last"] + 1 if is_full and (skipped or walks) else 0
            done.folded = len(taken)
            done.more = is_full or bool(rows[0]["passed_on"])
            done.held = skipped or walks
            if skipped and not taken:
                await tx.fetch(DROP_ORPHANS, limit, start)
            await self._act(tx, [row for row in rows if row["id"] is not None], page, done, ended)
        tell_ended(ended)
        return done

    async def _act(self, tx: Connection, gates: Sequence[Any], page: int, done: Resolved, ended: list[int]) -> None:
        again: set[int] = set()
        decided = [row for row in gates if row["state"] != "WAITING"]
        ended += [row["id"] for row in decided if row["kind"] == "AFTER"]
        if alone := [row["id"] for row in gates if row["kind"] == "TASK" and row["state"] == "WAITING"]:
            [row] = await tx.fetch(ADOPT_TASKS, alone)
            done.more = done.more or bool(row["decided"])
            if row["missed"]:
                await tx.fetch(LOOK_AT, row["missed"])
                done.held = True
        telling = [row["id"] for row in decided if row["kind"] not in ("WAIT", "JOB")]
        if waited_at := [row["id"] for row in decided if row["kind"] == "WAIT"]:
            [row] = await tx.fetch(OPEN_GATES, waited_at, page)
            done.entered += row["entered"]
            done.limited = row["limited"] > 0
            ended += row["ended"] or ()
            done.more = done.more or bool(row["ended"])
            telling += row["untold"]
            again.update(waited_at if row["taken"] >= page else ())
            # Somebody holds one of them, and may let go of it again.
            if row["taken"] < row["there"] and await tx.fetch(LOOK_AGAIN, waited_at):
                done.held = True
        if telling:
            continued = [row["id"] for row in decided if row["continued"]]
            results = await results_of_continued(tx, continued) if continued else {}
            [row] = await tx.fetch(TELL_EDGES, telling, page, list(results), list(results.values()))
            done.more = done.more or bool(row["told"])
            again.update(telling if row["told"] >= page else ())
        jobs = [row for row in gates if row["kind"] == "JOB"]
        if over := [row["id"] for row in jobs if row["remaining"] == 0]:
            closed = await tx.fetch(CLOSE_JOBS, over)
            ended += [row["id"] for row in closed]
            _note_ends(closed)
            hooks = max((row["entered"] for row in closed), default=0)
            done.entered, done.limited = done.entered + hooks, done.limited or hooks > 0
            left = {*over} - {row["id"] for row in closed}
            if left and await tx.fetch(LOOK_AGAIN, sorted(left)):
                done.held = True
        if failing := [row["id"] for row in jobs if row["failed"] and row["remaining"]]:
            done.operations = len(await tx.fetch(FAIL_FAST, failing))
        if again and await tx.fetch(LOOK_AGAIN, sorted(again)):
            done.more = True


def _note_ends(jobs: Sequence[Any]) -> None:
    for row in jobs if METERS.on else ():
        METERS.job_ended(row["name"], row["status"], row["seconds"])
    if TOLD.tracer is not None:
        for row in jobs:
            TOLD.tracer.job_ended(row)
