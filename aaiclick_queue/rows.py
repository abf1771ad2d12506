"""Rows: the tasks of `enqueue_many`, made a part at a time: the next part while Postgres writes the one before.

For a transaction of our own alone, which a row that does not fit rolls back as a whole. Before: tasks. After: writing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, TypeVar, overload

from .flow.enqueue import NewTask

T = TypeVar("T")

PART = 1000  # rows of one statement

Make = Callable[
    [Sequence[Mapping[str, Any]], int], list[NewTask]
]  # from the arguments of calls, and their first number


class Rows(Sequence[NewTask]):
    """As good as the list of all of them, whose end need not be there yet."""

    def __init__(self, calls: Sequence[Mapping[str, Any]], make: Make) -> None:
        self._calls = calls
        self._make = make
        self._made: list[NewTask] = []

    def __len__(self) -> int:
        return len(self._calls)

    @overload
    def __getitem__(self, at: int) -> NewTask: ...
    @overload
    def __getitem__(self, at: slice) -> list[NewTask]: ...
    def __getitem__(self, at: int | slice) -> NewTask | list[NewTask]:
        self.make(at.indices(len(self))[1] if isinstance(at, slice) else range(len(self))[at] + 1)
        return self._made[at]

    def __iter__(self) -> Iterator[NewTask]:
        self.make(len(self))
        return iter(self._made)

    def make(self, end: int) -> None:
        """Have those before `end`, as far as there are any."""
        there = len(self._made)
        if end > there:
            self._made += self._make(self._calls[there:end], there)

    async def made_meanwhile(self, end: int, write: Coroutine[Any, Any, T]) -> T:
        """What the write gives; those before `end` are made while it waits."""
        writing = asyncio.ensure_future(write)
        try:
            await asyncio.sleep(0)  # its first step sends the statement
            self.make(end)
        except BaseException:
            writing.cancel()
            await asyncio.wait([writing])
            raise
        return await writing
