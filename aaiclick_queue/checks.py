"""What a check of the doctor is: an invariant, as SQL that gives what breaks it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from .settings import Settings

LIMIT = 1000  # a check counts at most so many: enough to know

# Looked up by key per task `t`: a join over whole tables would take minutes where millions wait.
WAITS_AT_GATE = "EXISTS (SELECT FROM aaiclick_queue.waiting w WHERE w.gate_id = t.wait_gate AND w.task_id = t.id)"


class Check(msgspec.Struct, frozen=True):
    """An invariant: a statement that gives the ids of rows that break it."""

    name: str
    sql: str
    detail: str
    fix: str
    arguments: Callable[[Settings], Sequence[Any]] = lambda _: ()
    # Something that another transaction holds at this moment looks broken: what is broken is so in a second look too.
    twice: bool = False
    # What SQL cannot say: whether a row that the statement gives is broken.
    keep: Callable[[Any], bool] = lambda _: True
