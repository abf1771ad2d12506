"""How an explanation is told: one reason, the command that mends it, times as people say them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from .explain_rows import BACKGROUND_LIVES
from .job_nodes import Neighbour
from .postgres import Database
from .report import span

BY_ITSELF = {"none": "There is nothing to mend."}


class Reason(msgspec.Struct, frozen=True):
    """One thing that is true of a task: a stable word, a sentence, what mends it, and the facts behind it."""

    code: str
    sentence: str
    fix: str
    facts: dict[str, Any] = {}


def shown(command: str, *arguments: object) -> str:
    """A command as it is typed."""
    return " ".join(["aaiclick-queue", command, *(shlex.quote(str(one)) for one in arguments)])


async def by_background(db: Database, then: str) -> str:
    """What a background loop will do, or how to start one where none lives."""
    return then if await db.fetchval(BACKGROUND_LIVES) else shown("background")


def ago(moment: datetime | None, now: datetime) -> str:
    """How long ago something was."""
    return "at an unknown time" if moment is None else f"{span((now - moment).total_seconds())} ago"


def in_(seconds: float) -> str:
    """How soon something will be."""
    return f"in {span(seconds)}" if seconds > 0 else "now"


def error_of(row: Mapping[str, Any] | Any) -> str | None:
    """The error of a row in one line."""
    if row["error_type"] is None:
        return None
    return f"{row['error_type']}: {row['error_message'] or ''}".rstrip(": .")


def names(nodes: Sequence[Neighbour]) -> str:
    """Other nodes with their ids and what they are at."""
    return ", ".join(f"{one.name} ({one.id}, {(one.status or '?').lower().replace('_', ' ')})" for one in nodes[:5])


def held_by(count: int, what: str) -> str:
    """How many serve."""
    return f"1 {what} takes tasks" if count == 1 else f"{count:,} {what}s take tasks"
