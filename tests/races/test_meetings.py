"""Every two steps of the flow that can meet, and the threes that matter, in every order of their statements.

A pair is played with every point at which one may be interrupted by the other; RACES_PREEMPTIONS=2 lets them interrupt
each other more often. Each step also dies before each of its statements and commits.
"""

from __future__ import annotations

import itertools
import os

import pytest

from tests.races.cast import REFUSALS, STEPS, Cast
from tests.races.orders import Play, Stage
from tests.races.props import Props

PREEMPTIONS = int(os.environ.get("RACES_PREEMPTIONS") or 1)
# Steps of the flow that are not in the cast, and where their meetings are played.
ELSEWHERE = {
    "schedule fires": "tests/races/test_schedules.py: its rows are its own, what it enqueues is `add` and `replace`",
    "relay": "tests/races/test_movers.py: it only deletes rows of the outbox",
    "prune": "tests/dag/test_prune_jobs.py: it takes what is final, under the row of its job",
    "limit is set": "tests/races/test_limits.py",
    "stranger": "here as `release` and `release all`: the same statements",
    "expire": "here as a part of `reap`: the scene has a task that has expired",
    "close": "here as a part of `resolve`",
}
# Steps that share their statement with another: that one meets everybody, they meet those that could tell them apart.
SAME_AS = {
    "retry": ("fail", {"claim", "due", "reap", "resolve", "cancel", "clear", "admit"}),
    "release": ("fail", {"claim", "reap", "resolve", "cancel", "clear", "admit", "beat", "move"}),
    "release all": ("fail", {"claim", "complete", "reap", "cancel", "beat"}),
    "block": ("complete", {"reap", "cancel", "clear", "cancel job", "beat", "spawn"}),
    "purge": ("cancel", {"claim", "due", "move", "admit", "resolve", "replace"}),
    "pause job": ("cancel job", {"claim", "due", "admit", "resolve", "clear", "release", "spawn"}),
    "skip": ("replace", {"complete", "cancel", "debounce", "skip"}),
    "debounce": ("replace", {"claim", "cancel", "due", "purge", "skip", "debounce", "move"}),
    "retry job": ("clear", {"complete", "fail", "reap", "resolve", "cancel job", "spawn", "add", "claim", "cancel"}),
}


def is_apart(one: str, other: str) -> bool:
    """Whether the meeting is excused: a step that stands for one of them has it, or both are others of their kind."""
    return any(name in SAME_AS and by not in SAME_AS[name][1] for name, by in ((one, other), (other, one)))


THREES = [
    ("claim", "cancel", "reap"),
    ("complete", "reap", "beat"),
    ("complete", "resolve", "claim"),
    ("complete", "cancel", "clear"),
    ("spawn", "resolve", "cancel job"),
    ("spawn", "reap", "clear"),
    ("fail", "resolve", "add"),
    ("due", "claim", "cancel"),
    ("release", "claim", "cancel"),
    ("admit", "complete", "cancel"),
    ("replace", "claim", "debounce"),
    ("block", "reap", "cancel"),
    ("move", "claim", "purge"),
]
PAIRS = [(one, other) for one, other in itertools.combinations_with_replacement(STEPS, 2) if not is_apart(one, other)]


async def play_all(stage: Stage, props: Props, names: tuple[str, ...], *, preemptions: int) -> None:
    cast = Cast(props)
    await cast.prepare()

    async def scene(play: Play) -> None:
        await cast.enter()
        acts = {f"{name} {at}": (lambda db, step=STEPS[name]: step(cast, db)) for at, name in enumerate(names)}
        for name, gave in zip(names, await play.run(**acts), strict=True):
            assert not isinstance(gave, BaseException) or isinstance(gave, REFUSALS), f"{name}: {gave!r}"
        await cast.holds()

    await stage.in_every_order(scene, preemptions=preemptions)
    await cast.leave()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("one", STEPS)
async def test_a_step_and_any_other_leave_everything_whole(stage: Stage, props: Props, one: str) -> None:
    for pair in PAIRS:
        if pair[0] == one:
            await play_all(stage, props, pair, preemptions=PREEMPTIONS)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("names", THREES, ids=" and ".join)
async def test_three_steps_leave_everything_whole(stage: Stage, props: Props, names: tuple[str, ...]) -> None:
    await play_all(stage, props, names, preemptions=max(PREEMPTIONS, 1))


@pytest.mark.parametrize("name", STEPS)
async def test_a_step_that_dies_anywhere_leaves_everything_whole(stage: Stage, props: Props, name: str) -> None:
    cast = Cast(props)
    await cast.prepare()
    for at in itertools.count():
        await cast.enter()
        try:
            if not await stage.dies(lambda db: STEPS[name](cast, db), at):
                break
        except REFUSALS:
            break
        await cast.holds()
    await cast.holds()
    assert at > 0
    await cast.leave()


def test_every_meeting_is_played_or_excused() -> None:
    met = {frozenset(pair) for pair in PAIRS}
    for one, other in itertools.combinations_with_replacement(STEPS, 2):
        if frozenset((one, other)) not in met:
            stands_for = [SAME_AS[name][0] for name in (one, other) if name in SAME_AS]
            assert stands_for, f"{one} and {other} never meet"
            assert all(frozenset((name, "reap")) in met for name in stands_for)
    assert all(ELSEWHERE.values())
    assert {name for three in THREES for name in three} <= STEPS.keys()
    assert {name for _, others in SAME_AS.values() for name in others} <= STEPS.keys()
