"""Ids: they grow, never repeat within a process, and follow the database's clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaiclick_queue.ids import NODES, SEQUENCES, IdSource

SECONDS = 1_700_000_000.0


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@given(st.lists(st.tuples(st.integers(0, 9000), st.floats(0, 0.01)), max_size=20))
def test_ids_grow_and_never_repeat(draws: list[tuple[int, float]]) -> None:
    clock = Clock()
    source = IdSource(7, SECONDS, clock)
    ids: list[int] = []
    for count, pause in draws:
        drawn = source.take(count)
        assert len(drawn) == count
        ids += drawn
        clock.now += pause
    assert ids == sorted(set(ids))


def test_an_id_carries_its_millisecond_its_node_and_a_sequence() -> None:
    [task_id] = IdSource(513, SECONDS, Clock()).take(1)
    assert task_id >> 22 == 1_700_000_000_000
    assert (task_id >> 12) & (NODES - 1) == 513
    assert 0 <= task_id & (SEQUENCES - 1) < SEQUENCES
    assert 0 < task_id < 2**63


def test_a_clock_that_stands_still_or_goes_back_gives_new_ids_all_the_same() -> None:
    clock = Clock()
    source = IdSource(1, SECONDS, clock)
    before = source.take(5000)
    clock.now -= 3600
    after = source.take(5000)
    assert after[0] > before[-1]


def test_two_processes_that_share_a_node_part_by_their_sequence() -> None:
    starts = {IdSource(1, SECONDS, Clock()).take(1)[0] & (SEQUENCES - 1) for _ in range(50)}
    assert len(starts) > 10


@pytest.mark.parametrize("node", [0, NODES, -1])
def test_a_node_outside_its_bits_is_refused(node: int) -> None:
    with pytest.raises(ValueError, match="1…1023"):
        IdSource(node)


def test_no_ids_for_nothing() -> None:
    assert IdSource(1).take(0) == []
