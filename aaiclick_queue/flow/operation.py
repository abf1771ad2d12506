"""An operation as it is written down. Before: a person, a new limit. After: operate, which works it page by page."""

from __future__ import annotations

import json
from typing import Any

from ..schema import Transaction

# Ids are made by clients, a little ahead of this clock where many are made at once: what is there belongs to it. A
# limit applies to whatever got in line without it, by a transaction that could not see it.
MAKE_OPERATION = """
WITH made AS (
    INSERT INTO aaiclick_queue.operations (kind, filter, arguments, up_to, made_by, total)
    SELECT $1::text, $2::text::jsonb, $3::text::jsonb, CASE WHEN $1::text = 'limit' THEN 9223372036854775807
               ELSE greatest(aaiclick_queue.new_id(), (SELECT max(id) FROM aaiclick_queue.tasks)) END,
           $4::text, $5::bigint
    RETURNING id, kind, filter, arguments
), noted AS (
    INSERT INTO aaiclick_queue.events (type, data)
    SELECT 'OPERATION_' || upper(kind), jsonb_build_object(
               'operation', id::text, 'filter', filter, 'arguments', arguments, 'by', $4::text) FROM made
)
SELECT id FROM made
"""


# A release that knows no filter by job must not take such an operation for one of all tasks: it has a kind of its own,
# which that release refuses.
_OF_JOB = "_of_job"


async def make_operation(  # noqa: PLR0913 - a row
    tx: Transaction, kind: str, where: dict[str, Any], arguments: dict[str, Any], *, by: str, total: int | None = None
) -> int:
    """Write an operation down; returns its number."""
    kind += _OF_JOB if "job_id" in where else ""
    [row] = await tx.fetch(MAKE_OPERATION, kind, json.dumps(where), json.dumps(arguments), by, total)
    operation_id: int = row["id"]
    return operation_id


def known(row: Any) -> dict[str, Any]:
    """The row of an operation with the kind that it was made with."""
    return dict(row) | {"kind": row["kind"].removesuffix(_OF_JOB)}
