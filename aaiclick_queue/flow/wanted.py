"""Wanted: which tasks a person means, as a filter. Before: a person. After: operations, which change those tasks.

A filter is a JSON object of words and values; a word that is missing stands for any value.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from ..schema import Transaction

# What each status of an open task is: the place where its row stands.
PLACES = {"PENDING": ("waiting", "held"), "SCHEDULED": ("delayed",), "QUEUED": ("ready",), "RUNNING": ("leases",)}
STATUSES = {place: status for status, places in PLACES.items() for place in places}
ENDED = ("FAILED", "CANCELLED")
COUNT_LIMIT = 10_000
LOOK_LIMIT = 100_000  # rows of a place that a count looks at: 0.3 s where few of them match


def alike(fingerprint: str) -> str:
    """Whether a failure is of that group, for statements that go through it by `ORDER BY fingerprint, task_id`.

    As a range and not as `=`: that makes the order one by task, and a plan walks all failures there are to keep it.
    """
    return f"fingerprint >= {fingerprint} AND fingerprint <= {fingerprint}"


def of_names(row: str, where: str) -> str:
    """Whether a row of tasks or of failures has the queue and the entrypoint that the filter names."""
    return f"""({where}->>'queue' IS NULL OR {row}.queue = {where}->>'queue')
        AND ({where}->>'entrypoint' IS NULL OR {row}.entrypoint = {where}->>'entrypoint'
             OR right({row}.entrypoint, length({where}->>'entrypoint') + 1) = '.' || ({where}->>'entrypoint'))"""


def of_words(where: str) -> str:
    """Whether the task `t` has the key, the correlation, the priority and the age that the filter names."""
    return f"""({where}->>'key' IS NULL OR t.concurrency_key = {where}->>'key')
        AND ({where}->>'correlation_id' IS NULL OR t.correlation_id = {where}->>'correlation_id')
        AND ({where}->>'priority' IS NULL OR t.priority = ({where}->>'priority')::int)
        AND ({where}->>'older_than' IS NULL
             OR t.created_at < now() - make_interval(secs => ({where}->>'older_than')::float8))"""


def wanted(where: str) -> str:
    """Whether the task `t` is meant by the filter, a jsonb expression; its place is not looked at."""
    return f"""{of_names("t", where)}
        AND {of_words(where)}
        AND ({where}->>'job_id' IS NULL OR t.job_id = ({where}->>'job_id')::bigint)
        AND ({where}->>'fingerprint' IS NULL
             OR EXISTS (SELECT FROM aaiclick_queue.failures f WHERE f.task_id = t.id
                        AND f.fingerprint = {where}->>'fingerprint')
             OR t.status IS NULL AND (SELECT aaiclick_queue.fingerprint(t.entrypoint, a.error)
                                      FROM aaiclick_queue.attempts a WHERE a.task_id = t.id AND a.outcome = 'RETRYING'
                                      ORDER BY a.run_epoch DESC LIMIT 1) = {where}->>'fingerprint')"""


# LATERAL and OFFSET 0, so that each row is looked up by its id: a join of 100,000 rows just written, before they are
# analyzed, was planned as a loop over all tasks for each of them and had not ended after 47 s.
_COUNT = """
WITH looked AS MATERIALIZED ({looked} LIMIT $2::int)
SELECT (SELECT count(*) FROM looked) AS looked,
       (SELECT count(*) FROM (SELECT FROM looked CROSS JOIN LATERAL (
           SELECT FROM aaiclick_queue.tasks t WHERE t.id = looked.task_id AND {wanted} OFFSET 0) AS found
       LIMIT $3::int) AS counted) AS n
"""
_OF_QUEUE = """SELECT p.task_id FROM aaiclick_queue.{place} p
    WHERE $1::jsonb->>'queue' IS NULL OR p.queue = $1::jsonb->>'queue'"""
_AT_GATES = "SELECT p.task_id FROM aaiclick_queue.waiting p"  # their queue is on their tasks
COUNT_WAITING = {
    place: _COUNT.format(
        looked=_AT_GATES if place == "waiting" else _OF_QUEUE.format(place=place), wanted=wanted("$1::jsonb")
    )
    for place in STATUSES
}
_STATUS = "t.status = coalesce($1::jsonb->>'status', 'FAILED') AND "
COUNT_ENDED = _COUNT.format(
    looked="SELECT id AS task_id FROM aaiclick_queue.tasks WHERE status IS NOT NULL ORDER BY id DESC",
    wanted=_STATUS + wanted("$1::jsonb"),
)
# What is FAILED has a row of its own, so it is found however deep it lies; and of those rows only the ones of the
# right queue and entrypoint are looked up as tasks: 40 ms for 100,000 of which few are meant.
COUNT_FAILED = _COUNT.format(
    looked="SELECT task_id, queue, entrypoint FROM aaiclick_queue.failures ORDER BY task_id DESC",
    wanted=_STATUS + wanted("$1::jsonb"),
).replace("LIMIT $3", f"WHERE {of_names('looked', '$1::jsonb')}\n       LIMIT $3")
COUNT_ALIKE = _COUNT.format(
    looked=f"""SELECT task_id FROM aaiclick_queue.failures WHERE {alike("($1::jsonb->>'fingerprint')")}
    ORDER BY fingerprint DESC, task_id DESC""",
    wanted=_STATUS + wanted("$1::jsonb"),
)
# A job is looked through by its own index, whatever stands in the lines that its tasks are in.
_OF_JOB = "SELECT id AS task_id FROM aaiclick_queue.tasks WHERE job_id = ($1::jsonb->>'job_id')::bigint AND status"
COUNT_ENDED_OF_JOB = _COUNT.format(
    looked=f"{_OF_JOB} IS NOT NULL ORDER BY job_id DESC, id DESC", wanted=_STATUS + wanted("$1::jsonb")
)
COUNT_OPEN_OF_JOB = f"""
WITH looked AS MATERIALIZED ({_OF_JOB} IS NULL ORDER BY job_id, id LIMIT $2::int), found AS (
    SELECT s.status FROM looked
    CROSS JOIN LATERAL (SELECT FROM aaiclick_queue.tasks t WHERE t.id = looked.task_id
                        AND {wanted("$1::jsonb")} OFFSET 0) AS t
    CROSS JOIN LATERAL (SELECT status FROM aaiclick_queue.task_status WHERE id = looked.task_id OFFSET 0) AS s
    LIMIT $3::int
)
SELECT s.status, (SELECT count(*) FROM looked) AS looked, (SELECT count(*) FROM found WHERE status = s.status) AS n
FROM unnest($4::text[]) AS s(status)
"""


class Count(msgspec.Struct, frozen=True):
    """How many tasks a filter means, by status; `more` when that many were counted and there may be others.

    `looked_at` is how many rows were looked through where there are others behind them; None: all were.
    """

    n: int
    more: bool
    by_status: dict[str, int]
    looked_at: int | None = None

    def __str__(self) -> str:
        if self.more and not self.n:
            return "an unknown number of"
        return f"{self.n:,}{'+' if self.more else ''}"


def places_of(where: dict[str, Any], *, running: bool) -> list[str]:
    """The places where such tasks stand."""
    if "status" in where:
        return list(PLACES[where["status"]])
    return [place for place in STATUSES if running or place != "leases"]


async def count_waiting(tx: Transaction, where: dict[str, Any], *, running: bool = False) -> Count:
    """Count open tasks, exactly up to 10,000."""
    if "job_id" in where:
        return await _count_open_of_job(tx, where, places_of(where, running=running))
    return await _count(
        tx, where, [(STATUSES[place], COUNT_WAITING[place]) for place in places_of(where, running=running)]
    )


async def count_ended(tx: Transaction, where: dict[str, Any]) -> Count:
    """Count tasks that have FAILED, of the newest 100,000 failures; CANCELLED ones, of the newest 100,000 tasks."""
    status = where.get("status", "FAILED")
    statement = COUNT_ALIKE if "fingerprint" in where else COUNT_FAILED if status == "FAILED" else COUNT_ENDED
    if "job_id" in where:
        statement = COUNT_ENDED_OF_JOB
    return await _count(tx, where, [(status, statement)])


async def _count_open_of_job(tx: Transaction, where: dict[str, Any], places: Sequence[str]) -> Count:
    statuses = list(dict.fromkeys(STATUSES[place] for place in places))
    rows = await tx.fetch(COUNT_OPEN_OF_JOB, json.dumps(where), LOOK_LIMIT + 1, LOOK_LIMIT + 1, statuses)
    total, looked = sum(row["n"] for row in rows), rows[0]["looked"]
    is_cut = looked > LOOK_LIMIT
    found = {row["status"]: row["n"] for row in rows}
    return Count(min(total, COUNT_LIMIT), is_cut or total > COUNT_LIMIT, found, LOOK_LIMIT if is_cut else None)


async def _count(tx: Transaction, where: dict[str, Any], statements: Sequence[tuple[str, str]]) -> Count:
    found: dict[str, int] = {}
    looked = 0
    more = False
    for status, sql in statements:
        [row] = await tx.fetch(sql, json.dumps(where), LOOK_LIMIT + 1, COUNT_LIMIT + 1)
        found[status] = found.get(status, 0) + row["n"]
        looked += min(row["looked"], LOOK_LIMIT)
        more = more or row["looked"] > LOOK_LIMIT
    total = sum(found.values())
    return Count(min(total, COUNT_LIMIT), more or total > COUNT_LIMIT, found, looked if more else None)
