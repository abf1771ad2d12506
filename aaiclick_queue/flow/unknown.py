"""Unknown entrypoints: an old worker leaves new tasks to others, with a cool-down and a visible reason."""

from __future__ import annotations

from collections.abc import Sequence

from ..flags import KNOWN
from ..outcome import Error, Failed, Later, Outcome
from ..schema import Transaction
from .claim import Claimed

UNKNOWN_BEFORE = """
SELECT task_id, count(*) AS times, coalesce(min(finished_at) < now() - make_interval(secs => $2::float8), false) AS over
FROM aaiclick_queue.attempts WHERE task_id = ANY($1::bigint[]) AND outcome = 'UNKNOWN' GROUP BY task_id
"""
FIRST_SECONDS = 5.0
LONGEST_SECONDS = 300.0


async def unknown_outcomes(tx: Transaction, claimed: Sequence[Claimed], *, keep_seconds: float) -> list[Outcome]:
    """What becomes of tasks that no module of this worker has registered: later, ever later, at last FAILED."""
    before = {row["task_id"]: row for row in await tx.fetch(UNKNOWN_BEFORE, [c.task_id for c in claimed], keep_seconds)}
    outcomes: list[Outcome] = []
    for run in claimed:
        times, over = (
            (before[run.task_id]["times"], before[run.task_id]["over"]) if run.task_id in before else (0, False)
        )
        error = _why(run)
        seconds = min(FIRST_SECONDS * 2 ** min(times, 10), LONGEST_SECONDS)
        outcomes.append(Failed(error) if over else Later("UNKNOWN", error, seconds))
    return outcomes


def _why(run: Claimed) -> Error:
    if run.flags & ~KNOWN:
        return Error(
            "MadeByNewerVersion",
            f"it has a mark that this version does not know (flags {run.flags}): run workers of the version of the "
            "client that made it",
        )
    return Error(
        "UnknownEntrypoint",
        f"no task is registered as {run.entrypoint!r}: import its module with -A, or check the name",
    )
