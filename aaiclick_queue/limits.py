"""Limits from Python: how much of a queue, a task or a key may run at once, and how often; changed at run time."""

from __future__ import annotations

import getpass
import re
import socket
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import msgspec

from .client import Client, default_client
from .errors import BadTask
from .flow.kick import kick_claimers
from .flow.limits import Kind, LimitView, NewLimit, Scope, change_limits, drop_limit, set_max_depth
from .flow.limits import list_limits as read_limits
from .flow.reaper import ensure_partitions
from .postgres import Database
from .retry import seconds
from .tasks import Task

UNCHANGED: Any = object()
FAIR_WINDOW = 1000
PERIODS = {
    "s": 1,
    "sec": 1,
    "second": 1,
    "m": 60,
    "min": 60,
    "minute": 60,
    "h": 3600,
    "hour": 3600,
    "d": 86400,
    "day": 86400,
}
MOST = 1_000_000
LONGEST = 366 * 86400.0


class Rate(msgspec.Struct, frozen=True):
    """So many starts in any stretch of so many seconds."""

    n: int
    seconds: float

    @classmethod
    def of(cls, value: str | Rate | tuple[int, float | timedelta]) -> Rate:
        """A rate as people write it: '100/min', '5/10s', (100, 60)."""
        if isinstance(value, Rate):
            return value
        if isinstance(value, tuple) and len(value) == 2:
            return cls(_count("rate", value[0]), seconds("rate", value[1], least=0.001))
        found = re.fullmatch(r"\s*(\d+)\s*/\s*(\d+(?:\.\d+)?)?\s*([a-z]+)\s*", str(value).lower())
        unit = found[3] if found else ""
        if not found or (PERIODS.get(unit) or PERIODS.get(unit.rstrip("s"))) is None:
            raise BadTask(f"rate={value!r} is no rate: write '100/min', '10/s' or '5/10s'")
        period = float(found[2] or 1) * (PERIODS.get(unit) or PERIODS[unit.rstrip("s")])
        if not 1 <= int(found[1]) <= MOST or not 0.001 <= period <= LONGEST:
            raise BadTask(f"rate={value!r}: give 1 to {MOST:,} starts in a period of 1 ms to 366 days, as '100/min'")
        return cls(int(found[1]), period)


async def limit_queue(  # noqa: PLR0913 - one parameter a limit
    queue: str,
    *,
    max_running: int | None = UNCHANGED,
    rate: str | Rate | None = UNCHANGED,
    per_key: int | None = UNCHANGED,
    per_key_rate: str | Rate | None = UNCHANGED,
    fair: bool = UNCHANGED,
    max_depth: int | None = UNCHANGED,
    client: Client | None = None,
    by: str | None = None,
) -> list[int]:
    """Limit a queue; None takes a limit away, what is left out stays. Gives the operations that apply new ones.

    `per_key` limits count each `concurrency_key` for itself; `fair` gives keys equal turns.
    """
    wanted = changes(
        "queue", queue, max_running=max_running, rate=rate, per_key=per_key, per_key_rate=per_key_rate, fair=fair
    )
    depth = checked_depth(max_depth)
    db = await _database(client)
    if depth is not UNCHANGED:
        await set_max_depth(db, queue, depth, by=by or whoami())
    return await apply(db, wanted, by)


async def limit_task(  # noqa: PLR0913 - one parameter a limit
    task: str | Task[Any, Any],
    *,
    max_running: int | None = UNCHANGED,
    rate: str | Rate | None = UNCHANGED,
    per_key: int | None = UNCHANGED,
    per_key_rate: str | Rate | None = UNCHANGED,
    client: Client | None = None,
    by: str | None = None,
) -> list[int]:
    """Limit a task, given or by its entrypoint, wherever it is queued; None takes a limit away, others stay."""
    name = entrypoint_of(task)
    wanted = changes("task", name, max_running=max_running, rate=rate, per_key=per_key, per_key_rate=per_key_rate)
    return await apply(await _database(client), wanted, by)


async def limit_key(
    key: str,
    *,
    max_running: int | None = UNCHANGED,
    rate: str | Rate | None = UNCHANGED,
    client: Client | None = None,
    by: str | None = None,
) -> list[int]:
    """Limit one concurrency key over all queues; None takes a limit away, what is left out stays."""
    return await apply(await _database(client), changes("key", key, max_running=max_running, rate=rate), by)


async def pause_task(
    task: str | Task[Any, Any],
    *,
    lasts: float | timedelta | None = None,
    reason: str | None = None,
    client: Client | None = None,
    by: str | None = None,
) -> list[int]:
    """Let no run of this task start, for so long or until `resume_task`; what runs goes on."""
    return await apply(await _database(client), a_pause(entrypoint_of(task), lasts, reason), by)


async def resume_task(task: str | Task[Any, Any], *, client: Client | None = None, by: str | None = None) -> bool:
    """Let the task run again; False when it was not paused."""
    db = await _database(client)
    return await drop_limit(db, NewLimit("task", entrypoint_of(task), "pause"), by=by or whoami())


def entrypoint_of(task: str | Task[Any, Any]) -> str:
    """The name under which a task is limited."""
    name: Any = getattr(task, "entrypoint", task)
    return name  # type: ignore[no-any-return]


async def list_limits(*, client: Client | None = None) -> list[LimitView]:
    """Every limit there is, with what is taken of it."""
    return await read_limits(await _database(client))


def whoami() -> str:
    """Who makes a change, as it is kept with it."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # an account without a name
        user = "somebody"
    return f"{user}@{socket.gethostname()}"


Changes = dict[NewLimit, NewLimit | None]
KINDS: dict[str, tuple[Kind, bool]] = {
    "max_running": ("running", False),
    "rate": ("rate", False),
    "per_key": ("running", True),
    "per_key_rate": ("rate", True),
    "fair": ("fair", False),
}


def changes(scope: Scope, name: str, **given: Any) -> Changes:
    """What is to become of the limits of that name, checked; what is UNCHANGED or not given stays."""
    _name(scope if scope != "task" else "entrypoint", name)
    wanted: Changes = {}
    for word, value in given.items():
        if value is UNCHANGED:
            continue
        kind, per_key = KINDS[word]
        key = NewLimit(scope, name, kind, per_key=per_key)
        if value is None or value is False:
            wanted[key] = None
        elif kind == "fair":
            if value is not True:
                raise BadTask(f"fair={value!r}: give True or False")
            wanted[key] = msgspec.structs.replace(key, n=FAIR_WINDOW)
        elif kind == "rate":
            rate = Rate.of(value)
            wanted[key] = msgspec.structs.replace(key, n=rate.n, seconds=rate.seconds)
        else:
            wanted[key] = msgspec.structs.replace(key, n=_count(word, value))
    return wanted


def a_pause(entrypoint: str, lasts: float | timedelta | None, reason: str | None) -> Changes:
    """A task that is to be paused, checked."""
    length = None if lasts is None else seconds("lasts", lasts, least=0.1)
    pause = NewLimit("task", _name("entrypoint", entrypoint), "pause", lasts=length, reason=reason)
    return {pause: pause}


def checked_depth(value: Any) -> Any:
    """A max_depth, None for any, or UNCHANGED."""
    return value if value is None or value is UNCHANGED else _count("max_depth", value)


async def apply(db: Database, wanted: Mapping[NewLimit, NewLimit | None], by: str | None = None) -> list[int]:
    """Make it so; gives the operations that apply new limits to the tasks in line."""
    await ensure_partitions(db)
    operations = await change_limits(db, wanted, by=by or whoami()) if wanted else []
    kick_claimers()
    return operations


async def _database(client: Client | None) -> Database:
    return await (client or await default_client()).database()


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST:
        raise BadTask(f"{name}={value!r}: give a whole number from 1 to {MOST:,}, or None for no limit")
    return value


def _name(what: str, value: Any) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= 200 or "\x00" in value:
        raise BadTask(f"{what}={value!r}: give a name as text, of 1 to 200 characters")
    return value
