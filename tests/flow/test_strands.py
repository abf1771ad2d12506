"""Strands: runs that never wait share an asyncio task, and none of them can tell."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aaiclick_queue.flow.execute import Run
from aaiclick_queue.kinds import Kind
from aaiclick_queue.strands import Strands
from tests.tools import until

Code = Callable[[], Awaitable[object]]

CLAIMED = SimpleNamespace(queue="default")

seen: ContextVar[str] = ContextVar("seen", default="nothing")


class Stage:
    """A kind of two slots, and runs that are a function each."""

    def __init__(self, size: int = 2) -> None:
        self.kind = Kind("async", size, share=1.0)
        self.tasks: list[asyncio.Task[Any] | None] = []
        self.refused: list[Any] = []
        self.strands = Strands(lambda run: run not in self.refused, self._run)
        self.over = asyncio.Event()
        self._left = 0

    async def _run(self, run: Run) -> None:
        self.tasks.append(asyncio.current_task())
        try:
            await cast("Any", run).code()
        except (asyncio.CancelledError, TimeoutError) as error:
            cast("Any", run).error = error
        finally:
            self.kind.taken -= 1
            self._left -= 1
            if not self._left:
                self.over.set()

    def put(self, *codes: Code) -> list[Any]:
        runs = [
            SimpleNamespace(code=code, claimed=CLAIMED, asyncio_task=None, coroutine=None, error=None) for code in codes
        ]
        for run in runs:
            self.kind.waiting.append(cast("Run", run))
        self._left += len(runs)
        self.strands.fill(self.kind)
        return runs

    async def play(self, *codes: Code) -> list[Any]:
        runs = self.put(*codes)
        await asyncio.wait_for(self.over.wait(), 10)
        await asyncio.sleep(0)
        assert (self.kind.taken, len(self.kind.waiting)) == (0, 0)
        return runs


async def nothing() -> None:
    """Never waits."""


async def turn() -> None:
    await asyncio.sleep(0)


async def test_runs_that_never_wait_share_a_task_and_one_that_does_keeps_its_own() -> None:
    stage = Stage()
    await stage.play(nothing, nothing, turn, nothing, turn)
    first, second, third, fourth, fifth = stage.tasks
    assert first is second is third
    assert fourth is not third
    assert fifth is fourth


async def test_what_a_run_puts_into_its_context_is_its_own() -> None:
    found: list[str] = []

    async def mark_at_once() -> None:
        found.append(seen.get())
        seen.set("at once")

    async def mark_later() -> None:
        found.append(seen.get())
        await asyncio.sleep(0)
        seen.set("later")
        await asyncio.sleep(0)
        found.append(seen.get())

    await Stage(size=1).play(mark_at_once, mark_later, mark_at_once, mark_later)
    assert found == ["nothing", "nothing", "later", "nothing", "nothing", "later"]
    assert seen.get() == "nothing"


async def test_no_more_run_at_once_than_there_are_slots() -> None:
    running, most = 0, 0

    async def counted() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1

    await Stage(size=3).play(*[counted, nothing] * 20)
    assert most == 3


async def test_a_timeout_in_a_run_ends_that_run_alone() -> None:
    async def too_long() -> None:
        async with asyncio.timeout(0.01):
            await asyncio.Event().wait()

    runs = await Stage(size=1).play(nothing, too_long, turn)
    assert [type(run.error) for run in runs] == [type(None), TimeoutError, type(None)]


async def test_a_run_that_is_cancelled_while_it_waits_takes_nobody_along() -> None:
    stage = Stage(size=2)
    runs = stage.put(nothing, asyncio.Event().wait, turn)
    await until(lambda: runs[1].asyncio_task is not None)
    runs[1].asyncio_task.cancel()
    await asyncio.wait_for(stage.over.wait(), 10)
    assert [type(run.error) for run in runs] == [type(None), asyncio.CancelledError, type(None)]


async def test_a_run_that_cancels_itself_and_ends_takes_nobody_along() -> None:
    async def cancel_itself() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()

    runs = await Stage(size=1).play(cancel_itself, turn, turn)
    assert [run.error for run in runs] == [None, None, None]


async def test_a_run_that_breaks_its_task_leaves_the_others_to_a_new_one() -> None:
    stage, ran = Stage(size=1), []
    whole = stage._run

    async def broken(run: Run) -> None:
        stage.strands._run = whole
        stage.kind.taken -= 1
        raise RuntimeError("ours")

    async def run() -> None:
        ran.append("ran")

    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))
    stage.strands._run = broken
    stage.kind.waiting.append(cast("Run", SimpleNamespace(claimed=CLAIMED)))
    await stage.play(run)
    assert ran == ["ran"]
    gc.collect()
    assert [str(error) for error in told] == ["ours"]


async def test_a_run_that_may_not_begin_takes_no_slot() -> None:
    stage, begun = Stage(size=1), []

    async def begin() -> None:
        begun.append("begun")

    refused = SimpleNamespace(code=begin, claimed=CLAIMED)
    stage.refused.append(refused)
    stage.kind.waiting.append(cast("Run", refused))
    await stage.play(begin)
    assert begun == ["begun"]


async def test_the_event_loop_turns_while_runs_that_never_wait_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aaiclick_queue.strands.TURN_SECONDS", 0.0)
    order: list[str] = []

    async def say() -> None:
        order.append("run")
        asyncio.get_running_loop().call_soon(order.append, "loop")

    await Stage(size=1).play(say, say, say)
    assert order[:4] == ["run", "loop", "run", "loop"]
