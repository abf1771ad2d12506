"""What is asked for of a job: the options of `@job(...)` and of one enqueue, checked as soon as they are given."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Self

import msgspec

from .errors import BadJob, BadTask
from .retry import seconds
from .spec import CHECKS, DedupeMode, Hooks, checked, hooks_text, truth, whole

DAY = 86400.0


def refuse_unknown(options: Iterable[str], known: Sequence[str], what: str, error: type[BadTask]) -> None:
    """Raise for an option that is none, with the one that was meant."""
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
            raise error(f"unknown option {name!r} of {what}: {hint}")


class JobOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a job; queue and priority are those of its tasks that name none themselves."""

    name: str | None = None
    queue: str | None = None
    priority: int | None = None
    timeout: float | None = None
    max_parallel: int | None = None
    fail_fast: bool | None = None
    on_success: Hooks | None = None
    on_failure: Hooks | None = None
    metadata: dict[str, Any] | None = None
    retention: float | None = None  # seconds
    correlation_id: str | None = None
    dedupe_key: str | None = None
    dedupe: DedupeMode | None = None
    dedupe_until: float | None = None

    @classmethod
    def given(cls, options: Mapping[str, Any]) -> Self:
        """Options from keywords; what cannot work is refused by name."""
        refuse_unknown(options, cls.__struct_fields__, "a job", BadJob)
        found = {name: checked(_CHECKS[name], name, one, BadJob) for name, one in options.items() if one is not None}
        if found.get("dedupe", "raise") not in ("raise", "skip"):
            raise BadJob(f"dedupe={found['dedupe']!r}: a job's key can raise or skip")
        return cls(**found)

    def over(self, below: JobOptions) -> JobOptions:
        """These options where they are set, `below` where they are not."""
        given = {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not None}
        return msgspec.structs.replace(below, **given)

    def hooks(self) -> str | None:
        """What its end enqueues, as JSON."""
        return hooks_text({"success": self.on_success, "failure": self.on_failure})


def days(name: str, value: Any) -> float:
    """The check of a time to keep something: days as a number, or a timedelta; in seconds."""
    if isinstance(value, bool) or not isinstance(value, int | float | timedelta):
        raise BadJob(f"{name}={value!r}: give days as a number, or a timedelta")
    return seconds(name, value if isinstance(value, timedelta) else value * DAY, least=1, most=100 * 366 * DAY)


_CHECKS: dict[str, Any] = {
    **{name: CHECKS[name] for name in JobOptions.__struct_fields__ if name in CHECKS},
    "max_parallel": whole(1, 2**31 - 1),
    "fail_fast": truth,
    "retention": days,
}
