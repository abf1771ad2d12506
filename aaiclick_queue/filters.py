"""Filters: which tasks a person means, as words and values, checked before anything is counted or written."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, TypedDict

from .errors import BadTask
from .retry import seconds
from .spec import NAME_LIMIT


class Where(TypedDict, total=False):
    """Which tasks are meant; an entrypoint may be given without its module, a duration in seconds."""

    queue: str
    entrypoint: str
    key: str
    correlation_id: str
    priority: int
    older_than: float | timedelta
    status: str
    fingerprint: str
    job_id: int | str


WORDS = tuple(Where.__annotations__)
WAITING = ("PENDING", "SCHEDULED", "QUEUED")


def checked(where: Mapping[str, Any], *, everything: bool = False, statuses: Iterable[str] = WAITING) -> dict[str, Any]:
    """A filter as it is kept; whatever cannot be meant is refused by name."""
    unknown = [word for word in where if word not in WORDS]
    if unknown:
        near = difflib.get_close_matches(unknown[0], WORDS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(WORDS)}"
        raise BadTask(f"unknown filter word {unknown[0]!r}: {hint}")
    found = {word: _CHECKS[word](word, value) for word, value in where.items() if value is not None}
    if found.get("status") not in (None, *statuses):
        raise BadTask(f"status={found['status']}: here it can be {', '.join(statuses)}")
    if not found and not everything:
        raise BadTask(
            "no filter, so every task would be meant: name queue, entrypoint …, or say everything=True (--everything)"
        )
    return found


def checked_name(name: str, value: Any) -> str:
    """A name as it may be stored."""
    if not isinstance(value, str) or not 1 <= len(value) <= NAME_LIMIT or "\x00" in value:
        raise BadTask(f"{name}={value!r}: give a text of 1 to {NAME_LIMIT} characters")
    return value


def checked_priority(name: str, value: Any) -> int:
    """A priority as it may be stored."""
    if isinstance(value, bool) or not isinstance(value, int) or not -32768 <= value <= 32767:
        raise BadTask(f"{name}={value!r}: give a whole number from -32768 to 32767")
    return value


def _fingerprint(name: str, value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[0-9a-f]{16}", value):
        raise BadTask(f"{name}={value!r} is none: give the 16 digits that `aaiclick-queue failures` shows")
    return value


def _job_id(name: str, value: Any) -> str:
    text = str(value)
    if isinstance(value, bool) or not re.fullmatch(r"[0-9]{1,19}", text) or not 0 < int(text) < 2**63:
        raise BadTask(
            f"{name}={value!r} is none: give the digits of a job's id, as `aaiclick-queue job list` shows them"
        )
    return str(int(text))


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "queue": checked_name,
    "entrypoint": checked_name,
    "key": checked_name,
    "correlation_id": checked_name,
    "priority": checked_priority,
    "older_than": seconds,
    "status": lambda name, value: checked_name(name, value).upper(),
    "fingerprint": _fingerprint,
    "job_id": _job_id,
}
