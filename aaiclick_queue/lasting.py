"""How long jobs and tasks took and waited: what the rows that people get can say of themselves."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Protocol

import msgspec

from .status import FINAL


class _Times(Protocol):
    @property
    def status(self) -> str | None: ...
    @property
    def ready_at(self) -> datetime | None: ...
    @property
    def started_at(self) -> datetime | None: ...
    @property
    def finished_at(self) -> datetime | None: ...
    @property
    def read_at(self) -> datetime | None: ...


class Lasting(msgspec.Struct, frozen=True):
    """A row with times; what still goes on is told as of `read_at`, the database's clock when it was read."""

    @property
    def is_final(self: _Times) -> bool:
        """Whether nothing more will happen to it by itself."""
        return self.status in FINAL

    @property
    def duration(self: _Times) -> timedelta | None:
        """From its start to its end, or until it was read; None before its start."""
        end = self.finished_at or self.read_at
        return None if self.started_at is None or end is None else max(end - self.started_at, timedelta(0))

    @property
    def wait(self: _Times) -> timedelta | None:
        """From when it could have started to when it did; None where that is not known, or not yet so."""
        end = self.started_at or (None if self.status in FINAL else self.read_at)
        return None if self.ready_at is None or end is None else max(end - self.ready_at, timedelta(0))
