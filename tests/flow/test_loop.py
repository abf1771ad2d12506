"""Loops: when the next pass comes."""

from __future__ import annotations

import asyncio

import pytest

from aaiclick_queue.flow.loop import Loop

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


@pytest.mark.parametrize(("is_look", "longest"), [(True, 100.0), (False, 10.0)])
async def test_a_look_that_nobody_waits_for_is_made_the_less_often_the_longer_it_takes(
    monkeypatch: pytest.MonkeyPatch, is_look: bool, longest: float
) -> None:
    clock = Clock(0.01, 2.0)
    monkeypatch.setattr("aaiclick_queue.flow.loop.time.monotonic", lambda: clock.now)
    monkeypatch.setattr("aaiclick_queue.flow.loop.random.uniform", lambda *_: 1.0)
    monkeypatch.setattr("aaiclick_queue.flow.loop.asyncio.timeout", clock.timeout)
    with pytest.raises(asyncio.CancelledError):
        await Loop("test", clock.once, is_look=is_look).run()
    short, long = clock.pauses
    assert short == pytest.approx(10.0 - 0.01)
    assert long == pytest.approx(longest - 2.0)
