"""What would wait for itself is refused, and named in order: by a plan alone, and with what its job has already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from aaiclick_queue.errors import BadJob
from aaiclick_queue.flow.cycles import Line, refuse_cycles
from aaiclick_queue.flow.graph import Plan, PlannedGroup, Previous
from tests.dag.written import planned
from tests.planned import group_before


def group(number: int, *previous: Previous, parent: int | None = None) -> PlannedGroup:
    return PlannedGroup(number=number, name=f"g{number}", parent=parent, previous=[*previous])


def refused(
    plan: Plan, written: Sequence[Line] = (), continued: Mapping[int, Sequence[Previous]] | None = None
) -> list[str]:
    """The nodes of the cycle as the error names them."""
    with pytest.raises(BadJob, match="a cycle") as caught:
        refuse_cycles(plan, written, continued)
    return str(caught.value).split(": ", 1)[1].split(";")[0].split(" → ")


def test_a_task_behind_itself_is_refused() -> None:
    assert refused(Plan([planned(1, after=[1])])) == ["t1", "t1"]


def test_a_circle_of_tasks_is_named_in_order() -> None:
    shown = refused(Plan([planned(1, after=[3]), planned(2, after=[1]), planned(3, after=[2]), planned(4, after=[3])]))
    at = shown.index("t1")
    assert [*shown[at:-1], *shown[:at]] == ["t1", "t2", "t3"]
    assert shown[0] == shown[-1]


def test_tasks_in_any_order_and_groups_in_groups_are_no_circle() -> None:
    tasks = [planned(1, after=[2]), planned(2), planned(3, after=[group_before(4)]), planned(6, group=5)]
    refuse_cycles(Plan(tasks, [group(4, Previous(1)), group(5, parent=4)]))


def test_a_task_behind_the_group_it_is_in_is_refused_at_any_depth() -> None:
    assert refused(Plan([planned(1, group=2, after=[group_before(2)])], [group(2)]))
    assert refused(Plan([planned(1, group=3, after=[group_before(2)])], [group(2), group(3, parent=2)]))


def test_a_group_behind_its_own_task_is_refused_at_any_depth() -> None:
    assert refused(Plan([planned(1, group=2)], [group(2, Previous(1))]))
    assert refused(Plan([planned(1, group=3)], [group(2, Previous(1)), group(3, parent=2)]))


def test_a_circle_through_a_group_without_a_task_is_one() -> None:
    assert refused(Plan([planned(1, after=[group_before(2)])], [group(2, Previous(1))])).count("g2 (group)") > 0


def test_groups_in_a_circle_of_parents_are_refused() -> None:
    assert refused(Plan([planned(1)], [group(2, parent=3), group(3, parent=2)]))


def test_what_is_new_may_close_a_circle_with_what_was_written() -> None:
    written: list[Line] = [(("task", 9), ("task", 10)), (("start", 7), ("task", 9)), (("task", 9), ("end", 7))]
    refuse_cycles(Plan([planned(11, after=[10])]), written)
    assert refused(Plan([planned(11, group=7, after=[10]), planned(12, group=7, after=[group_before(7)])]), written)
    # Their numbers rise, so that the plan alone could have no circle.
    written = [(("task", 12), ("task", 11))]
    assert refused(Plan([planned(12, after=[11])]), written)


def test_what_continues_a_task_may_not_wait_for_its_end() -> None:
    assert refused(Plan([planned(2, after=[1])]), continued={1: [Previous(2)]})
    behind: list[Line] = [(("task", 1), ("task", 3))]
    assert refused(Plan([planned(4, after=[3])]), behind, {1: [Previous(4)]})
    refuse_cycles(Plan([planned(4)]), behind, {1: [Previous(4)]})


def test_a_task_has_ended_for_its_group_though_others_continue_it() -> None:
    """They may wait for that group: it does not wait for them."""
    written: list[Line] = [(("start", 5), ("task", 1)), (("task", 1), ("end", 5))]
    refuse_cycles(Plan([planned(6, after=[group_before(5)])]), written, {1: [Previous(6)]})


def test_whoever_waits_for_a_continued_task_waits_for_all_that_continues_it_in_turn() -> None:
    behind: list[Line] = [(("task", 1), ("task", 3))]
    assert refused(Plan([planned(4, after=[3])]), behind, {1: [Previous(2)], 2: [Previous(4)]})


def test_a_group_that_continues_a_task_counts_by_its_end() -> None:
    behind: list[Line] = [(("task", 1), ("task", 3))]
    plan = Plan([planned(4, group=5, after=[3])], [group(5)])
    assert refused(plan, behind, {1: [group_before(5)]})
    refuse_cycles(Plan([planned(4, group=5)], [group(5)]), behind, {1: [group_before(5)]})


def test_a_task_that_is_continued_comes_before_all_that_is_behind_it() -> None:
    written: list[Line] = [(("task", 1), ("task", 3)), (("task", 3), ("task", 1))]
    assert refused(Plan([planned(2)]), written, {1: [Previous(2)]})


def test_a_chain_of_a_hundred_thousand_is_walked() -> None:
    written: list[Line] = [(("task", number), ("task", number + 1)) for number in range(100_000)]
    refuse_cycles(Plan([planned(200_000, after=[100_000])]), written)
    assert len(refused(Plan([planned(200_000, after=[100_000])]), [*written, (("task", 200_000), ("task", 0))])) > 100
