"""The net behind the resolver: gates that were decided and not carried out are looked at again. Part of the reaper.

Every step that leaves something at a gate asks for another look itself, in its own transaction. This one is for what
nobody has thought of: a job must not stand still for it.
"""

from __future__ import annotations

from ..schema import Transaction

# A page of the gates of open jobs, from where the last one stopped.
LOOK_AT_DECIDED = """
WITH page AS MATERIALIZED (
    SELECT g.job_id, g.id, g.state, g.remaining, g.edge_cursor, g.decided_at
    FROM aaiclick_queue.jobs j JOIN aaiclick_queue.gates g ON g.job_id = j.id
    WHERE j.status IN ('PENDING', 'RUNNING') AND j.id >= $2::bigint AND (j.id, g.id) > ($2::bigint, $3::bigint)
    ORDER BY j.id, g.id LIMIT $1
), asked AS (
    INSERT INTO aaiclick_queue.arrivals (gate_id, n)
    SELECT page.id, 0 FROM page
    WHERE page.state <> 'WAITING' AND page.decided_at < now() - interval '30 s' AND (
        EXISTS (SELECT FROM aaiclick_queue.waiting w WHERE w.gate_id = page.id OFFSET 0)
        OR EXISTS (SELECT FROM aaiclick_queue.gate_edges e WHERE e.gate_id = page.id
                   AND e.next_gate_id > page.edge_cursor OFFSET 0)
        OR (page.id = page.job_id AND page.remaining = 0))
    RETURNING gate_id
)
SELECT (SELECT count(*) FROM page) AS seen, (SELECT array_agg(gate_id) FROM asked) AS asked,
       (SELECT job_id FROM page ORDER BY job_id DESC, id DESC LIMIT 1) AS job_id,
       (SELECT id FROM page ORDER BY job_id DESC, id DESC LIMIT 1) AS id
"""
# Of a gate that was pruned nothing can be folded, and a resolver would look at it for ever.
FORGET_ARRIVALS = """
DELETE FROM aaiclick_queue.arrivals WHERE id = ANY(ARRAY(
    SELECT a.id FROM aaiclick_queue.arrivals a
    WHERE NOT EXISTS (SELECT FROM aaiclick_queue.gates g WHERE g.id = a.gate_id)
    ORDER BY a.id LIMIT $1 FOR UPDATE SKIP LOCKED))
"""
GATES = 10_000


class GateSweep:
    """Goes over the gates of open jobs, a page a step, and round again."""

    def __init__(self) -> None:
        self._after = (0, 0)

    async def step(self, tx: Transaction, *, limit: int = GATES) -> list[int]:
        """One page; gives the gates that somebody has to look at, which is asked for."""
        await tx.fetch(FORGET_ARRIVALS, limit)
        [page] = await tx.fetch(LOOK_AT_DECIDED, limit, *self._after)
        self._after = (0, 0) if page["seen"] < limit else (page["job_id"], page["id"])
        return page["asked"] or []
