"""How a job's plan goes through middleware: once for each kind of task in it, all of them around the one write.

Before: the client, or a run that adds to its job. After: flow/submit.py. The calls are around each other as if they
were nested, and stepped by hand instead: a job may have tasks of a thousand kinds.
"""

from __future__ import annotations

import types
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from .around import enqueue_through
from .codec import decode_json, encode_json
from .flow.enqueue import NewTask, Spec
from .flow.graph import Plan, PlannedTask
from .flow.submit import NewJob, Submitted
from .middleware import HEADERS, Enqueuing, Middleware

_HERE = object()


async def plan_through(
    chain: Sequence[Middleware], plan: Plan, write: Callable[[], Awaitable[Submitted]], *, connection: Any = None
) -> Submitted:
    """Write a plan through the middleware, which sees the tasks of one spec and metadata in one call."""
    kinds: dict[tuple[Spec, str | None], list[PlannedTask]] = {}
    for one in plan.tasks:
        kinds.setdefault((one.spec, one.task.metadata), []).append(one)
    opened: list[_Call] = []
    submitted: Submitted | None = None
    raised: BaseException | None = None
    try:
        for (spec, _), tasks in kinds.items():
            call = _Call(chain, Enqueuing(spec, [one.task for one in tasks], connection=connection), tasks)
            await call.open()
            opened.append(call)
        submitted = await write()
    except BaseException as error:  # also a cancellation: each of them is told, as if the next were inside it
        raised = error
    for call in reversed(opened):
        try:
            await call.close(submitted, raised)
        except BaseException as error:
            raised = error
    if raised is not None:
        raise raised
    assert submitted is not None
    return submitted


@contextmanager
def submitting_through(chain: Sequence[Middleware], job: NewJob) -> Iterator[None]:
    """Around the writing of a job: what middleware sends along is kept in its metadata."""
    headers: dict[str, str] = {}
    with ExitStack() as stack:
        for one in chain:
            stack.enter_context(one.submitting(job.name, headers))
        if headers:
            job.metadata = encode_json((decode_json(job.metadata) or {}) | {HEADERS: headers})
        yield


class _Call:
    """The tasks of one kind on their way through the middleware, held where they would be written."""

    def __init__(self, chain: Sequence[Middleware], call: Enqueuing, tasks: Sequence[PlannedTask]) -> None:
        self._tasks = tasks
        self._submitted: Submitted | None = None
        self._raised: BaseException | None = None
        self._way = enqueue_through(chain, call, self._write)

    async def open(self) -> None:
        """Go inward, as far as the write."""
        await self._step()

    async def close(self, submitted: Submitted | None, raised: BaseException | None) -> None:
        """Go outward with what was written, or with why it was not."""
        self._submitted, self._raised = submitted, raised
        await self._step()

    async def _write(self, spec: Spec, tasks: Sequence[NewTask]) -> list[int]:
        for one, changed in zip(self._tasks, tasks, strict=True):
            one.spec, one.task = spec, changed
        await _hold()
        if self._raised is not None:
            raise self._raised
        ids = self._submitted.ids if self._submitted is not None else {}
        return [ids[one.number] for one in self._tasks if one.number in ids]

    @types.coroutine
    def _step(self) -> Generator[Any, Any, None]:
        """Run it until it holds or ends; what it awaits meanwhile is awaited."""
        act: Callable[[Any], Any] = self._way.send
        value: Any = None
        while True:
            try:
                awaited = act(value)
            except StopIteration:
                return
            if awaited is _HERE:
                return
            try:
                act, value = self._way.send, (yield awaited)
            except BaseException as error:  # told to stop while it waits: it is told inside
                act, value = self._way.throw, error


@types.coroutine
def _hold() -> Generator[Any, Any, None]:
    yield _HERE
