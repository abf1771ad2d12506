"""What a body builds: nodes, groups, arrows, references, names; and what is refused before anything is written."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pydantic
import pytest

from aaiclick_queue import job, task
from aaiclick_queue.building import Building
from aaiclick_queue.errors import ArgumentsDoNotFit, BadJob, BadTask, PayloadTooLarge
from aaiclick_queue.flow.cycles import refuse_cycles
from aaiclick_queue.flow.graph import Plan, PlannedTask, Previous
from aaiclick_queue.nodes import Group, Node
from aaiclick_queue.settings import Settings

SETTINGS = Settings.load()


@task
def extract(x: int) -> int:
    return x


@task(queue="slow", priority=3)
def load(a: Any, b: Any = None) -> Any:
    return [a, b]


@task
def total(rows: list[int]) -> int:
    return sum(rows)


def plan_of(building: Building) -> Plan:
    plan = building.finish(SETTINGS)
    refuse_cycles(plan)
    return plan


def by_name(plan: Plan) -> dict[str, PlannedTask]:
    return {one.name: one for one in plan.tasks}


def test_a_task_runs_where_no_job_is_built_and_becomes_a_node_where_one_is() -> None:
    assert extract(3) == 3
    with Building() as building:
        node = extract(3)
        assert isinstance(node, Node)
    assert extract(3) == 3
    [planned] = plan_of(building).tasks
    assert (planned.spec.entrypoint, planned.task.kwargs, planned.previous) == (extract.entrypoint, '{"x":3}', [])


def test_a_node_as_an_argument_is_a_dependency_and_a_reference() -> None:
    with Building() as building:
        a = extract(1)
        load(a, b=a)
    made = by_name(plan_of(building))["load"]
    assert made.previous == [Previous(a.number)]
    assert msgspec.json.decode(made.task.kwargs) == {"a": {"$node": a.number}, "b": {"$node": a.number}}


@dataclasses.dataclass
class Row:
    part: Any
    size: int = 1


class Tagged(msgspec.Struct, tag="t", rename="camel"):
    some_part: Any


class Model(pydantic.BaseModel):
    part: Any


@pytest.mark.parametrize(
    ("hold", "shown"),
    [
        (lambda n: [1, n], lambda r: [1, r]),
        (lambda n: (1, (n,)), lambda r: [1, [r]]),
        (lambda n: {"k": {"n": [n]}}, lambda r: {"k": {"n": [r]}}),
        (lambda n: {n}, lambda r: [r]),
        (Row, lambda r: {"part": r, "size": 1}),
        (lambda n: [Row([n])], lambda r: [{"part": [r], "size": 1}]),
        (Tagged, lambda r: {"type": "t", "somePart": r}),
        (lambda n: Model(part=n), lambda r: {"part": r}),
    ],
)
def test_a_node_is_found_inside_what_holds_it(hold: Any, shown: Any) -> None:
    with Building() as building:
        a = extract(1)
        load(hold(a))
    made = by_name(plan_of(building))["load"]
    assert made.previous == [Previous(a.number)]
    assert msgspec.json.decode(made.task.kwargs) == {"a": shown({"$node": a.number})}


def test_many_nodes_in_a_list_are_one_reference_that_counts_for_nothing_in_the_size() -> None:
    with Building() as building:
        many = [extract(x) for x in range(200)]
        total(many)
    plan = building.finish(Settings.load(payload_max_bytes=64))
    made = by_name(plan)["total"]
    assert msgspec.json.decode(made.task.kwargs) == {"rows": {"$nodes": [one.number for one in many]}}
    assert made.previous == [Previous(one.number) for one in many]
    with Building() as building:
        load("x" * 70, b=extract(1))
    with pytest.raises(PayloadTooLarge, match="the arguments of load take"):
        building.finish(Settings.load(payload_max_bytes=64))


def test_arguments_are_checked_at_the_call_and_the_error_names_the_parameter() -> None:
    anything: Any = load
    with Building():
        a = extract(1)
        with pytest.raises(ArgumentsDoNotFit, match="parameter 'x'"):
            extract.node("three")
        with pytest.raises(ArgumentsDoNotFit, match="'y'"):
            anything(a, y=1)
        with pytest.raises(ArgumentsDoNotFit, match=r"parameter 'a' .* is missing"):
            anything(b=a)
        with pytest.raises(ArgumentsDoNotFit, match=r"parameter 'a' .* holds something that JSON"):
            load([a, object()])
        circle: list[Any] = [a]
        circle.append(circle)
        with pytest.raises(ArgumentsDoNotFit, match="contains itself"):
            load(circle)
        assert str(a) == repr(a) == "<node extract>"


@pytest.mark.parametrize(
    "data", [{"$node": 1}, {"k": [{"$nodes": [1]}]}, {"$group": 7}, {"$$node": 7}, {"$completed": []}]
)
def test_data_that_looks_like_a_reference_is_refused(data: Any) -> None:
    with Building():
        with pytest.raises(BadJob, match="use another key"):
            load(data)
        with pytest.raises(BadJob, match="use another key"):
            load(extract(1), b=data)
        load({"$group": {"_id": "$x"}}, b='{"$node": 1}')


@pytest.mark.parametrize(
    ("misuse", "says"),
    [
        (bool, "when"),
        (list, "map"),
        (lambda n: n + 1, "calculate"),
        (lambda n: 1 - n, "calculate"),
        (lambda n: n.rows, "take the part"),
        (lambda n: n["rows"], "take the part"),
        (len, "look into"),
        (lambda n: n > 3, "calculate"),
        (lambda n: n == 3, "when"),
        (lambda n: n(), "call it"),
        (int, "calculate"),
        (lambda n: f"file-{n}", "make the text"),
        (lambda n: 3 in n, "look into"),
    ],
)
def test_a_node_taken_for_a_value_says_what_to_do_instead(misuse: Any, says: str) -> None:
    with Building(), pytest.raises(BadJob, match=f"extract has no value yet.*{says}"):
        misuse(extract(1))


async def test_awaiting_a_node_says_what_to_do_instead() -> None:
    with Building(), pytest.raises(BadJob, match="await cannot work: pass it"):
        await extract(1)


def edges(plan: Plan) -> set[tuple[str, str]]:
    joints: list[Any] = [*plan.tasks, *plan.groups]
    names = {one.number: one.name for one in joints}
    return {(names[before.number], one.name) for one in joints for before in one.previous}


def test_arrows_go_both_ways_and_take_lists_on_either_side() -> None:
    with Building() as building:
        a, b, c, d, e, f = (extract.options(name=name)(1) for name in "abcdef")
        assert (a >> b) is b
        assert (c << b) is c
        assert ([a, c] >> d) is d
        both = [e, f]
        assert (d >> both) is both
        assert (both << a) is both
        assert e.depends_on(b, [c]) is e
        _ = a >> b, a >> b
    plan = plan_of(building)
    wanted = {"ab", "bc", "ad", "cd", "de", "df", "ae", "af", "be", "ce"}
    assert edges(plan) == {(pair[0], pair[1]) for pair in wanted}
    assert sum(len(one.previous) for one in plan.tasks) == len(wanted), "a repeated arrow is one"


def test_depends_on_takes_all_of_some_and_any_of_others() -> None:
    with Building() as building:
        a, b, c = extract(1), extract(2), extract(3)
        d = extract(4).depends_on(all_of=[a], any_of=[b, c])
        with pytest.raises(BadJob, match="in any case and as one of several"):
            d.depends_on(any_of=a)
    *_, made = plan_of(building).tasks
    assert [(one.number, one.any_of) for one in made.previous] == [
        (a.number, False), (b.number, True), (c.number, True),
    ]  # fmt: skip


def test_groups_nest_by_with_by_parent_and_by_their_list() -> None:
    with Building() as building:
        with Group("outer", max_parallel=2) as outer:
            extract(1)
            with Group("inner"):
                extract(2)
        below = Group("below", parent=outer)
        with below:
            extract(3)
        late = extract(4)
        loose = Group("listed", [late, below])
        load(outer)
    plan = plan_of(building)
    names = {one.number: one.name for one in plan.groups}
    where = {one.name: names.get(one.group or 0) for one in plan.tasks}
    assert where == {
        "extract": "outer",
        "extract#2": "inner",
        "extract#3": "below",
        "extract#4": "listed",
        "load": None,
    }
    assert [(one.name, names.get(one.parent or 0), one.max_parallel) for one in plan.groups] == [
        ("outer", None, 2), ("inner", "outer", None), ("below", "listed", None), ("listed", None, None),
    ]  # fmt: skip
    made = plan.tasks[-1]
    assert (made.previous, made.task.kwargs) == (
        [Previous(outer.number, "group")],
        f'{{"a":{{"$group":{outer.number}}}}}',
    )
    assert loose.kind == "group"


def test_all_four_kinds_of_arrows_are_drawn() -> None:
    with Building() as building:
        a, b = extract(1), extract.options(name="b")(2)
        with Group("g") as g:
            extract(3)
        with Group("h") as h:
            extract(4)
        _ = a >> g, g >> h, h >> b, a >> b
    plan = plan_of(building)
    assert edges(plan) == {("extract", "g"), ("g", "h"), ("h", "b"), ("extract", "b")}


def test_names_are_those_of_the_functions_and_numbered_from_the_second_on() -> None:
    with Building() as building:
        for make in (extract, extract, load, extract.options(name="extract#3"), extract):
            make(1)
    assert [one.name for one in plan_of(building).tasks] == ["extract", "extract#2", "load", "extract#3", "extract#4"]


def test_two_equal_explicit_names_are_refused() -> None:
    with Building() as building:
        extract.options(name="twice")(1)
        load.options(name="twice")(1)
    with pytest.raises(BadJob, match="two tasks of the job are called 'twice'"):
        plan_of(building)
    with Building() as building:
        Group("twice")
        Group("twice")
    with pytest.raises(BadJob, match="two groups of the job are called 'twice'"):
        plan_of(building)


def test_the_names_inside_a_job_that_is_used_twice_are_numbered() -> None:
    @job
    def part(x: int) -> Any:
        with Group("checks"):
            return extract.options(name="check")(x)

    @job
    def doubled() -> Any:
        extract.options(name="same")(1)
        return extract.options(name="same")(2)

    with Building() as building:
        load.options(name="check")(1)
        part(1)
        part(2)
    plan = plan_of(building)
    assert [one.name for one in plan.tasks] == ["check", "check#2", "check#3"]
    assert [one.name for one in plan.groups] == ["part", "checks", "part#2", "checks#2"]
    with Building(), pytest.raises(BadJob, match="two tasks of the job are called 'same'"):
        doubled()


def test_the_nodes_own_options_win_over_those_of_the_job() -> None:
    with Building(queue="jobs", priority=7, correlation_id="c") as building:
        extract(1)
        load(1)
        load.options(queue="mine", priority=0, correlation_id="d", rule="all_done", critical=False)(1)
    found = [
        (one.spec.queue, one.spec.priority, one.task.correlation_id, one.rule, one.critical)
        for one in plan_of(building).tasks
    ]
    assert found == [
        ("jobs", 7, "c", "all_success", True),
        ("slow", 3, "c", "all_success", True),
        ("mine", 0, "d", "all_done", False),
    ]


def test_an_unknown_rule_is_refused_with_the_nearest() -> None:
    with pytest.raises(BadJob, match="did you mean 'all_done'"):
        extract.options(rule="all_don")


def test_a_node_that_starts_at_once_cannot_take_results() -> None:
    with Building():
        a = extract(1)
        with pytest.raises(BadJob, match=r"extract has rule='always' and takes extract"):
            extract.options(rule="always")(a)
        extract.options(rule="always")(1).depends_on(a)


def test_a_cycle_is_refused_and_named_also_through_groups() -> None:
    with Building() as building:
        a, b, c = extract(1), extract(2), extract(3)
        _ = a >> b >> c >> a
    with pytest.raises(BadJob, match="extract#3 → extract → extract#2 → extract#3"):
        plan_of(building)
    with Building() as building:
        with Group("g") as g:
            inside = extract(1)
        behind = load(g)
        _ = behind >> inside
    with pytest.raises(BadJob, match="a cycle"):
        plan_of(building)
    with Building() as building:
        one, other = Group("one"), Group("other")
        one.add(other)
        other.add(one)
    with pytest.raises(BadJob, match="a cycle"):
        plan_of(building)
    with Building():
        a = extract(1)
        with pytest.raises(BadJob, match="what waits for itself never starts"):
            _ = a >> a


def test_nodes_of_another_job_and_what_is_no_node_are_refused() -> None:
    with Building() as other:
        strange = extract(1)
        group = Group("g")
    with Building():
        here = extract(2)
        for there in (strange, group):
            with pytest.raises(BadJob, match="different jobs"):
                _ = there >> here
            with pytest.raises(BadJob, match="different jobs"):
                _ = here >> there
        with pytest.raises(BadJob, match="belongs to another job"):
            extract(strange)
        with pytest.raises(BadJob, match="is not called yet"):
            _ = here >> extract
        with pytest.raises(BadJob, match="is no node"):
            _ = here >> 3
        with pytest.raises(BadJob, match="another job"), group:
            pass
    plan_of(other)
    with pytest.raises(BadJob, match="is written already"):
        strange.depends_on(group)
    with pytest.raises(BadJob, match="for the body of a job"), Group("alone"):
        pass


def test_a_dedupe_key_is_of_one_job() -> None:
    once = extract.options(dedupe_key="k", dedupe="skip")
    with Building() as building:
        assert once(1) is once(2)
        with pytest.raises(BadJob, match="have the dedupe key 'k'"):
            load.options(dedupe_key="k")(1)
        with pytest.raises(BadJob, match="a key can raise or skip"):
            load.options(dedupe_key="other", dedupe="replace")(1)
    assert len(plan_of(building).tasks) == 1
    with Building() as building:
        once(1)
    assert len(plan_of(building).tasks) == 1


@task(concurrency_key="tenant-{tenant}")
def per_tenant(tenant: str, rows: Any = None) -> None: ...


def test_a_key_is_filled_in_from_arguments_that_are_known() -> None:
    with Building() as building:
        per_tenant("a", rows=extract(1))
        with pytest.raises(BadTask, match="which is the result of another task"):
            per_tenant(extract(1))
    [made] = (one for one in plan_of(building).tasks if one.name == "per_tenant")
    assert made.task.concurrency_key == "tenant-a"


def test_nodes_as_keys_of_a_dict_are_refused() -> None:
    with Building(), pytest.raises(BadJob, match="the key of a dict"):
        load({extract(1): extract(2)})
