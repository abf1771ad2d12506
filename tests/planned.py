"""Jobs of tasks that no worker knows, written by the steps themselves, and resolved until nothing is left to do."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from aaiclick_queue.flow.enqueue import NewTask, Spec, id_source
from aaiclick_queue.flow.graph import Plan, PlannedGroup, PlannedTask, Previous
from aaiclick_queue.flow.resolve import Resolver
from aaiclick_queue.flow.submit import NewJob, submit_job
from aaiclick_queue.postgres import Database
from tests.tools import ENTRYPOINT

_OF_TASK = ("kwargs", "concurrency_key", "order_by", "countdown", "eta")
_numbers = itertools.count(1)


class Job:
    """A job in the making: `task()` and `group()` give numbers, `submit()` writes it and knows their ids."""

    def __init__(self, **options: Any) -> None:
        self._options = {"name": "a job"} | options
        self.plan = Plan([], [])
        self.id = 0
        self.ids: dict[int, int] = {}

    def task(self, *previous: int | Previous, group: int | None = None, name: str | None = None, **spec: Any) -> int:
        """A task behind those tasks, groups as Previous."""
        number = next(_numbers)
        node = {word: spec.pop(word) for word in ("rule", "critical", "map_index") if word in spec}
        of_task: dict[str, Any] = {word: spec.pop(word) for word in _OF_TASK if word in spec}
        self.plan.tasks.append(
            PlannedTask(
                number=number,
                name=name or f"task {number}",
                spec=Spec(**({"entrypoint": ENTRYPOINT, "queue": "default"} | spec)),
                task=NewTask(of_task.pop("kwargs", "{}"), **of_task),
                group=group,
                previous=[one if isinstance(one, Previous) else Previous(one) for one in previous],
                **node,
            )
        )
        return number

    def tasks(self, count: int, *previous: int | Previous, **given: Any) -> list[int]:
        """Some alike."""
        return [self.task(*previous, **given) for _ in range(count)]

    def group(self, *previous: int | Previous, parent: int | None = None, **given: Any) -> int:
        """A group, in another or not."""
        number = next(_numbers)
        before = [one if isinstance(one, Previous) else Previous(one) for one in previous]
        name = given.pop("name", f"group {number}")
        self.plan.groups.append(PlannedGroup(number=number, name=name, parent=parent, previous=before, **given))
        return number

    async def submit(self, db: Database) -> Job:
        """Write it."""
        ids = await id_source(db)
        async with db.transaction() as tx:
            written = await submit_job(tx, NewJob(**self._options), self.plan, ids.take)
        self.id, self.ids = written.job_id, written.ids
        return self

    def __getitem__(self, number: int) -> int:
        return self.ids[number]

    def of(self, numbers: Sequence[int]) -> list[int]:
        """Their ids."""
        return [self.ids[number] for number in numbers]


def group_before(number: int) -> Previous:
    """A group as what comes before."""
    return Previous(number, "group")


async def resolve(db: Database, **given: Any) -> None:
    """Fold what has arrived until nothing arrives any more."""
    resolver = Resolver(db)
    while (done := await resolver.resolve_once(**given)).folded or done.more:
        assert not done.held, "somebody else holds a gate"
