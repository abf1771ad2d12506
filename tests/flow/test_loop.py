"""Loops: when the next pass comes."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from aaiclick_queue import Settings
from aaiclick_queue.flow.lines import FRESH_SECONDS
from aaiclick_queue.flow.loop import Holder, Loop, Rest
from aaiclick_queue.flow.watch import Watch
from aaiclick_queue.postgres import Database

LONGEST_JITTER = 1.1
WITHIN = asyncio.timeout


class Clock:
    """Time that goes on as passes take it, and what each pause was to be."""

    def __init__(self, *takes: float) -> None:
        self.now = 0.0
        self.takes = list(takes)
        self.pauses: list[float] = []

    async def once(self) -> float:
        self.now += self.takes.pop(0)
        return 10.0

    def timeout(self, seconds: float) -> asyncio.Timeout:
        self.pauses.append(seconds)
        if not self.takes:
            raise asyncio.CancelledError
        return WITHIN(0)


@pytest.mark.parametrize(("longest_rest", "third"), [(300.0, 200.0), (60.0, 60.0), (None, 10.0)])
async def test_a_look_that_nobody_waits_for_is_made_the_less_often_the_longer_it_takes(
    monkeypatch: pytest.MonkeyPatch, longest_rest: float | None, third: float
) -> None:
    clock = Clock(0.01, 2.0, 2.0)
    monkeypatch.setattr("aaiclick_queue.flow.loop.time.monotonic", lambda: clock.now)
    monkeypatch.setattr("aaiclick_queue.flow.loop.random.uniform", lambda *_: 1.0)
    monkeypatch.setattr("aaiclick_queue.flow.loop.asyncio.timeout", clock.timeout)
    with pytest.raises(asyncio.CancelledError):
        await Loop("test", clock.once, longest_rest=longest_rest).run()
    assert clock.pauses == pytest.approx([10.0 - 0.01, 10.0 - 2.0, third - 2.0])


def test_a_rest_is_by_the_shorter_of_two_looks_and_bounded() -> None:
    rest = Rest(60.0)
    takes = (10.0, 0.1, 10.0, 10.0, 50.0, 50.0)
    assert [rest.after(seconds) for seconds in takes] == [0.0, 10.0, 10.0, 60.0, 60.0, 100.0]


def test_long_lines_are_counted_again_before_their_last_count_is_too_old(settings: Settings) -> None:
    rest = Watch(cast("Database", SimpleNamespace(settings=settings)), Holder(1))._depths._rest
    assert rest is not None
    longest = max(rest.after(20.0) for _ in range(3))
    assert longest >= 90.0
    assert longest * LONGEST_JITTER + 20.0 < FRESH_SECONDS
