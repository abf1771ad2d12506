"""Retry policy: what is written with a task, and Celery's spellings of it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec

from .errors import BadTask

Exceptions = tuple[type[BaseException], ...]
Duration = float | timedelta


class Retry(msgspec.Struct, frozen=True, omit_defaults=True):
    """Backoff of one task: delay × factor^(attempt − 1), at most max_delay, times a jitter of 0.5–1.5.

    The waiting time is computed by the SQL function `backoff`, for the worker and the reaper alike.
    """

    delay: float = 1.0
    factor: float = 2.0
    max_delay: float = 600.0
    jitter: bool = True

    def text(self) -> str | None:
        """JSON as the row carries it; None is the default policy."""
        text = msgspec.json.encode(self).decode()
        return None if text == "{}" else text


def seconds(name: str, value: Duration, *, least: float = 0.0, most: float = 366 * 86400) -> float:
    """A duration in seconds, refused with its name when it is out of bounds."""
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(number, bool) or not isinstance(number, int | float) or not least <= number <= most:
        bound = f"{most / 86400:g} days" if most >= 86400 else f"{most:g} seconds"
        raise BadTask(f"{name}={value!r}: give seconds or a timedelta from {least:g} to {bound}")
    return float(number)


def _celery_retries(value: Any) -> dict[str, Any]:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1000:
        raise BadTask(f"max_retries={value!r}: give a whole number from 0 to 999, one less than max_attempts")
    return {"max_attempts": value + 1}


def _celery_backoff(value: Any) -> dict[str, Any]:
    if value is False:
        return {"retry_factor": 1.0}
    return {"retry_delay": 1.0 if value is True else value, "retry_factor": 2.0}


# Celery's names on @task and apply_async, and what they become here.
CELERY_OPTIONS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "max_retries": _celery_retries,
    "autoretry_for": lambda value: {"retry_on": value},
    "dont_autoretry_for": lambda value: {"give_up_on": value},
    "default_retry_delay": lambda value: {"retry_delay": value},
    "retry_backoff": _celery_backoff,
    "retry_backoff_max": lambda value: {"retry_max_delay": value},
    "soft_time_limit": lambda value: {"timeout": value},
    "time_limit": lambda value: {"timeout": value},
}
