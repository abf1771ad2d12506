"""Lines: what waits and runs in each queue, by bounded looks; and the exact length of those that are long.

The watch looks every few seconds, people when they ask. Counting a line of millions takes long, so that is done in the
background alone, and the less often the longer it takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..schema import Transaction

COUNT_LIMIT = 10_000  # exact up to here: 2 ms a queue; an uncapped count takes 0.5 s at five million
FRESH_SECONDS = 120.0  # so old a count of a longer line may be
COUNTED = 60_000  # by a look of people, over all lines: 20 ms; each queue has its share, the background looks without
LEAST_COUNTED = 500
AT_GATES_SHARE = 30  # what waits at gates is looked up among all tasks, so a thirtieth as many
SAMPLE_LIMIT = 100_000  # rows of a place that has no index by queue
QUEUES_LIMIT = 1000

# Names by a loose index scan, one step a queue. The oldest of a rank need not be its first, since a task that comes
# back keeps its place in line, so the first hundred are looked at.
QUEUES = f"""
WITH RECURSIVE line AS (
    (SELECT queue FROM aaiclick_queue.ready ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT (SELECT r.queue FROM aaiclick_queue.ready r WHERE r.queue > line.queue ORDER BY r.queue LIMIT 1)
    FROM line WHERE line.queue IS NOT NULL
), later AS (
    SELECT queue, count(*) AS n FROM (SELECT queue FROM aaiclick_queue.delayed LIMIT $3 + 1) AS d GROUP BY queue
), leased AS (
    SELECT queue, count(*) AS n FROM (SELECT queue FROM aaiclick_queue.leases LIMIT $3 + 1) AS l GROUP BY queue
), over_limit AS (
    (SELECT queue FROM aaiclick_queue.held ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT (SELECT h.queue FROM aaiclick_queue.held h WHERE h.queue > o.queue ORDER BY h.queue LIMIT 1)
    FROM over_limit o WHERE o.queue IS NOT NULL
), at_gates AS (
    SELECT t.queue, count(*) AS n FROM (SELECT task_id FROM aaiclick_queue.waiting LIMIT $6::int + 1) AS w
    CROSS JOIN LATERAL (SELECT queue FROM aaiclick_queue.tasks WHERE id = w.task_id OFFSET 0) AS t GROUP BY t.queue
), alive AS (
    SELECT queues FROM aaiclick_queue.workers WHERE status = 'ACTIVE' AND lease_expires_at > now()
), known AS (
    SELECT queue AS name FROM line WHERE queue IS NOT NULL
    UNION SELECT queue FROM later UNION SELECT queue FROM leased UNION SELECT queue FROM at_gates
    UNION SELECT queue FROM over_limit WHERE queue IS NOT NULL
    UNION SELECT name FROM aaiclick_queue.queues
        WHERE paused_at IS NOT NULL OR max_depth IS NOT NULL OR objective_seconds IS NOT NULL
    UNION SELECT name FROM aaiclick_queue.limits WHERE scope = 'queue'
    UNION SELECT unnest(queues) FROM alive
), named AS (
    SELECT name FROM known WHERE name <> '*' AND ($4::text IS NULL OR name = $4)
       AND ($7::text IS NULL OR name > $7) ORDER BY name LIMIT $1
), share AS MATERIALIZED (
    SELECT least($2::int, greatest({LEAST_COUNTED}, $5::int / greatest(count(*)::int, 1))) AS n FROM named
)
SELECT named.name, (SELECT n FROM share) AS share,
       (SELECT count(*) FROM (SELECT FROM aaiclick_queue.ready r WHERE r.queue = named.name
                              LIMIT (SELECT n + 1 FROM share)) AS capped) AS ready,
       (WITH RECURSIVE ranks AS (
            (SELECT r.rank FROM aaiclick_queue.ready r WHERE r.queue = named.name ORDER BY r.rank LIMIT 1)
            UNION ALL
            SELECT (SELECT r.rank FROM aaiclick_queue.ready r WHERE r.queue = named.name AND r.rank > ranks.rank
                    ORDER BY r.rank LIMIT 1)
            FROM ranks WHERE ranks.rank IS NOT NULL)
        SELECT extract(epoch FROM now() - min(greatest(first.ready_at, '1970-01-01')))::float8
        FROM (SELECT rank FROM ranks WHERE rank IS NOT NULL LIMIT 100) AS k
        CROSS JOIN LATERAL (
            SELECT r.ready_at FROM aaiclick_queue.ready r WHERE r.queue = named.name AND r.rank = k.rank
            ORDER BY r.order_key, r.task_id LIMIT 100) AS first) AS oldest_seconds,
       q.ready_count, extract(epoch FROM now() - q.ready_counted_at)::float8 AS counted_seconds,
       s.ready AS sampled, extract(epoch FROM now() - s.minute)::float8 AS sampled_seconds,
       coalesce(later.n, 0) AS delayed,
       (SELECT sum(n) > $3 FROM later) AS delayed_is_more,
       coalesce(leased.n, 0) AS running,
       (SELECT count(*) FROM (SELECT FROM aaiclick_queue.held h WHERE h.queue = named.name
                              LIMIT (SELECT n + 1 FROM share)) AS capped) AS held,
       coalesce(at_gates.n, 0) AS waiting, (SELECT sum(n) > $6::int FROM at_gates) AS waiting_is_more,
       q.max_depth, q.depth, q.objective_seconds,
       (SELECT count(*) FROM alive WHERE named.name = ANY(alive.queues) OR '*' = ANY(alive.queues)) AS workers,
       q.paused_at, CASE WHEN q.paused_at IS NOT NULL THEN q.paused_by END AS paused_by,
       CASE WHEN q.paused_at IS NOT NULL THEN q.reason END AS reason
FROM named
LEFT JOIN later ON later.queue = named.name
LEFT JOIN leased ON leased.queue = named.name
LEFT JOIN at_gates ON at_gates.queue = named.name
LEFT JOIN aaiclick_queue.queues q ON q.name = named.name
LEFT JOIN LATERAL (
    SELECT ready, minute FROM aaiclick_queue.samples WHERE queue = named.name AND minute = ANY(ARRAY[
        date_trunc('minute', now()), date_trunc('minute', now()) - interval '1 min'])
    ORDER BY minute DESC LIMIT 1) AS s ON true
ORDER BY named.name
"""
# Counted before any row is written: whoever pauses the first queue must not wait for the count of the last.
COUNT_LONG_LINES = f"""
WITH RECURSIVE line AS (
    (SELECT queue FROM aaiclick_queue.ready ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT (SELECT r.queue FROM aaiclick_queue.ready r WHERE r.queue > line.queue ORDER BY r.queue LIMIT 1)
    FROM line WHERE line.queue IS NOT NULL
), long AS MATERIALIZED (
    SELECT queue FROM line WHERE queue IS NOT NULL AND (
        SELECT count(*) FROM (SELECT FROM aaiclick_queue.ready r WHERE r.queue = line.queue LIMIT {COUNT_LIMIT + 1})
        AS capped) > {COUNT_LIMIT}
), counted AS MATERIALIZED (
    SELECT queue, (SELECT count(*) FROM aaiclick_queue.ready r WHERE r.queue = long.queue) AS n FROM long
)
INSERT INTO aaiclick_queue.queues AS q (name, ready_count, ready_counted_at)
SELECT queue, n, now() FROM counted ORDER BY queue
ON CONFLICT (name) DO UPDATE SET ready_count = excluded.ready_count, ready_counted_at = excluded.ready_counted_at
RETURNING q.name
"""


async def look_at_queues(
    tx: Transaction,
    *,
    limit: int = QUEUES_LIMIT,
    name: str | None = None,
    after: str | None = None,
    counted: int = COUNT_LIMIT * QUEUES_LIMIT,
) -> Sequence[Any]:
    """A row a queue, by name, those behind `after`; `counted` tasks in line at most over all, each up to its share."""
    looked, at_gates = min(SAMPLE_LIMIT, counted), min(COUNT_LIMIT, counted // AT_GATES_SHARE)
    return await tx.fetch(QUEUES, limit, COUNT_LIMIT, looked, name, counted, at_gates, after)


async def count_long_lines(tx: Transaction) -> int:
    """Count every line that is longer than 10,000; returns how many there are."""
    return len(await tx.fetch(COUNT_LONG_LINES))


def exact_ready(row: Any) -> int | None:
    """The last count of a line that is longer than a look can tell; None where it is not, or nobody has counted."""
    age = row["counted_seconds"]
    if row["ready"] <= row["share"] or age is None or age > FRESH_SECONDS:
        return None
    return max(int(row["ready_count"]), int(row["share"]))
