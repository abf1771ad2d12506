"""Routing: which side of a job runs is decided by a result. The side that is not taken is SKIPPED, joins behind it run.

A side is given by its first nodes, or as a group, or as a function that builds it: what lies behind them follows.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from .errors import BadJob
from .nodes import Group, Joint, Node, listed, same_job

TRUE, FALSE, DEFAULT = "?true", "?false", "*"


def when(condition: Any, *, then: Any = None, otherwise: Any = None) -> list[Any]:
    """Run `then` if the condition's result is true as Python sees it, else `otherwise`; gives the nodes of both."""
    sides = {TRUE: then, FALSE: otherwise}
    if all(side is None for side in sides.values()):
        raise BadJob("when(…) has neither then= nor otherwise=: give the nodes that are to run")
    return [
        node
        for choice, side in sides.items()
        if side is not None
        for node in _choose(condition, side, choice, (), name="then" if choice == TRUE else "otherwise")
    ]


def branch(condition: Any, sides: Mapping[str | int, Any], *, default: Any = None) -> list[Any]:
    """Run the side that the condition's result names, or each of those it lists; gives the nodes of all sides.

    A result that is none of the names runs `default`, and without one fails what it should have chosen from.
    """
    if not isinstance(sides, Mapping) or not sides:
        raise BadJob(f"branch(…, {sides!r}): give a dict of names and the nodes behind each")
    named = {_name(name): side for name, side in sides.items()}
    known = tuple(sorted(named))
    nodes = [
        node
        for name, side in named.items()
        for node in _choose(condition, side, name, () if default is not None else known, name=name)
    ]
    return nodes if default is None else [*nodes, *_choose(condition, default, DEFAULT, known, name="default")]


def _choose(condition: Any, side: Any, choice: str, known: tuple[str, ...], *, name: str) -> list[Joint]:
    if not isinstance(condition, Node):
        raise BadJob(f"{condition!r} decides nothing: give the node whose result does, as when(is_big(a), then=…)")
    if inspect.isfunction(side):
        with Group() as group:
            group.name = f"{condition.name}: {name}"
            returned = side()
        _wait([group], condition, choice, known)
        return list(listed(returned)) if returned is not None else [group]
    return _wait(listed(side), condition, choice, known)


def _wait(nodes: Iterable[Any], condition: Node, choice: str, known: tuple[str, ...]) -> list[Joint]:
    waiting: list[Joint] = [same_job(one, condition) for one in nodes]
    for one in waiting:
        one.wait_for(condition, choices=(choice,), known=known)
    return waiting


def _name(name: Any) -> str:
    if isinstance(name, bool) or not isinstance(name, str | int):
        raise BadJob(f"branch(…, {{{name!r}: …}}): the name of a side is a text or a whole number")
    shown = str(name)
    if shown in (TRUE, FALSE, DEFAULT) or not shown or "\x00" in shown or "\x01" in shown:
        raise BadJob(f"branch(…, {{{name!r}: …}}): this name is taken: use another, or default=")
    return shown
