"""Reads for people: what the tasks of a job gave, by their names, and what the job gave as a whole."""

from __future__ import annotations

from typing import Any

import msgspec

from .flow.inputs import spliced
from .job_nodes import of_job
from .postgres import Database
from .redaction import hidden_in, secrets_in, shown_json
from .references import references

OUTPUTS_LIMIT = 1_000
OUTPUTS_BYTES = 16 * 1024 * 1024

# A result may have a megabyte: as many as fit, and what the others are is counted.
OUTPUTS = f"""
SELECT name, result, kwargs, after_gate IS NOT NULL AS continued FROM (
    SELECT id, coalesce(name, entrypoint) AS name, result, kwargs, after_gate,
           sum(coalesce(pg_column_size(result), 0) + pg_column_size(kwargs)) OVER (ORDER BY id) AS bytes
    FROM (SELECT id, name, entrypoint, result, kwargs, after_gate FROM aaiclick_queue.tasks
          WHERE {of_job("$1")} AND status = 'COMPLETED' ORDER BY job_id, id LIMIT $2) AS t
) AS sized WHERE bytes <= $3::bigint ORDER BY id
"""
RETURNS = "SELECT status, returns, kwargs FROM aaiclick_queue.jobs WHERE id = $1 AND pruned_at IS NULL"
TASKS_IN_GROUPS = "SELECT coalesce(sum(total), 0)::bigint FROM aaiclick_queue.gates WHERE id = ANY($1::bigint[])"


class Outputs(msgspec.Struct, frozen=True):
    """Results by the names of their tasks, in the order of the tasks; `left_out` are tasks whose results are not."""

    outputs: dict[str, Any]
    left_out: int


async def read_outputs(db: Database, job_id: int, *, completed: int) -> Outputs:
    """What the tasks that completed gave: the first thousand of them, 16 MB at most."""
    outputs: dict[str, Any] = {}
    for row in await db.fetch(OUTPUTS, job_id, OUTPUTS_LIMIT, OUTPUTS_BYTES):
        text = await spliced(db, row["result"], job_id) if row["continued"] and row["result"] else row["result"]
        outputs[row["name"]] = _shown(db, text, row["kwargs"])
    return Outputs(outputs, max(0, completed - len(outputs)))


async def read_result(db: Database, job_id: int, *, at_most: int | None = None) -> tuple[bool, Any]:
    """What the job gave, with the results of the tasks it named; (False, None) if it has not, or of more tasks."""
    rows = await db.fetch(RETURNS, job_id)
    if not rows or rows[0]["status"] != "COMPLETED":
        return False, None
    text = rows[0]["returns"]
    if text is None:
        return True, None
    if at_most is not None and await _named(db, text) > at_most:
        return False, None
    return True, _shown(db, await spliced(db, text, job_id), rows[0]["kwargs"])


def _shown(db: Database, text: str | None, kwargs: str | None) -> Any:
    """A result as it may be shown: without the secrets of the arguments it was made from."""
    names = db.settings.redact_names
    return hidden_in(shown_json(text, names), secrets_in(kwargs, names))


async def _named(db: Database, text: str) -> int:
    groups = [one.ids[0] for one in references(text) if one.kind == "group"]
    tasks = sum(len(one.ids) for one in references(text) if one.kind != "group")
    return tasks + (int(await db.fetchval(TASKS_IN_GROUPS, groups)) if groups else 0)
