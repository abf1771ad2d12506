"""Room for claims: each kind of run has its own slots, and a full one leaves the others their room."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from aaiclick_queue.kinds import A_FEW, QUEUES_KNOWN, Kind, KindName, Mix, Waiting, room_of
from aaiclick_queue.slots import Slots

MOST = 500


def kinds(*, slots: int = 100, threads: int = 8, children: int = 2) -> tuple[Kind, Kind, Kind]:
    return Kind("async", slots, share=1.0), Kind("thread", threads, share=0.0), Kind("process", children, share=0.0)


def shares(found: Sequence[Kind], **given: float) -> None:
    for kind in found:
        kind.share = given.get(kind.name, 0.0)


def wait_for(kind: Kind, count: int, queue: str = "default") -> None:
    for _ in range(count):
        kind.waiting.append(SimpleNamespace(claimed=SimpleNamespace(queue=queue)))  # type: ignore[arg-type]


def room(found: Sequence[Kind], mix: Mix | None = None, *, prefetch: bool = False) -> int:
    return room_of(found, mix or Mix(found), most=MOST, prefetch=prefetch)


def mixed(found: Sequence[Kind], **queues: KindName) -> Mix:
    """A mix that has seen each of the queues bring one kind."""
    mix = Mix(found)
    by_name = {kind.name: kind for kind in found}
    before = {kind: kind.share for kind in found}
    mix.met({(queue, by_name[name]): 1 for queue, name in queues.items()})
    for kind, share in before.items():
        kind.share = share
    return mix


def test_with_one_kind_the_room_is_its_free_slots() -> None:
    found = kinds()
    assert room(found) == 100
    found[0].taken = 60
    assert room(found) == 40


def test_what_was_just_finished_may_be_claimed_ahead_less_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aaiclick_queue.kinds.RECENT_SECONDS", 3600)
    found = kinds()
    found[0].taken = 100
    for _ in range(30):
        found[0].finished()
    assert room(found, prefetch=True) == 30
    wait_for(found[0], 20)
    assert room(found, prefetch=True) == 10


def test_what_was_finished_a_while_ago_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aaiclick_queue.kinds.RECENT_SECONDS", 3600)
    [kind, *_] = found = kinds(slots=1)
    kind.taken = 1
    kind.finished()
    assert room(found, prefetch=True) == 1
    monkeypatch.setattr("aaiclick_queue.kinds.RECENT_SECONDS", -3600)
    assert kind.open(prefetch=True) == 0


def test_the_kind_that_fills_up_first_by_its_share_decides() -> None:
    found = kinds()
    shares(found, **{"async": 0.5, "thread": 0.25, "process": 0.25})
    assert room(found) == 8  # of which two for the two children
    found[2].taken = 1
    assert room(found) == 4


def test_nothing_free_is_no_room() -> None:
    found = kinds()
    for kind in found:
        kind.taken = kind.size
    assert room(found) == 0


def test_a_full_kind_lets_a_few_wait_because_the_next_in_line_may_be_another() -> None:
    found = kinds()
    shares(found, **{"async": 0.5, "process": 0.5})
    found[2].taken = 2
    assert found[2].may_wait == A_FEW // 2
    assert room(found) == A_FEW
    wait_for(found[2], A_FEW // 2 - 1)
    assert room(found) == 2


def test_the_rarer_the_others_the_fewer_wait() -> None:
    found = kinds()
    shares(found, thread=1.0)
    found[1].taken = found[1].size
    assert room(found) == 1
    wait_for(found[1], 1)
    assert room(found) == 0


def test_when_enough_wait_for_a_full_kind_queues_that_bring_others_go_on() -> None:
    found = kinds()
    shares(found, **{"async": 0.5, "process": 0.5})
    found[2].taken = 2
    wait_for(found[2], A_FEW, queue="slow")
    assert room(found) == 0  # nobody knows what the other queues bring
    assert room(found, mixed(found, slow="process")) == 0
    assert room(found, mixed(found, slow="process", quick="async")) == 108
    assert room(found, mixed(found, slow="process", quick="async", slow_too="process")) == 0


def test_a_full_kind_is_not_claimed_from_its_other_queues() -> None:
    """Else queues would not take their turns by weight."""
    found = kinds(slots=1)
    found[0].taken = 1
    wait_for(found[0], 1, queue="mail")
    assert room(found, mixed(found, mail="async", default="async")) == 0


def test_shares_follow_what_is_claimed_and_few_queues_are_remembered() -> None:
    found = kinds()
    mix = Mix(found)
    for n in range(QUEUES_KNOWN + 50):
        mix.met({(f"queue {n}", found[2]): 3})
    assert len(mix._queues) == QUEUES_KNOWN
    assert found[2].share > 0.99
    assert found[0].share < 0.01


@pytest.mark.parametrize("alone", [True, False])
def test_a_queue_whose_runs_were_handed_back_is_left_to_others_while_its_kind_is_full(*, alone: bool) -> None:
    handed_back: list[object] = []
    slots = Slots(size=1, threads=1, ended=lambda run, _: handed_back.append(run))
    process = slots._process
    slots._mix.met({("slow", process): 1} if alone else {("slow", process): 1, ("slow", slots._async): 1})
    process.taken = process.size
    run = SimpleNamespace(claimed=SimpleNamespace(queue="slow"), taken=0.0)
    process.waiting.append(run)  # type: ignore[arg-type]
    slots.release_unstarted()
    assert handed_back == [run]
    assert slots.crowded() == ({"slow"} if alone else set())  # others in that queue may be of another kind
    process.taken = 0
    assert slots.crowded() == set()


def test_what_waits_knows_its_queues() -> None:
    waiting = Waiting()
    runs: list[Any] = [SimpleNamespace(claimed=SimpleNamespace(queue=queue)) for queue in ("a", "b", "a")]
    for run in runs:
        waiting.append(run)
    assert (set(waiting.queues), len(waiting), waiting[0]) == ({"a", "b"}, 3, runs[0])
    waiting.remove(runs[1])
    assert (set(waiting.queues), list(waiting)) == ({"a"}, [runs[0], runs[2]])
    assert [waiting.popleft(), waiting.popleft()] == [runs[0], runs[2]]
    assert not waiting
    assert not waiting.queues
