"""Builtin calls: the arguments of the two tasks that come with every worker. fan.py writes them, a worker runs them.

`aaiclick_queue.expand` maps a task over what another task gave: it is a member of the map's own group, so that the
group stays open until it has put its children there; in item order, child number i has map_index i. In `constant` a
reference is deferred (`{"$$node": id}`): renumbered with the others, not filled in, and `{"$node": id}` in a child.
`aaiclick_queue.fold` folds results: of a `{"$group": id}`, in order and without the expander's own, or of a
`{"$completed": […]}`; those of tasks that failed or were skipped are left out, not None.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import msgspec

from .flow.enqueue import NewTask, Spec
from .references import undeferred
from .spec import filled_in

EXPAND = "aaiclick_queue.expand"
FOLD = "aaiclick_queue.fold"
BUILTIN = frozenset({EXPAND, FOLD})
How = Literal["collect", "concat", "sum", "first", "last", "merge"]
HOWS: tuple[How, ...] = get_args(How)


class Expand(msgspec.Struct, kw_only=True):
    """One call of `parameter` for each of `items`, as tasks of the group that the expander is in."""

    spec: Spec  # of every child
    task: NewTask  # of every child: its options; without arguments, and its keys are not filled in
    name: str  # child i is called name[i]
    parameter: str  # takes the item
    items: msgspec.Raw  # to be a list, else the expander fails and names what it is
    constant: dict[str, msgspec.Raw] = {}  # the other arguments, the same for all
    critical: bool = True
    is_secret: bool = False  # the item of each

    def task_of(self, item: msgspec.Raw) -> NewTask:
        """The child that takes this item."""
        item = msgspec.Raw(b'{"$secret":' + bytes(item) + b"}") if self.is_secret else item
        kwargs = undeferred(msgspec.json.encode({**self.constant, self.parameter: item}).decode())
        return msgspec.structs.replace(
            self.task,
            kwargs=kwargs,
            concurrency_key=filled_in("concurrency_key", self.task.concurrency_key, kwargs, self.spec.entrypoint),
            order_by=filled_in("order_by", self.task.order_by, kwargs, self.spec.entrypoint),
        )


def empty(how: How) -> Any:
    """What nothing folds to."""
    return {"collect": [], "concat": [], "sum": 0, "first": None, "last": None, "merge": {}}[how]
