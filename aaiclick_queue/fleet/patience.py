"""How long to wait before a process that ended is started again, and when to give up. Used by place.py."""

from __future__ import annotations

import signal

import msgspec

USAGE, UNREACHABLE, BAD_SETTINGS = 2, 69, 78  # exit codes of `aaiclick-queue worker`
PERMANENT = frozenset({USAGE, BAD_SETTINGS})  # starting again would say the same again
FIRST_SECONDS, LONGEST_SECONDS = 1.0, 60.0
SETTLED_SECONDS = 60.0  # who lived this long may start again after a second
EARLY_SECONDS = 300.0
EARLY_EXITS = 5


class Exit(msgspec.Struct, frozen=True):
    """How a process ended: its code (negative: the signal), how long it lived, whether it ever took tasks."""

    code: int
    lived_seconds: float
    was_ready: bool
    error: str = ""

    @property
    def how(self) -> str:
        """In words."""
        if self.code >= 0:
            return f"exit code {self.code}"
        try:
            return signal.Signals(-self.code).name
        except ValueError:
            return f"signal {-self.code}"

    def __str__(self) -> str:
        return f"{self.how} ({self.error})" if self.error else self.how


class Patience:
    """Of one place: 1 s, 2 s, 4 s … 60 s; none after five exits in a row within 5 minutes of their start."""

    def __init__(self) -> None:
        self._step = self.early_exits = 0

    def after(self, ended: Exit) -> float | None:
        """Seconds until the next start; None: give up."""
        if ended.code == 0 and ended.was_ready:  # --max-tasks, or told to stop from afar: it has done its part
            self._step = self.early_exits = 0
            return 0.0
        if ended.code in PERMANENT:
            return None
        if ended.lived_seconds >= SETTLED_SECONDS:
            self._step = 0
        if ended.lived_seconds >= EARLY_SECONDS:
            self.early_exits = 0
        elif ended.code != UNREACHABLE:  # Postgres that is away is no crash: it comes back, and so do we
            self.early_exits += 1
        if self.early_exits >= EARLY_EXITS:
            return None
        self._step += 1
        return float(min(LONGEST_SECONDS, FIRST_SECONDS * 2 ** min(self._step - 1, 10)))
