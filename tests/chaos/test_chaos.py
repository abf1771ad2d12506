"""The short form of `make chaos`: a round with one Redis, one with a Sentinel. How long recovery took is only told."""

from __future__ import annotations

import os

import pytest

from tests.chaos.report import replay, story, summary, table_of_faults, wrongs
from tests.chaos.rounds import play

SECONDS = float(os.environ.get("CHAOS_TEST_SECONDS") or 40)
ALL_AT_ONCE = 0.8  # how often two faults strike together: so each kind comes in the short time there is


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", [20, 21])
def test_nothing_is_lost_stuck_double_or_early_whatever_breaks(seed: int) -> None:
    played = play(seed, SECONDS, together=ALL_AT_ONCE)
    print(f"{story(played)}\n{table_of_faults([played])}\n{summary([played])}")  # noqa: T201
    assert not played.wrong, f"{wrongs(played)}\n{played.told}\nagain: {replay(played)}"
    assert len(played.hurts) >= 3
    assert played.tasks > 50
