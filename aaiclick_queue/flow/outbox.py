"""The outbox: how work that became ready is made visible to the relay. The only module that writes it.

Before: whatever puts rows into `ready`. After: the relay. `grep APPEND` lists every way work becomes visible.
"""

from __future__ import annotations

# At most 100 ids a row: nobody needs more to choose how many workers to wake.
_APPEND = """INSERT INTO aaiclick_queue.outbox (queue, rank, order_key, n, task_ids)
        SELECT queue, min(rank), min(order_key), count(*), (array_agg(task_id))[1:100]
        FROM {source} GROUP BY queue
        RETURNING id, queue, rank, order_key, n, task_ids"""


def append_from(source: str) -> str:
    """The body of a CTE that appends one row per queue for the rows of `source` (queue, rank, order_key, task_id)."""
    return _APPEND.format(source=source)


# Ids are drawn in their order, so the first is the least.
_APPEND_ONE = """INSERT INTO aaiclick_queue.outbox (queue, rank, order_key, n, task_ids)
        SELECT {queue}, {rank}, ({ids})[1], cardinality({ids}), ({ids})[1:100] FROM {source}
        RETURNING id, queue, rank, order_key, n, task_ids"""


def append_one(queue: str, rank: str, ids: str, source: str) -> str:
    """The body of a CTE that appends one row for new tasks of one queue, for the one row of `source`."""
    return _APPEND_ONE.format(queue=queue, rank=rank, ids=ids, source=source)
