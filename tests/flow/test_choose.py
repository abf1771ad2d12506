"""Which held tasks get in line is a decision over values: never over a limit, in line order, in fair turns."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from aaiclick_queue.flow.choose import Candidate, Chosen, Known, Lane, Limit, choose, needed

SOME_LIMITS = st.lists(
    st.tuples(
        st.sampled_from([("queue", "a"), ("queue", "b"), ("task", "mod.f"), ("key", "k1"), ("job", "1001")]),
        st.sampled_from(["running", "rate", "pause"]),
        st.booleans(),
        st.integers(0, 4),
    ),
    max_size=6,
)
SOME_LANES = st.dictionaries(
    st.builds(
        Lane,
        queue=st.sampled_from("ab"),
        entrypoint=st.sampled_from(["", "mod.f"]),
        key=st.sampled_from(["", "k1", "k2"]),
        chain=st.sampled_from(["", "o1"]),
        crowd=st.sampled_from(["", "1001", "1001/1001=3", "1001/1001=3/1002=2", "1001/1001=3/1003=1", "1004/1005=2"]),
    ),
    st.integers(1, 5),
    max_size=8,
)

CAPS = {1001: 3, 1002: 2, 1003: 1, 1005: 2}  # those of the crowds above


def limit(number: int, scope: str, name: str, kind: str = "running", *, n: int = 1, per_key: bool = False) -> Limit:
    return Limit(number, scope, name, kind, per_key, n, 60.0 if kind == "rate" else None, 0)


def chosen_of(
    lanes: dict[Lane, int], limits: list[Limit], *, used: dict[tuple[int, str], int] | None = None, most: int = 100
) -> list[Chosen]:
    known: Known = {}
    by_id = {one.id: one for one in limits}
    slots = {lane: needed(lane, by_id, known) for lane in lanes}
    for key, count in (used or {}).items():
        known[key].used = count
    numbers = iter(range(1, 1000))
    candidates = {
        lane: [Candidate(0, n, n) for n in (next(numbers) for _ in range(count))] for lane, count in lanes.items()
    }
    return choose(candidates, slots, by_id, most=most)


@given(SOME_LIMITS, SOME_LANES, st.integers(0, 20))
def test_no_slot_is_given_out_more_often_than_there_are_places(
    given_limits: list[tuple[tuple[str, str], str, bool, int]], lanes: dict[Lane, int], most: int
) -> None:
    limits = [
        limit(number, *where, kind, n=0 if kind == "pause" else n, per_key=per_key)
        for number, (where, kind, per_key, n) in enumerate(given_limits, 1)
    ]
    chosen = chosen_of(lanes, limits, most=most)
    assert len(chosen) <= most
    taken = Counter((slot.limit_id, slot.key) for one in chosen for slot in one.slots)
    allowed = {one.id: one.n for one in limits} | {0: 1} | CAPS
    assert all(count <= allowed[limit_id] for (limit_id, _), count in taken.items())
    assert len({one.task_id for one in chosen}) == len(chosen)


@given(SOME_LIMITS, SOME_LANES)
def test_whatever_has_room_gets_in(
    given_limits: list[tuple[tuple[str, str], str, bool, int]], lanes: dict[Lane, int]
) -> None:
    limits = [
        limit(number, *where, kind, n=0 if kind == "pause" else n, per_key=per_key)
        for number, (where, kind, per_key, n) in enumerate(given_limits, 1)
    ]
    known: Known = {}
    by_id = {one.id: one for one in limits}
    slots = {lane: needed(lane, by_id, known) for lane in lanes}
    numbers = iter(range(1, 1000))
    candidates = {
        lane: [Candidate(0, n, n) for n in (next(numbers) for _ in range(count))] for lane, count in lanes.items()
    }
    inside = {one.task_id for one in choose(candidates, slots, by_id, most=1000)}
    for lane, line in candidates.items():
        for one in line:
            if one.task_id not in inside:
                assert any(not slot.free_for(one.task_id) for slot in slots[lane]), "it is held without a reason"


def test_tasks_get_in_by_priority_and_age_over_all_lanes() -> None:
    lanes = [Lane("a", "", "k1", ""), Lane("a", "", "k2", "")]
    known: Known = {}
    limits = {1: limit(1, "queue", "a", n=3)}
    slots = {lane: needed(lane, limits, known) for lane in lanes}
    candidates = {
        lanes[0]: [Candidate(-5, 9, 9), Candidate(0, 1, 1)],
        lanes[1]: [Candidate(0, 2, 2), Candidate(0, 3, 3)],
    }
    assert [one.task_id for one in choose(candidates, slots, limits, most=10)] == [9, 1, 2]


def test_a_full_lane_does_not_keep_another_from_its_turn() -> None:
    saturated, free = Lane("a", "", "k1", ""), Lane("a", "", "k2", "")
    limits = [limit(1, "queue", "a", n=10), limit(2, "queue", "a", per_key=True, n=1)]
    chosen = chosen_of({saturated: 5, free: 1}, limits, used={(2, "k1"): 1})
    assert [one.task_id for one in chosen] == [6]


def test_a_limit_per_key_leaves_tasks_without_a_key_alone() -> None:
    assert len(chosen_of({Lane("a", "", "", ""): 5}, [limit(1, "queue", "a", per_key=True)])) == 5


def test_a_newcomers_turns_begin_at_the_head_of_the_line_and_not_behind_the_window() -> None:
    old, new = Lane("a", "", "old", ""), Lane("a", "", "new", "")
    fair = limit(1, "queue", "a", "fair", n=1000)
    fair.heads, fair.turn = {0: 500}, 900  # what is in line begins at turn 500, the last one given out was 900
    known: Known = {}
    slots = {lane: needed(lane, {1: fair}, known) for lane in (old, new)}
    known[1, "old"].last_turn = 900
    candidates = {old: [Candidate(0, n, n) for n in range(1, 4)], new: [Candidate(0, n, n) for n in range(10, 13)]}
    chosen = choose(candidates, slots, {1: fair}, most=100)
    assert [(one.task_id, one.order_key) for one in chosen] == [
        (10, 500),
        (11, 501),
        (12, 502),
        (1, 901),
        (2, 902),
        (3, 903),
    ]


def test_fair_turns_stop_when_the_window_is_full() -> None:
    fair = limit(1, "queue", "a", "fair", n=3)
    fair.used = 1
    known: Known = {}
    lane = Lane("a", "", "k", "")
    slots = {lane: needed(lane, {1: fair}, known)}
    assert len(choose({lane: [Candidate(0, n, n) for n in range(9)]}, slots, {1: fair}, most=100)) == 2


def test_caps_of_groups_in_a_job_are_shared_by_all_its_lanes() -> None:
    inner, outer, whole = (Lane("a", "", "", "", f"7/{crowd}") for crowd in ("7=4/8=3/9=1", "7=4/8=3", "7=4"))
    chosen = [one.task_id for one in chosen_of({inner: 3, outer: 3, whole: 3}, [])]
    assert chosen == [1, 4, 5, 7], "one of the inner group, three in all of the outer one, four of the job"


def test_a_paused_job_keeps_its_tasks_and_no_others() -> None:
    paused, capped, other = (Lane("a", "", "", "", crowd) for crowd in ("7", "7/7=5", "8/8=5"))
    chosen = [one.task_id for one in chosen_of({paused: 2, capped: 2, other: 2}, [limit(1, "job", "7", "pause", n=0)])]
    assert chosen == [5, 6]


def test_one_of_a_strict_order_gets_in_and_then_only_the_one_that_holds_it() -> None:
    lane = Lane("a", "", "", "order")
    assert [one.task_id for one in chosen_of({lane: 3}, [])] == [1]
    known: Known = {}
    slots = {lane: needed(lane, {}, known)}
    known[0, "order"].used, known[0, "order"].holders = 1, frozenset({7})
    assert choose({lane: [Candidate(0, 8, 8)]}, slots, {}, most=10) == []
    [again] = choose({lane: [Candidate(0, 7, 7), Candidate(0, 8, 8)]}, slots, {}, most=10)
    assert again.task_id == 7
