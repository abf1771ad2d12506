"""`task explain`: why a task does not run, and what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .finding import find_tasks
from .output import reader, show
from .program import NOT_FOUND, fail

if TYPE_CHECKING:
    from ..explaining import Explanation
    from ..postgres import Database


@click.command(
    epilog="""\b
Examples:
  aaiclick-queue task explain 12345678
  aaiclick-queue task explain 7123456789012345678 --watch
  aaiclick-queue task explain 7123456789012345678 --json | jq -r .code""",
)
@click.argument("task_id", metavar="ID")
@reader(limit=None)
def explain(task_id: str, as_json: bool, watch: float | None) -> None:
    """Why a task does not run, what it does, or how it ended, and what mends it.

    The first line is the answer; the others are true as well.
    """
    from ..explaining import explain_task

    async def read(db: Database) -> Explanation:
        [found] = await find_tasks(db, [task_id])
        explained = await explain_task(db, found)
        if explained is None:
            fail(f"there is no task {task_id} any more", "aaiclick-queue task list", code=NOT_FOUND)
        return explained

    show(read, _draw, as_json=as_json, watch=watch)


def _draw(explained: Explanation) -> str:
    from ..report import one_line

    first = explained.lines[0]
    lines = [click.style(one_line(first.sentence, 2_000), bold=True), f"  → {one_line(first.fix, 2_000)}"]
    for other in explained.lines[1:]:
        lines += [f"Also: {one_line(other.sentence, 2_000)}", f"  → {one_line(other.fix, 2_000)}"]
    return "\n".join(lines)
