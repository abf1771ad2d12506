"""Which tasks a command is about: ids as people give them, from the command line or from stdin."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from .program import NOT_FOUND, NOTHING_MATCHED, USAGE, fail

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..postgres import Database


def either(task_ids: Sequence[str], where: Sequence[str], *, everything: bool) -> None:
    """Ends the command unless it was given ids or a filter, and not both."""
    if bool(task_ids) == bool(where or everything):
        fail(
            "ids and a filter are both given" if task_ids else "neither ids nor a filter are given",
            "give ids, or --where 'queue=mail'",
            code=USAGE,
        )


def ids_given(task_ids: Sequence[str], *, asks: bool) -> Sequence[str]:
    """The ids, those of stdin in the place of `-`; refused where somebody would have to be asked there."""
    if "-" not in task_ids:
        return task_ids
    if asks:
        fail("ids come from stdin, so nobody can be asked", "add --yes", code=USAGE)
    given = (*(one for one in task_ids if one != "-"), *sys.stdin.read().split())
    if not given:
        fail("stdin named no id", code=NOTHING_MATCHED)
    return given


async def find_tasks(db: Database, texts: Sequence[str]) -> list[int]:
    """The ids that these texts stand for; ends the command when one of them stands for none or for several."""
    from ..views import find_task_ids

    ids: list[int] = []
    for text in texts:
        digits = text.removeprefix("…")
        if not (digits.isascii() and digits.isdigit()):
            fail(
                f"{text!r} is no task id",
                "give its digits, or the last six or more; `task list` shows them",
                code=USAGE,
            )
        found = await find_task_ids(db, digits)
        if not found:
            hint = "" if len(digits) > 18 else ", and among the newest 100,000 none ends so (six digits at least)"
            fail(f"there is no task {text}{hint}", "aaiclick-queue task list", code=NOT_FOUND)
        if len(found) > 1:
            fail(f"several tasks end in {digits}: {found[0]}, {found[1]} …", "give more digits", code=USAGE)
        ids += found
    return list(dict.fromkeys(ids))
