"""Joining: a child that a running task puts into its own job at once, by `current().enqueue`. After: flow/submit.py.

Once over all attempts by its key, and only under the lease. Inside `current().transaction()` it is written just before
the block's end, under the id that it was given: the gate that a child raises must not stay locked for the block.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from .errors import LeaseLost, SpawnDiverged, WrongContext
from .flow.enqueue import NewTask, Spec
from .flow.fenced import child_of_key, diverged, hold_lease
from .flow.graph import Plan, PlannedTask, Previous
from .flow.submit import Adding, add_to_job
from .handles import Handle
from .nodes import Joint, listed
from .spec import Options
from .wiring import refuse_look_alikes

if TYPE_CHECKING:
    from .context import Current

RESERVED = ("key", "after", "group")


class Wish(msgspec.Struct):
    """Where a child is to be: under which key, behind what, in which group, with which options of a node."""

    key: str | None = None
    after: tuple[int, ...] = ()
    group: int | None = None
    options: Options = msgspec.field(default_factory=Options)
    name: str = ""

    @classmethod
    def of(cls, given: dict[str, Any], parameters: Sequence[str]) -> Wish:
        """What is ours among the arguments: whatever the function has no parameter for."""
        ours = {name: given.pop(name) for name in RESERVED if name in given and name not in parameters}
        return cls(_key(ours.get("key")), tuple(_ids(ours.get("after"))), _group(ours.get("group")))


class Joining:
    """The children of one run that join its job."""

    def __init__(self, current: Current) -> None:
        self._current = current
        self._services = current._services  # noqa: SLF001 - a part of it
        self.kept: dict[str, PlannedTask] = {}  # by key, until the transaction block ends
        self._names: dict[str, int] = {}

    async def join(self, wish: Wish, spec: Spec, child: NewTask, *, in_block: bool) -> int:
        """Write the child, or keep it until the block ends; gives its id, or that of an earlier attempt."""
        refuse_look_alikes(child.kwargs, 0, f"an argument of {wish.name}")
        [number] = (await self._services.ids()).take(1)
        planned = PlannedTask(
            number=number,
            name=self._named(wish.name),
            spec=spec,
            task=child,
            group=wish.group,
            rule=wish.options.rule or "all_success",
            critical=wish.options.critical is not False,
            previous=[Previous(one) for one in wish.after],
        )
        if in_block:
            return await self._keep(planned)
        written = await self._write(planned)
        self._services.made_ready()
        if planned.previous:
            self._services.arrived()  # they may have ended before
        return written

    async def _write(self, planned: PlannedTask) -> int:
        current = self._current
        assert current.job_id is not None
        async with self._services.adding_db.transaction() as tx:
            if not await hold_lease(tx, current.fence):
                raise LeaseLost(f"task {current.id} is not this run's any more: its child was not written")
            if (before := await child_of_key(tx, planned.spec, planned.task)) is not None:
                return before
            to = Adding(current.job_id, current.fence, current.group_id)
            take = (await self._services.ids()).take
            return (await add_to_job(tx, to, Plan([planned]), take)).ids[planned.number]

    async def _keep(self, planned: PlannedTask) -> int:
        key = planned.task.spawn_key or ""
        if (before := self.kept.get(key)) is not None:
            if (before.spec.entrypoint, before.task.kwargs) != (planned.spec.entrypoint, planned.task.kwargs):
                raise SpawnDiverged(diverged(planned.spec, planned.task))
            return before.number
        if (written := await child_of_key(self._services.db, planned.spec, planned.task)) is not None:
            return written
        self.kept[key] = planned
        return planned.number

    def _named(self, name: str) -> str:
        count = self._names[name] = self._names.get(name, 0) + 1
        return name if count == 1 else f"{name}#{count}"


def _key(given: Any) -> str | None:
    if given is not None and (not isinstance(given, str) or not 1 <= len(given) <= 200 or "\x00" in given):
        raise WrongContext(f"key={given!r}: give a text of 1 to 200 characters that is the same in every attempt")
    return given


def _group(given: Any) -> int | None:
    if given is None or (isinstance(given, int) and not isinstance(given, bool)):
        return given
    if isinstance(given, str) and given.isdecimal():
        return int(given)
    raise WrongContext(f"group={given!r}: give the id of a group of this job, as current().group_id is one")


def _ids(given: Any) -> Iterable[int]:
    for one in listed(given) if given is not None else ():
        if isinstance(one, Handle):
            yield int(one.id)
        elif isinstance(one, Joint):
            raise WrongContext(
                f"after={one!r}: that node is written when this run ends, so nothing that is written now can wait for "
                "it; call the task instead of current().enqueue, and use an arrow"
            )
        elif isinstance(one, int) and not isinstance(one, bool):
            yield one
        elif isinstance(one, str) and one.isdecimal():
            yield int(one)
        else:
            raise WrongContext(f"after={one!r}: give handles or ids of tasks of this job")
