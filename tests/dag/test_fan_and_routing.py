"""What map, fan_in, when and branch build."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from aaiclick_queue import task
from aaiclick_queue.building import Building
from aaiclick_queue.builtin_calls import EXPAND, FOLD, Expand
from aaiclick_queue.errors import ArgumentsDoNotFit, BadJob, BadTask
from aaiclick_queue.fan import fan_in
from aaiclick_queue.fan import map as map_over
from aaiclick_queue.flow.cycles import refuse_cycles
from aaiclick_queue.flow.graph import Plan, PlannedTask, Previous
from aaiclick_queue.nodes import Group
from aaiclick_queue.references import renumbered
from aaiclick_queue.routing import branch, when
from aaiclick_queue.settings import Settings


@task
def files(x: int) -> list[str]:
    return [str(x)]


@task(queue="work", priority=4, max_attempts=7)
def process(file: str, size: int = 1, more: Any = None) -> int:
    return size


@task
def decide(x: int) -> Any:
    return x


@task
def total(rows: list[int], factor: int = 1) -> int:
    return sum(rows) * factor


def plan_of(building: Building) -> Plan:
    plan = building.finish(Settings.load())
    refuse_cycles(plan)
    return plan


def named(plan: Plan, name: str) -> PlannedTask:
    [found] = [one for one in plan.tasks if one.name == name]
    return found


def test_a_map_over_a_list_makes_its_nodes_at_once_in_a_group_of_its_own() -> None:
    with Building() as building:
        extra = decide(1)
        parts = process.map(["a", "b"], max_parallel=2, more=extra)
        summed = parts.sum()
    plan = plan_of(building)
    [group] = plan.groups
    assert (group.number, group.name, group.max_parallel, group.mapped) == (parts.number, "process", 2, True)
    made = [(one.name, one.group, one.map_index, msgspec.json.decode(one.task.kwargs)) for one in plan.tasks[1:3]]
    reference = {"$node": extra.number}
    assert made == [
        ("process[0]", parts.number, 0, {"file": "a", "more": reference}),
        ("process[1]", parts.number, 1, {"file": "b", "more": reference}),
    ]
    fold = named(plan, "sum")
    assert (fold.spec.entrypoint, fold.spec.queue, fold.previous) == (FOLD, "work", [Previous(parts.number, "group")])
    assert msgspec.json.decode(fold.task.kwargs) == {"how": "sum", "items": {"$group": parts.number}}
    assert fold.number == summed.number


def test_a_map_over_a_node_is_an_expander_in_the_group_that_it_fills() -> None:
    with Building(queue="jobs", priority=1) as building:
        listed, extra = files(1), decide(2)
        parts = process.map(listed, size=5, more=[extra])
    plan = plan_of(building)
    made = named(plan, "process[*]")
    assert (made.spec.entrypoint, made.spec.queue, made.spec.priority, made.group) == (EXPAND, "work", 4, parts.number)
    assert {one.number for one in made.previous} == {listed.number, extra.number}
    written = renumbered(made.task.kwargs, {listed.number: 1000, extra.number: 2000})
    call = msgspec.json.decode(written, type=Expand)
    assert (bytes(call.items), call.name, call.spec.max_attempts) == (b'{"$node":1000}', "process", 7)
    assert bytes(call.constant["more"]) == b'[{"$$node":2000}]', "named, and not filled in before the children have it"
    child = call.task_of(msgspec.Raw(b'"a"'))
    assert msgspec.json.decode(child.kwargs) == {"file": "a", "size": 5, "more": [{"$node": 2000}]}


@task(concurrency_key="of-{file}")
def keyed(file: str, other: Any = None) -> None: ...


def test_the_keys_of_a_maps_tasks_are_filled_in_for_each() -> None:
    with Building() as building:
        keyed.map(files(1))
        keyed.map(["x"])
        with pytest.raises(BadTask, match="the result of another task"):
            keyed.map(files(1), file=decide(1))
    plan = plan_of(building)
    call = msgspec.json.decode(named(plan, "keyed[*]").task.kwargs, type=Expand)
    assert call.task_of(msgspec.Raw(b'"a"')).concurrency_key == "of-a"
    assert named(plan, "keyed#2[0]").task.concurrency_key == "of-x"


def test_a_map_over_a_map_waits_for_all_of_it() -> None:
    with Building() as building:
        first = process.map(["a"])
        decide.map(first)
    made = named(plan_of(building), "decide[*]")
    assert made.previous == [Previous(first.number, "group")]
    assert bytes(msgspec.json.decode(made.task.kwargs, type=Expand).items) == b'{"$group":%d}' % first.number


def test_an_empty_list_maps_to_no_tasks() -> None:
    with Building() as building:
        process.map([]).collect()
    plan = plan_of(building)
    assert [one.name for one in plan.tasks] == ["collect"]
    assert [one.name for one in plan.groups] == ["process"]


def test_nodes_may_be_items_and_a_task_may_fold() -> None:
    with Building() as building:
        a = decide(1)
        parts = map_over(process, [a, "b"])
        parts.reduce(total, rule="all_done")
        fan_in([a, a], "last", name="latest")
        fan_in(parts, total)
    plan = plan_of(building)
    assert named(plan, "process[0]").previous == [Previous(a.number)]
    reduced = named(plan, "total")
    assert (reduced.rule, reduced.task.kwargs) == ("all_done", f'{{"rows":{{"$group":{parts.number}}}}}')
    latest = named(plan, "latest")
    assert msgspec.json.decode(latest.task.kwargs)["items"] == {"$completed": [a.number, a.number]}
    assert latest.previous == [Previous(a.number)]


def test_what_cannot_be_mapped_or_folded_is_refused() -> None:
    with pytest.raises(BadJob, match="for the body of a job"):
        process.map([1])
    with pytest.raises(BadJob, match="for the body of a job"):
        fan_in([], "sum")
    anything: Any = len
    with Building():
        for items in ("abc", {"a": 1}, 7, None):
            with pytest.raises(BadJob, match="give a list, or a node"):
                process.map(items)
        with pytest.raises(ArgumentsDoNotFit, match=r"item 1: parameter 'file'"):
            process.map(["a", 2])
        with pytest.raises(ArgumentsDoNotFit, match="has no parameter 'siz'"):
            process.map(files(1), siz=1)
        with pytest.raises(ArgumentsDoNotFit, match="parameter 'size'"):
            process.map(files(1), size="big")
        with pytest.raises(BadJob, match="no parameter left"):
            files.map([1], x=1)
        with pytest.raises(BadJob, match="give a task"):
            map_over(anything, [1])
        with pytest.raises(BadJob, match="give a task"):
            process.map(["a"]).reduce(anything)
        with pytest.raises(BadJob, match="did you mean 'concat'"):
            fan_in([files(1)], "concatenate")
        with pytest.raises(BadJob, match="a list of nodes"):
            fan_in([1], "sum")
        with pytest.raises(BadJob, match="max_parallel=0"):
            process.map(["a"], max_parallel=0)
        with pytest.raises(BadJob, match="dedupe_key"):
            process.options(dedupe_key="k").map(["a"])
        with pytest.raises(BadJob, match="use another key"):
            process.map(files(1), more={"$$node": 1})


def test_when_draws_an_arrow_with_a_choice_to_each_side() -> None:
    with Building() as building:
        condition = decide(1)
        yes, no, join = decide(condition), decide(3), decide(4)
        sides = when(condition, then=yes, otherwise=[no])
        assert sides == [yes, no]
        _ = sides >> join
    plan = plan_of(building)
    assert [one.previous for one in plan.tasks[1:]] == [
        [Previous(condition.number, "task", ("?true",))],
        [Previous(condition.number, "task", ("?false",))],
        [Previous(yes.number), Previous(no.number)],
    ]


def test_a_branch_knows_its_names_and_its_default() -> None:
    with Building() as building:
        pick = decide(1)
        a, b, both = decide(1), decide(2), decide(3)
        branch(pick, {"x": [a, both], 7: both})
        branch(pick, {"y": b}, default=(other := decide(4)))
    plan = plan_of(building)
    previous = {one.number: one.previous for one in plan.tasks}
    assert previous[a.number] == [Previous(pick.number, "task", ("x",), ("7", "x"))]
    assert previous[both.number] == [Previous(pick.number, "task", ("7", "x"), ("7", "x"))]
    assert previous[b.number] == [Previous(pick.number, "task", ("y",), ())]
    assert previous[other.number] == [Previous(pick.number, "task", ("*",), ("y",))]


def test_a_side_may_be_a_group_or_a_function_that_builds_it() -> None:
    with Building() as building:
        condition = decide(1)
        with Group("g") as group:
            decide(2)
        [given, built] = when(condition, then=group, otherwise=lambda: total([decide(3), decide(4)]))
        assert given is group
        assert built.name == "total"
        for _ in range(2):
            [empty] = when(condition, then=lambda: None)
            assert empty.kind == "group"
    plan = plan_of(building)
    assert {one.name: one.previous for one in plan.groups} == {
        "g": [Previous(condition.number, "task", ("?true",))],
        "decide: otherwise": [Previous(condition.number, "task", ("?false",))],
        "decide: then": [Previous(condition.number, "task", ("?true",))],
        "decide: then#2": [Previous(condition.number, "task", ("?true",))],
    }
    side = next(one.number for one in plan.groups if one.name == "decide: otherwise")
    assert [one.name for one in plan.tasks if one.group == side] == ["decide#3", "decide#4", "total"]


def test_what_cannot_be_routed_is_refused() -> None:
    anything: Any = 3
    with Building():
        a, b = decide(1), decide(2)
        with pytest.raises(BadJob, match="neither then= nor otherwise="):
            when(a)
        with pytest.raises(BadJob, match="decides nothing"):
            when(anything, then=a)
        with pytest.raises(BadJob, match="is not called yet"):
            when(a, then=decide)
        with pytest.raises(BadJob, match="waits for itself"):
            when(a, then=a)
        with pytest.raises(BadJob, match="a dict of names"):
            branch(a, {})
        for name in (True, None, "*", "?true", ""):
            with pytest.raises(BadJob, match="name"):
                branch(a, {name: b})  # type: ignore[dict-item]
