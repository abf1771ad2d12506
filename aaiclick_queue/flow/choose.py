"""Choose: which held tasks may get in line now. A pure decision over what admission has read; nothing here does I/O.

In line order over all lanes; where turns are fair, key by key: a key's next turn is one behind its last one, and not
before the head of the line, so that a newcomer waits for one round and not for the whole backlog of another key.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

import msgspec

from ..flags import LIMITED, ORDERED
from .claim import Claimed

CAP = re.compile(r"([0-9]{1,19})=([0-9]{1,9})")


class Lane(NamedTuple):
    """Held tasks that the same limits apply to; the entrypoint is set where limits name it.

    The crowd is that of a job's tasks where the job is paused, or it or groups of it are capped: `JOB`, or
    `JOB/ID=N/ID=N` with what is capped and how many of it may be at work, the outermost first.
    """

    queue: str
    entrypoint: str
    key: str
    chain: str
    crowd: str = ""

    @property
    def job(self) -> str:
        """The job of the crowd, or nothing."""
        return self.crowd.partition("/")[0]

    @property
    def caps(self) -> list[tuple[int, int]]:
        """What is capped, and at how many."""
        caps = map(CAP.fullmatch, self.crowd.split("/")[1:])
        # Another client's words cap nothing.
        return [(int(cap[1]), int(cap[2])) for cap in caps if cap and int(cap[1]) < 2**63]


class Candidate(NamedTuple):
    """A held task, by its place in its lane."""

    rank: int
    order_key: int
    task_id: int


class Limit(msgspec.Struct):
    """A limit as it stands: `used` and `heads` are of fair turns, the others are counted a slot."""

    id: int
    scope: str
    name: str
    kind: str
    per_key: bool
    n: int
    seconds: float | None
    turn: int
    used: int = 0
    heads: dict[int, int] = msgspec.field(default_factory=dict)


class Slot(msgspec.Struct, eq=False):
    """What a task of a lane needs to get in: one of the places that a limit has, for a key where it is per key.

    Lanes that need the same one share the object, so that what one takes is gone for the other.
    """

    limit_id: int
    key: str
    n: int = 1
    seconds: float | None = None
    is_turn: bool = False
    used: int = 0
    last_turn: int | None = None
    holders: frozenset[int] = frozenset()

    def free_for(self, task_id: int) -> bool:
        """Whether the task can have it."""
        return self.used < self.n or task_id in self.holders


class Chosen(NamedTuple):
    """A task that gets in line, at which place, holding what."""

    task_id: int
    order_key: int
    slots: tuple[Slot, ...]


NO_LANES: frozenset[Lane] = frozenset()


def lanes_of(claimed: Claimed) -> AbstractSet[Lane]:
    """Where the next ones behind a run under limits wait; none for a run that no limit has let in."""
    if not claimed.flags & (LIMITED | ORDERED):
        return NO_LANES
    key, chain = claimed.concurrency_key or "", claimed.order_by or ""
    crowd = f"{claimed.job_id}/{claimed.crowd}" if claimed.crowd else ""
    return {Lane(claimed.queue, entrypoint, key, chain, crowd) for entrypoint in ("", claimed.entrypoint)}


ORDER = 0  # the number of the limit that every strict order is: one at a time


Known = dict[tuple[int, str], Slot]


def needed(lane: Lane, limits: Mapping[int, Limit], known: Known) -> tuple[Slot, ...]:
    """The slots that a task of this lane has to hold; those that other lanes need too are found in `known`."""
    slots: list[Slot] = []
    if lane.chain:
        slots.append(Slot(ORDER, lane.chain))
    # A cap is no limit that somebody has set: its number is that of the job or group itself.
    slots += (Slot(number, "", n) for number, n in lane.caps)
    for limit in limits.values():
        if _applies(limit, lane):
            key = lane.key if limit.per_key or limit.kind == "fair" else ""
            seconds = 0.0 if limit.kind == "fair" else limit.seconds
            slots.append(Slot(limit.id, key, limit.n, seconds, is_turn=limit.kind == "fair"))
    return tuple(known.setdefault((slot.limit_id, slot.key), slot) for slot in slots)


def _applies(limit: Limit, lane: Lane) -> bool:
    if limit.per_key and not lane.key:
        return False
    return limit.name == {"queue": lane.queue, "task": lane.entrypoint, "key": lane.key, "job": lane.job}[limit.scope]


def choose(
    candidates: Mapping[Lane, Sequence[Candidate]],
    slots: Mapping[Lane, tuple[Slot, ...]],
    limits: Mapping[int, Limit],
    *,
    most: int,
) -> list[Chosen]:
    """Those that get in now, in line order; what they take is counted on the slots and limits given."""
    line = [(*_place(line[0], slots[lane], limits), lane, 0) for lane, line in candidates.items()]
    heapq.heapify(line)
    chosen: list[Chosen] = []
    while line and len(chosen) < most:
        rank, turn, task_id, lane, at = heapq.heappop(line)
        place = _place(candidates[lane][at], slots[lane], limits)
        if place != (rank, turn, task_id):  # another lane of the same key has had that turn
            heapq.heappush(line, (*place, lane, at))
            continue
        if not _take(task_id, turn, slots[lane], limits):
            continue  # nobody of that lane can get in now
        chosen.append(Chosen(task_id, turn, slots[lane]))
        if at + 1 < len(candidates[lane]):
            heapq.heappush(line, (*_place(candidates[lane][at + 1], slots[lane], limits), lane, at + 1))
    return chosen


def _place(one: Candidate, slots: Sequence[Slot], limits: Mapping[int, Limit]) -> tuple[int, int, int]:
    """Where the task would stand in line."""
    for slot in slots:
        if slot.is_turn:
            limit = limits[slot.limit_id]
            after_last = 0 if slot.last_turn is None else slot.last_turn + 1
            return one.rank, max(limit.heads.get(one.rank, limit.turn), after_last), one.task_id
    return one


def _take(task_id: int, turn: int, slots: Sequence[Slot], limits: Mapping[int, Limit]) -> bool:
    for slot in slots:
        room = limits[slot.limit_id].used < slot.n if slot.is_turn else slot.free_for(task_id)
        if not room:
            return False
    for slot in slots:
        if slot.is_turn:
            limit = limits[slot.limit_id]
            limit.used += 1
            limit.turn = max(limit.turn, turn)
            slot.last_turn = turn
        elif task_id not in slot.holders:
            slot.used += 1
    return True
