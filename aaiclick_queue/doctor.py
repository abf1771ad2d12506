"""The doctor: what must be true of the tables at any moment, as SQL that counts what is not.

Each check is one statement with one snapshot, so it is right while the fleet works. The test suite runs it after
every test; `aaiclick-queue doctor` runs it for people.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

import msgspec

from .checks import LIMIT, WAITS_AT_GATE, Check
from .flow.days import OLD_DAYS
from .flow.dedupe import sqlstate
from .flow.detect import Found
from .flow.place import in_line
from .flow.prune import DAY, Policy
from .job_checks import JOB_CHECKS
from .postgres import Database
from .schedule_checks import SCHEDULE_CHECKS, SCHEDULE_NOTICES
from .schema import Transaction
from .settings import Settings

log = logging.getLogger(__name__)

# Compiled, the longest of the checks took 7 s over 100,000 tasks, and 1.8 s as it is.
PLANS = "SELECT set_config('jit', 'off', true)"
SOON = "SELECT set_config('statement_timeout', $1::text, true)"
LOOP_SECONDS = 5.0  # of a check that is made again and again
# Of a check, and of all of them, for somebody who waits for an answer: over five million tasks one that goes through
# all of them takes longer, and the others are answered.
EACH_SECONDS, ALL_SECONDS = 0.5, 4.0
TOO_LONG = "57014"
NO_JOBS = "SELECT NOT EXISTS (SELECT FROM aaiclick_queue.jobs) AS none"
SECOND_LOOK_SECONDS = 0.5


class Finding(msgspec.Struct, frozen=True):
    """One invariant and how many rows break it; `ok` is None where that was not found out in the time there was."""

    name: str
    ok: bool | None
    count: int
    detail: str
    fix: str
    notice: bool = False  # nothing is broken, and somebody should look


_PLACES = """(SELECT task_id FROM aaiclick_queue.ready UNION ALL SELECT task_id FROM aaiclick_queue.delayed
              UNION ALL SELECT task_id FROM aaiclick_queue.held UNION ALL SELECT task_id FROM aaiclick_queue.leases
              UNION ALL SELECT task_id FROM aaiclick_queue.waiting)"""
# Looked up by key per task: a join over whole tables would take minutes where millions wait.
_IN_PLACES = f"""((EXISTS (SELECT FROM aaiclick_queue.ready r WHERE {in_line("r", "t")}))::int
               + (EXISTS (SELECT FROM aaiclick_queue.held h WHERE h.task_id = t.id))::int
               + (EXISTS (SELECT FROM aaiclick_queue.delayed d WHERE d.task_id = t.id))::int
               + (EXISTS (SELECT FROM aaiclick_queue.leases l WHERE l.task_id = t.id))::int
               + ({WAITS_AT_GATE})::int)"""


def _overdue(settings: Settings) -> list[float | None]:
    policy = Policy.of(settings)
    return [None if age is None else age + DAY for age in (policy.completed_seconds, policy.failed_seconds)]


def _old_history(settings: Settings) -> list[float | None]:
    keep = Policy.of(settings).history_seconds
    return [None if keep is None else keep + 2 * DAY]


CHECKS = (
    Check(
        "every open task is in exactly one place",
        f"SELECT t.id FROM aaiclick_queue.tasks t WHERE t.status IS NULL AND {_IN_PLACES} <> 1 LIMIT {LIMIT}",
        "tasks without a final status that are in no place, or in two",
        "report it with `aaiclick-queue task get ID`; `aaiclick-queue task cancel ID` ends one that is in a place",
    ),
    Check(
        "a final task is in no place",
        f"""SELECT p.task_id FROM {_PLACES} AS p JOIN aaiclick_queue.tasks t ON t.id = p.task_id
            WHERE t.status IS NOT NULL LIMIT {LIMIT}""",
        "tasks that have ended and would run again",
        "report it with `aaiclick-queue task get ID`",
    ),
    Check(
        "whatever waits or runs is a task",
        f"""SELECT p.task_id FROM {_PLACES} AS p
            WHERE NOT EXISTS (SELECT FROM aaiclick_queue.tasks t WHERE t.id = p.task_id) LIMIT {LIMIT}""",
        "rows in the line without a task: somebody deleted from `tasks` by hand",
        "a worker drops them when their turn comes",
    ),
    Check(
        "leases of workers that are over are taken back",
        f"""SELECT l.task_id FROM aaiclick_queue.leases l LEFT JOIN aaiclick_queue.workers w ON w.id = l.worker_id
            WHERE coalesce(w.status, 'LOST') IN ('LOST', 'STOPPED')
              AND coalesce(w.stopped_at, l.claimed_at) < now() - interval '2 minutes' LIMIT {LIMIT}""",
        "runs of dead workers that no reaper took back for two minutes",
        "start a worker, or `aaiclick-queue background`",
    ),
    Check(
        "silent workers are noticed",
        f"""SELECT id FROM aaiclick_queue.workers WHERE status IN ('ACTIVE', 'STOPPING')
            AND lease_expires_at < now() - interval '2 minutes' LIMIT {LIMIT}""",
        "workers whose lease ended two minutes ago and that nobody marked LOST",
        "start a worker, or `aaiclick-queue background`",
    ),
    Check(
        "no run is past its deadline",
        f"SELECT task_id FROM aaiclick_queue.leases WHERE deadline_at < now() - interval '2 minutes' LIMIT {LIMIT}",
        "runs that neither their worker nor a reaper stopped",
        "start a worker, or `aaiclick-queue background`",
    ),
    Check(
        "delayed tasks are moved when due",
        f"""SELECT task_id FROM aaiclick_queue.delayed WHERE not_before < now() - interval '2 minutes'
            ORDER BY not_before LIMIT {LIMIT}""",
        "retries and etas that were due two minutes ago",
        "start a worker, or `aaiclick-queue background`",
    ),
    Check(
        "the outbox is emptied",
        f"""SELECT id FROM aaiclick_queue.outbox WHERE created_at < now() - interval '2 minutes'
            ORDER BY id LIMIT {LIMIT}""",
        "wake-ups that nobody relayed or dropped for two minutes",
        "start a worker, or `aaiclick-queue background`",
    ),
    Check(
        "a dedupe key is held by the task it names",
        f"""SELECT d.task_id FROM aaiclick_queue.dedupe d LEFT JOIN aaiclick_queue.tasks t ON t.id = d.task_id
            WHERE d.until IS NULL AND (t.id IS NULL OR t.status IS NOT NULL)
              AND coalesce(t.finished_at, d.first_at) < now() - interval '5 minutes' LIMIT {LIMIT}""",
        "keys of tasks that have ended; they count as free, the sweep removes them",
        "start a worker, or `aaiclick-queue background`",
    ),
    Check(
        "slots are given back",
        f"""SELECT s.task_id FROM aaiclick_queue.slots s LEFT JOIN aaiclick_queue.tasks t ON t.id = s.task_id
            WHERE s.stopping = 0 AND s.limit_id <> 0 AND s.ends_at IS NULL AND NOT s.adopted
              AND NOT EXISTS (SELECT FROM aaiclick_queue.leases l WHERE l.task_id = s.task_id)
              AND NOT EXISTS (SELECT FROM aaiclick_queue.ready r WHERE {in_line("r", "t")}) LIMIT {LIMIT}""",
        "slots of limits that no waiting or running task holds; a sweep takes them back",
        "start a worker, or `aaiclick-queue background`",
    ),
    Check(
        "no limit is exceeded",
        f"""SELECT m.id FROM aaiclick_queue.limits m CROSS JOIN LATERAL (
                SELECT count(*) AS n FROM aaiclick_queue.slots s WHERE s.limit_id = m.id AND NOT s.adopted
                GROUP BY s.key HAVING count(*) > m.n) AS used
            WHERE m.kind = 'running' LIMIT {LIMIT}""",
        "limits with more runs than they allow; one that was lowered is over it until runs have ended",
        "report it with `aaiclick-queue queue limits`",
    ),
    Check(
        "bulk operations go on",
        f"""SELECT id FROM aaiclick_queue.operations WHERE status = 'OPEN'
            AND updated_at < now() - interval '5 minutes' LIMIT {LIMIT}""",
        "operations that nobody has worked on for five minutes, or that wait for a transaction as old as that",
        "start a worker, or `aaiclick-queue background`; look for old transactions in pg_stat_activity",
    ),
    Check(
        "every waiting task is known to a worker",
        f"""SELECT d.task_id FROM aaiclick_queue.delayed d JOIN aaiclick_queue.tasks t ON t.id = d.task_id
            WHERE d.reason = 'unknown entrypoint' AND t.created_at < now() - interval '1 minute' LIMIT {LIMIT}""",
        "tasks whose entrypoint no worker had registered when it claimed them",
        "start a worker with -A naming their module; `aaiclick-queue task get ID` shows the entrypoint",
    ),
    Check(
        "every failed task is among the failures, and nothing else is",
        f"""(SELECT t.id FROM (SELECT id, status FROM aaiclick_queue.tasks ORDER BY id DESC LIMIT {100 * LIMIT}) AS t
             WHERE t.status = 'FAILED'
               AND NOT EXISTS (SELECT FROM aaiclick_queue.failures f WHERE f.task_id = t.id) LIMIT {LIMIT})
            UNION ALL
            (SELECT f.task_id FROM (SELECT task_id FROM aaiclick_queue.failures ORDER BY task_id DESC
                                    LIMIT {10 * LIMIT}) AS f
             WHERE NOT EXISTS (SELECT FROM aaiclick_queue.tasks t WHERE t.id = f.task_id AND t.status = 'FAILED')
             LIMIT {LIMIT})""",
        "of the newest tasks and failures, those that the table of failures has too few or too many",
        "report it with `aaiclick-queue task get ID`; `aaiclick-queue task retry ID` writes it anew",
    ),
    Check(
        "history has a place for the next days",
        """SELECT day FROM generate_series(0, 3) AS day, unnest(ARRAY['attempts', 'events']) AS parent
           WHERE to_regclass('aaiclick_queue.' || parent
                             || to_char((now() AT TIME ZONE 'UTC')::date + day, '_YYYYMMDD')) IS NULL""",
        "day partitions that are missing: retries would fail at midnight",
        "start a worker, or `SELECT aaiclick_queue.ensure_partitions(14)`",
    ),
    Check(
        "finished tasks are pruned by policy",
        # There is no index by time of end: the oldest tasks are looked at, and those that came of age last.
        f"""SELECT id FROM (
                (SELECT id, status, finished_at FROM aaiclick_queue.tasks
                 WHERE parent_id IS NULL AND job_id IS NULL AND order_stops IS NOT TRUE ORDER BY id
                 LIMIT {10 * LIMIT})
                UNION
                (SELECT id, status, finished_at FROM aaiclick_queue.tasks
                 WHERE parent_id IS NULL AND job_id IS NULL AND order_stops IS NOT TRUE
                   AND id < (extract(epoch FROM now() - make_interval(secs => least($1::float8, $2::float8)))
                             * 1000)::bigint << 22
                 ORDER BY id DESC LIMIT {10 * LIMIT})) AS t
            WHERE (status <> 'FAILED' AND finished_at < now() - make_interval(secs => $1::float8)
                   OR status = 'FAILED' AND finished_at < now() - make_interval(secs => $2::float8))
            LIMIT {LIMIT}""",
        "tasks that ended longer ago than RETENTION_COMPLETED_DAYS or RETENTION_FAILED_DAYS, by more than a day",
        "start a worker, or `aaiclick-queue background`, or `aaiclick-queue prune`",
        _overdue,
    ),
    Check(
        "finished jobs are pruned by policy",
        f"""SELECT id FROM (SELECT id, status, finished_at, retention_seconds FROM aaiclick_queue.jobs
                            ORDER BY id LIMIT {10 * LIMIT}) AS j
            WHERE retention_seconds IS NULL AND (
                      status = 'COMPLETED' AND finished_at < now() - make_interval(secs => $1::float8)
                      OR status IN ('FAILED', 'CANCELLED') AND finished_at < now() - make_interval(secs => $2::float8))
               OR status IN ('COMPLETED', 'FAILED', 'CANCELLED')
                  AND finished_at < now() - make_interval(secs => retention_seconds + 86400)
            LIMIT {LIMIT}""",
        "jobs that ended longer ago than their retention, RETENTION_COMPLETED_DAYS, or RETENTION_FAILED_DAYS if FAILED "
        "or CANCELLED, by more than a day; one whose failed task stops a strict order stays",
        "start a worker, or `aaiclick-queue background`, or `aaiclick-queue prune`; `aaiclick-queue task unblock ID`",
        _overdue,
    ),
    Check(
        "history is dropped by policy",
        OLD_DAYS,
        "day partitions of attempts and events that are too old by two days: a transaction that is open for long may "
        "hold them",
        "end old transactions (pg_stat_activity); start a worker, or `aaiclick-queue prune`",
        _old_history,
    ),
    *JOB_CHECKS,
    *SCHEDULE_CHECKS,
)

CHECK_NAMES = tuple(one.name for one in CHECKS)


# What breaks nothing and is seldom meant: a statement gives the names of what is concerned.
NOTICES = (
    Check(
        "work waits and no worker is alive",
        f"""WITH RECURSIVE line AS (
                (SELECT queue FROM aaiclick_queue.ready ORDER BY queue LIMIT 1)
                UNION ALL
                SELECT (SELECT r.queue FROM aaiclick_queue.ready r WHERE r.queue > line.queue ORDER BY r.queue LIMIT 1)
                FROM line WHERE line.queue IS NOT NULL)
            SELECT queue AS name FROM line WHERE queue IS NOT NULL
            AND NOT EXISTS (SELECT FROM aaiclick_queue.queues q WHERE q.name = queue AND q.paused_at IS NOT NULL)
            AND NOT EXISTS (SELECT FROM aaiclick_queue.workers w WHERE w.status = 'ACTIVE'
                            AND w.lease_expires_at > now() AND (queue = ANY(w.queues) OR '*' = ANY(w.queues)))
            AND EXISTS (SELECT FROM (SELECT r.ready_at FROM aaiclick_queue.ready r WHERE r.queue = line.queue
                                     ORDER BY r.rank, r.order_key, r.task_id LIMIT 100) AS first
                        WHERE first.ready_at < now() - interval '1 minute') LIMIT {LIMIT}""",
        "queues with tasks that have waited for a minute, and no ACTIVE worker that serves them",
        "start a worker with -Q naming them, or `aaiclick-queue queue pause` those that are to wait",
    ),
    *SCHEDULE_NOTICES,
)
NAMES_SHOWN = 5
UNKNOWN_FIX = "`aaiclick-queue doctor` takes the time that it needs"


async def check(db: Database, *, tell: Callable[[Finding], None] = lambda _: None) -> list[Finding]:
    """Run every check, however long it takes; notices come last, and only those that have something to say."""
    findings: list[Finding] = []
    async with db.transaction() as tx:  # for the setting alone: each statement has a snapshot of its own
        await tx.fetch(PLANS)
        [jobs] = await tx.fetch(NO_JOBS)
        without_jobs = JOB_CHECKS if jobs["none"] else ()
        for one in (*CHECKS, *NOTICES):
            told = _found(one, set() if one in without_jobs else await _broken(tx, one, db.settings))
            findings += told
            for finding in told:
                tell(finding)
    return findings


async def check_soon(db: Database) -> list[Finding]:
    """The same within some seconds: a check that takes longer is told as one of which nothing is known."""
    findings: list[Finding] = []
    without_jobs = JOB_CHECKS if await db.fetchval(NO_JOBS) else ()
    ends_at = time.monotonic() + ALL_SECONDS
    for one in (*CHECKS, *NOTICES):
        seconds = min(EACH_SECONDS, ends_at - time.monotonic())
        found = set() if one in without_jobs else await _broken_soon(db, one, seconds)
        findings += _found(one, found)
    return findings


async def examine(db: Database) -> list[Found]:
    """What is broken, by those checks that can be answered soon: for who looks again and again."""
    found = []
    without_jobs = JOB_CHECKS if await db.fetchval(NO_JOBS) else ()
    for one in CHECKS:
        if one in without_jobs:
            continue
        broken = await _broken_soon(db, one, LOOP_SECONDS)
        if broken is None:
            log.debug("the check that %s takes too long: left to `aaiclick-queue doctor`", one.name)
        elif broken:
            data = {"count": len(broken)}
            found.append(Found("invariant", one.name, f"it is not so that {one.name}: {one.detail}", data))
    return found


def _found(one: Check, found: set[object] | None) -> list[Finding]:
    if found is None:
        return [Finding(one.name, None, 0, f"not looked at to the end: {one.detail}", UNKNOWN_FIX, one in NOTICES)]
    if one not in NOTICES:
        return [Finding(one.name, not found, len(found), one.detail, one.fix)]
    names = sorted(map(str, found))
    more = " …" if len(names) > NAMES_SHOWN else ""
    detail = f"{one.detail}: {', '.join(names[:NAMES_SHOWN])}{more}"
    return [Finding(one.name, True, len(names), detail, one.fix, notice=True)] if names else []


async def _broken_soon(db: Database, one: Check, seconds: float) -> set[object] | None:
    """What breaks the invariant; None where that takes longer."""
    if seconds <= 0:
        return None
    try:
        async with db.transaction() as tx:
            await tx.fetch(PLANS)
            await tx.fetch(SOON, f"{max(1, round(seconds * 1000))}ms")
            return await _broken(tx, one, db.settings)
    except Exception as error:
        if sqlstate(error) != TOO_LONG:
            raise
        return None


async def _broken(tx: Transaction, one: Check, settings: Settings) -> set[object]:
    found = await _look(tx, one, settings)
    if found and one.twice:
        await asyncio.sleep(SECOND_LOOK_SECONDS)
        found &= await _look(tx, one, settings)
    return found


async def _look(tx: Transaction, one: Check, settings: Settings) -> set[object]:
    return {row[0] for row in await tx.fetch(one.sql, *one.arguments(settings)) if one.keep(row)}
