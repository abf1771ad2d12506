"""A plan as gates: where each task waits, by which rule and for how many, and where its end arrives."""

from __future__ import annotations

from typing import Any

import pytest

from aaiclick_queue.flow.graph import Edge, Gate, Layout, Outside, Previous, lay_out, without_doubles
from aaiclick_queue.spec import RULES
from tests.planned import Job, group_before

LEFT = Previous(0, choices=("left",), known=("left", "right"))


def laid_out(job: Job, **given: Any) -> Layout:
    return lay_out(job.plan, **given)


def gate(layout: Layout, number: int) -> Gate:
    """The one gate with this number."""
    [found] = [one for one in layout.gates if one.number == number]
    return found


def arrives_at(layout: Layout, number: int) -> set[tuple[str, int]]:
    """What is waited for at a gate: tasks whose exit it is, and gates with an edge to it."""
    tasks = {("task", task) for task, at in layout.exits.items() if at == number}
    return tasks | {("gate", edge.gate) for edge in layout.edges if edge.next == number}


def test_a_task_that_waits_for_nothing_has_no_gate() -> None:
    job = Job()
    job.tasks(3)
    layout = laid_out(job)
    assert (layout.gates, layout.edges, layout.waits, layout.exits) == ([], [], {}, {})
    assert layout.members == {None: 3}
    assert layout.after is None


def test_a_task_that_tells_one_gate_tells_it_by_itself() -> None:
    job = Job()
    one, other = job.tasks(2)
    behind = job.task(one, other)
    layout = laid_out(job)
    assert layout.gates == [Gate(layout.waits[behind], "WAIT", "all_success", 2)]
    assert layout.exits == dict.fromkeys((one, other), layout.waits[behind])
    assert not layout.edges


def test_a_task_that_tells_several_gates_has_one_of_its_own_that_tells_them() -> None:
    job = Job()
    first, other = job.tasks(2)
    behind, further = job.task(first), job.task(first, other)
    layout = laid_out(job)
    assert gate(layout, first) == Gate(first, "TASK", "whole", 1)
    assert layout.exits == {first: first, other: layout.waits[further]}
    assert {*layout.edges} == {Edge(first, layout.waits[behind]), Edge(first, layout.waits[further])}


def test_a_choice_is_asked_of_a_gate_of_the_task_also_where_it_is_the_only_one() -> None:
    job = Job()
    chooser = job.task()
    behind = job.task(LEFT._replace(number=chooser))
    layout = laid_out(job)
    assert layout.exits == {chooser: chooser}
    assert layout.edges == [Edge(chooser, layout.waits[behind], ("left",), ("left", "right"))]


def test_tasks_that_wait_for_the_same_by_the_same_rule_share_a_gate_and_others_do_not() -> None:
    job = Job()
    first, other = job.tasks(2)
    alike = job.tasks(2, first, other)
    turned = job.task(other, first)
    by_another_rule = job.task(first, other, rule="all_done")
    layout = laid_out(job)
    assert len({layout.waits[number] for number in (*alike, turned)}) == 1
    assert gate(layout, layout.waits[by_another_rule]).rule == "all_done"
    assert len([one for one in layout.gates if one.kind == "WAIT"]) == 2


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule != "always"])
def test_the_rule_of_a_task_is_that_of_its_gate(rule: str) -> None:
    job = Job()
    first = job.task()
    behind = job.task(first, rule=rule)
    layout = laid_out(job)
    assert gate(layout, layout.waits[behind]).rule == rule


def test_what_always_runs_waits_for_nothing_but_its_choices() -> None:
    job = Job()
    chooser, other = job.tasks(2)
    at_once, chosen = job.task(other, rule="always"), job.task(LEFT._replace(number=chooser), other, rule="always")
    layout = laid_out(job)
    assert at_once not in layout.waits
    assert gate(layout, layout.waits[chosen]) == Gate(layout.waits[chosen], "WAIT", "all_done", 1)
    assert arrives_at(layout, layout.waits[chosen]) == {("gate", chooser)}


def test_alternatives_are_a_gate_of_their_own_beside_what_is_needed() -> None:
    job = Job()
    needed, one, other = job.tasks(3)
    behind = job.task(needed, Previous(one, any_of=True), Previous(other, any_of=True), rule="all_done")
    layout = laid_out(job)
    both = gate(layout, layout.waits[behind])
    assert (both.rule, both.total) == ("all_success", 2)
    rules = {gate(layout, source).rule: arrives_at(layout, source) for _, source in arrives_at(layout, both.number)}
    assert rules == {"all_done": {("task", needed)}, "one_success": {("task", one), ("task", other)}}


def test_a_node_that_is_named_twice_counts_once_and_by_all_its_choices() -> None:
    job = Job()
    chooser = job.task()
    sides = [Previous(chooser, choices=(side,), known=(side, "up")) for side in ("right", "left")]
    behind = job.task(Previous(chooser), *sides)
    layout = laid_out(job)
    assert gate(layout, layout.waits[behind]).total == 1
    assert layout.edges == [Edge(chooser, layout.waits[behind], ("left", "right"), ("left", "right", "up"))]


def test_an_alternative_that_is_needed_too_is_needed() -> None:
    twice = frozenset({Previous(1), Previous(1, any_of=True)})
    assert without_doubles(twice) == {Previous(1)}


def test_a_task_and_a_group_of_one_number_are_two_nodes() -> None:
    both = frozenset({Previous(1), group_before(1)})
    assert without_doubles(both) == both


def test_a_group_counts_the_tasks_of_its_subtree_and_tells_those_behind_it() -> None:
    job = Job()
    outer = job.group()
    inner = job.group(parent=outer)
    job.task(group=outer)
    job.tasks(2, group=inner)
    behind = job.task(group_before(outer))
    layout = laid_out(job)
    assert gate(layout, outer) == Gate(outer, "GROUP", "whole", 3)
    assert gate(layout, inner) == Gate(inner, "GROUP", "whole", 2, outer)
    assert layout.members == {None: 4, outer: 3, inner: 2}
    assert layout.edges == [Edge(outer, layout.waits[behind])]


def test_tasks_of_a_group_wait_at_its_entry_and_those_of_nested_groups_at_both() -> None:
    job = Job()
    first, other = job.tasks(2)
    outer = job.group(first)
    inner = job.group(other, parent=outer)
    in_outer, in_inner = job.task(group=outer), job.task(group=inner)
    layout = laid_out(job)
    assert layout.entries == {outer: layout.waits[in_outer], inner: layout.waits[in_inner]}
    assert arrives_at(layout, layout.entries[outer]) == {("task", first)}
    both = gate(layout, layout.entries[inner])
    assert (both.rule, both.total) == ("all_success", 2)
    assert ("gate", layout.entries[outer]) in arrives_at(layout, both.number)


def test_a_group_that_waits_for_nothing_has_the_entry_of_the_one_around_it() -> None:
    job = Job()
    first = job.task()
    outer = job.group(first)
    inner = job.group(parent=outer)
    inside = job.task(group=inner)
    layout = laid_out(job)
    assert layout.entries[outer] == layout.entries[inner] == layout.waits[inside]


def test_a_task_behind_others_of_its_group_does_not_wait_at_the_entry_too() -> None:
    job = Job()
    first = job.task()
    outer = job.group(first)
    inner = job.group(parent=outer)
    one, deep = job.task(group=outer), job.task(group=inner)
    behind = job.task(one, deep, group_before(inner), group=outer)
    layout = laid_out(job)
    assert arrives_at(layout, layout.waits[behind]) == {("task", one), ("task", deep), ("gate", inner)}
    assert gate(layout, layout.waits[behind]).total == 3


@pytest.mark.parametrize(
    "why", ["a rule", "an alternative", "one of it outside", "a group outside", "all in the group around"]
)
def test_a_task_waits_at_the_entry_of_its_group_where_those_before_it_do_not_tell_how_that_came_out(why: str) -> None:
    job = Job()
    first, stranger = job.tasks(2)
    outer = job.group(first)
    inner, beside = job.group(first, parent=outer), job.group()
    job.task(group=beside)
    inside, around = job.task(group=inner), job.task(group=outer)
    given: dict[str, tuple[list[Any], str]] = {
        "a rule": ([inside], "all_done"),
        "an alternative": ([inside, Previous(inside, any_of=True)], "all_success"),
        "one of it outside": ([inside, stranger], "all_success"),
        "a group outside": ([inside, group_before(beside)], "all_success"),
        "all in the group around": ([around], "all_success"),
    }
    previous, rule = given[why]
    behind = job.task(*previous, group=inner, rule=rule)
    layout = laid_out(job)
    assert ("gate", layout.entries[inner]) in arrives_at(layout, layout.waits[behind])


def test_groups_without_a_task_are_done_and_nobody_waits_for_them() -> None:
    job = Job()
    first = job.task()
    empty = job.group(first)
    nested = job.group(parent=empty)
    behind, both = job.task(group_before(empty)), job.task(group_before(nested), first)
    layout = laid_out(job)
    assert behind not in layout.waits
    assert gate(layout, layout.waits[both]).total == 1
    assert (gate(layout, empty).total, gate(layout, nested).total) == (0, 0)


def test_a_group_that_was_written_before_without_a_task_is_done_too() -> None:
    job = Job()
    behind = job.task(group_before(4711))
    assert behind in laid_out(job).waits
    assert behind not in laid_out(job, empty=[4711]).waits


def test_what_was_written_before_is_waited_for_from_outside() -> None:
    job = Job()
    behind = job.task(LEFT._replace(number=4711), group_before(4712))
    layout = laid_out(job)
    at = layout.waits[behind]
    assert gate(layout, at).total == 2
    assert {*layout.outside} == {Outside(LEFT._replace(number=4711), at), Outside(group_before(4712), at)}
    assert not layout.edges


def test_a_task_that_is_added_to_a_group_of_before_waits_at_the_gate_of_that() -> None:
    job = Job()
    alone, behind = job.task(group=4711), job.task(4713, group=4711)
    inner = job.group(parent=4711)
    deep = job.task(group=inner)
    layout = laid_out(job, entries={4711: 4712})
    assert layout.waits[alone] == layout.waits[deep] == layout.entries[inner] == 4712
    assert Outside(Previous(4712, "gate"), layout.waits[behind]) in layout.outside
    assert layout.members == {None: 3, 4711: 3, inner: 1}


def test_what_a_task_has_returned_is_one_gate_that_is_whole_when_all_of_it_is() -> None:
    job = Job()
    one, other = job.tasks(2)
    empty = job.group()
    job.task(one)
    layout = laid_out(job, returned=[Previous(one), Previous(other), group_before(empty)])
    assert layout.after is not None
    assert gate(layout, layout.after) == Gate(layout.after, "AFTER", "whole", 2)
    assert arrives_at(layout, layout.after) == {("gate", one), ("task", other)}
    assert len({made.number for made in layout.gates}) == len(layout.gates)


def test_a_task_that_returns_nothing_but_empty_groups_is_not_continued() -> None:
    job = Job()
    empty = job.group()
    assert laid_out(job, returned=[group_before(empty)]).after is None
