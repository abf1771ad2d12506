"""What chains, groups and chords build: nodes, arguments, dependencies, options; and what is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from aaiclick_queue import EndedTask, task
from aaiclick_queue.building import Building
from aaiclick_queue.canvas import chain, chord, group, signature
from aaiclick_queue.errors import ArgumentsDoNotFit, BadJob, BadTask
from aaiclick_queue.flow.graph import PlannedTask
from aaiclick_queue.nodes import Node
from aaiclick_queue.settings import Settings
from aaiclick_queue.signatures import Canvas

SETTINGS = Settings.load({})


@task
def add(x: int, y: int = 0) -> int:
    return x + y


@task(queue="slow")
def mul(x: int, y: int = 1) -> int:
    return x * y


@task
def total(numbers: list[int]) -> int:
    return sum(numbers)


@task
def done() -> str:
    return "done"


@task
def alert(ended: EndedTask, channel: str = "ops") -> None: ...


class Built:
    """The plan of a canvas, with numbers from 1 in the order of the nodes."""

    def __init__(self, canvas: Canvas) -> None:
        with Building() as building:
            self.value = canvas()
        self.place = {node.number: at for at, node in enumerate(building.nodes, start=1)}
        self.plan = building.finish(SETTINGS)

    def __getitem__(self, number: int) -> PlannedTask:
        return self.plan.tasks[number - 1]

    def kwargs(self, number: int) -> Any:
        return self._moved(msgspec.json.decode(self[number].task.kwargs))

    def waits(self, number: int) -> list[int]:
        return [self.place[one.number] for one in self[number].previous]

    def numbers(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self.numbers(one) for one in value]
        assert isinstance(value, Node)
        return self.place[value.number]

    def _moved(self, value: Any) -> Any:
        match value:
            case {"$node": number}:
                return f"#{self.place[number]}"
            case {"$nodes": numbers}:
                return [f"#{self.place[number]}" for number in numbers]
            case dict():
                return {key: self._moved(one) for key, one in value.items()}
            case list():
                return [self._moved(one) for one in value]
        return value


def test_a_signature_is_a_call_that_has_not_happened() -> None:
    one = add.s(2, y=3)
    assert (one.args, one.kwargs, one.immutable) == ((2,), {"y": 3}, False)
    assert repr(one) == "add(2, y=3)"
    assert one() == 5
    assert add.s(2)(4) == 6
    assert add.s(2)(4) == add(4, 2)
    assert add.s(2).clone((4,), {}).args == (4, 2)
    assert add.si(2, 3).immutable


def test_each_step_of_a_chain_gets_the_result_before_it_first() -> None:
    for canvas in (
        chain(add.s(2, 2), mul.s(3), add.s(1)),
        add.s(2, 2) | mul.s(3) | add.s(1),
        chain([add.s(2, 2), mul.s(3) | add.s(1)]),
        chain(add.s(2, 2) | mul.s(3), add.s(1)),
    ):
        built = Built(canvas)
        assert [built.kwargs(n) for n in (1, 2, 3)] == [{"x": 2, "y": 2}, {"x": "#1", "y": 3}, {"x": "#2", "y": 1}]
        assert [built.waits(n) for n in (1, 2, 3)] == [[], [1], [2]]
        assert built.numbers(built.value) == 3
    assert repr(add.s(2, 2) | mul.s(3)) == "add(2, 2) | mul(3)"


def test_an_immutable_step_waits_and_takes_nothing() -> None:
    built = Built(add.s(1) | done.si() | mul.si(3))
    assert [built.kwargs(n) for n in (1, 2, 3)] == [{"x": 1}, {}, {"x": 3}]
    assert [built.waits(n) for n in (1, 2, 3)] == [[], [1], [2]]
    assert Built(add.s(1) | done.s().set(immutable=True)).kwargs(2) == {}


def test_a_group_in_a_chain_gets_the_result_each_and_gives_a_list() -> None:
    built = Built(add.s(1) | group(add.s(10), mul.s(10)) | total.s())
    assert [built.kwargs(n) for n in (2, 3, 4)] == [
        {"x": "#1", "y": 10},
        {"x": "#1", "y": 10},
        {"numbers": ["#2", "#3"]},
    ]
    assert [built.waits(n) for n in (2, 3, 4)] == [[1], [1], [2, 3]]
    assert built.numbers(built.value) == 4


def test_a_chord_is_a_group_and_what_comes_after_it() -> None:
    header = [add.s(i) for i in range(3)]
    for canvas in (chord(header, total.s()), chord(group(header), total.s()), group(header) | total.s()):
        built = Built(canvas)
        assert built.kwargs(4) == {"numbers": ["#1", "#2", "#3"]}
        assert built.numbers(built.value) == 4
    built = Built(chord((add.s(i) for i in range(3)), done.si()))
    assert (built.kwargs(4), built.waits(4)) == ({}, [1, 2, 3])
    with Building():
        assert isinstance(chord(header)(total.s()), Node)


def test_canvases_nest() -> None:
    built = Built(group(add.s(1) | mul.s(2), chord([add.s(3), add.s(4)], total.s()), add.s(5) | group(mul.s(6))))
    assert built.numbers(built.value) == [2, 5, [7]]
    built = Built(group(add.s(1), group(add.s(2), add.s(3))) | group(total.s(), total.s()))
    assert built.numbers(built.value) == [4, 5]
    assert built.kwargs(4) == built.kwargs(5) == {"numbers": ["#1", "#2", "#3"]}
    built = Built(chain(group(add.s(1), add.s(2)), group(total.s() | add.s(1)), total.s()))
    assert built.kwargs(5) == {"numbers": ["#4"]}


def test_many_of_a_group_are_one_reference() -> None:
    built = Built(chord([add.s(i) for i in range(200)], total.s()))
    assert "$nodes" in built[201].task.kwargs
    assert built.kwargs(201) == {"numbers": [f"#{n}" for n in range(1, 201)]}


def test_a_group_of_nothing_is_an_empty_list_and_what_follows_still_waits() -> None:
    assert Built(group([])).value == []
    built = Built(chord([], total.s()))
    assert (built.kwargs(1), built.waits(1)) == ({"numbers": []}, [])
    built = Built(add.s(1) | group([]) | total.s())
    assert (built.kwargs(2), built.waits(2)) == ({"numbers": []}, [1])
    built = Built(add.s(1) | group(group([]).set(name="none"), group([]).set(name="no"), add.si(2)) | done.si())
    assert (built.kwargs(2), built.waits(3)) == ({"x": 2}, [1, 2])


@task
def anything(value: Any) -> None: ...


def test_what_follows_a_group_of_groups_of_nothing_waits_too() -> None:
    built = Built(add.s(1) | group(group([]).set(name="none")) | anything.s())
    assert (built.kwargs(2), built.waits(2)) == ({"value": [[]]}, [1])


def test_partial_arguments_go_to_those_with_which_it_starts() -> None:
    assert Built((add.s(2) | mul.s(3)).clone((7,))).kwargs(1) == {"x": 7, "y": 2}
    built = Built(group(add.s(1), done.si(), mul.s()).clone((7,), {}))
    assert [built.kwargs(n) for n in (1, 2, 3)] == [{"x": 7, "y": 1}, {}, {"x": 7}]
    whole = chord([add.s(1)], total.s())
    assert Built(whole.clone((7,))).kwargs(1) == {"x": 7, "y": 1}
    assert Built(whole).kwargs(1) == {"x": 1}
    with Building():
        assert isinstance((add.s(2) | mul.s(3))(7), Node)
    for canvas in (done.si(), done.si() | add.s(), group(done.si(), done.si())):
        with pytest.raises(ArgumentsDoNotFit, match="argument"):
            canvas.clone((1,))


def test_options_stay_with_the_signature_and_reach_those_that_have_none() -> None:
    step = add.s(1).set(queue="mine", priority=3)
    built = Built(chain(step, mul.s(2), mul.s(3).set(countdown=9)).set(queue="all", countdown=5, max_attempts=7))
    specs = [(one.spec.queue, one.spec.priority, one.spec.max_attempts, one.task.countdown) for one in built.plan.tasks]
    assert specs == [("mine", 3, 7, 5.0), ("all", 0, 7, None), ("all", 0, 7, 9.0)]
    built = Built(group(add.s(1), mul.s(2)).options(eta=None, expires=60) | total.s())
    assert [one.task.expires for one in built.plan.tasks] == [60.0, 60.0, None]
    assert step.given == {"queue": "mine", "priority": 3}


def test_what_is_set_on_a_part_stays_with_that_part() -> None:
    inner = (add.s(1) | add.s(2)).set(queue="inner", priority=1)
    built = Built((inner | add.s(3) | group(add.s(4))).set(queue="outer", priority=2, max_attempts=5))
    found = [(one.spec.queue, one.spec.priority, one.spec.max_attempts) for one in built.plan.tasks]
    assert found == [("inner", 1, 5), ("inner", 1, 5), ("outer", 2, 5), ("outer", 2, 5)]


def test_one_moment_to_start_takes_the_place_of_the_other() -> None:
    from datetime import UTC, datetime

    at = datetime(2030, 1, 1, tzinfo=UTC)
    built = Built(group(add.s(1).set(countdown=3), add.s(2)).set(eta=at))
    assert [(one.task.countdown, one.task.eta) for one in built.plan.tasks] == [(3.0, None), (None, at)]
    built = Built(chain(add.s(1).set(countdown=3).set(eta=at), add.s(2)))
    assert (built[1].task.countdown, built[1].task.eta) == (None, at)


def test_composing_and_setting_changes_nothing_that_was_there() -> None:
    one, two = add.s(1), mul.s(2)
    both = one | two
    one.set(queue="later").link(done.si())
    three = both | add.s(3)
    three.set(queue="x")
    assert len(both.tasks) == 2
    assert [step.spec.queue for step in Built(both).plan.tasks] == ["default", "slow"]
    callback = mul.s(1)
    one.link(callback)
    callback.set(queue="x").take((5,), {})
    assert [(step.given, step.args) for step in one.callbacks] == [({}, ()), ({}, (1,))]
    other = one.clone()
    other.kwargs["y"] = 1
    assert one.kwargs == {}
    other = one.options(queue="other")
    assert (one.given["queue"], other.given["queue"]) == ("later", "other")


def test_a_callback_gets_the_result_and_its_failure_is_its_own() -> None:
    first = add.s(1)
    assert first.link(mul.s(5)).given == {}
    first.link(done.si() | add.si(3).set(critical=True))
    built = Built(first | mul.s(2))
    made = {one.name: n for n, one in enumerate(built.plan.tasks, start=1)}
    assert made == {"add": 1, "mul": 2, "done": 3, "add#2": 4, "mul#2": 5}
    assert (built.kwargs(2), built.waits(2), built[2].critical) == ({"x": "#1", "y": 5}, [1], False)
    assert (built.waits(3), built[3].critical) == ([1], False)
    assert (built.waits(4), built[4].critical) == ([3], True)
    assert (built.kwargs(5), built[5].critical) == ({"x": "#1", "y": 2}, True)
    assert built.numbers(built.value) == 5


def test_a_callback_of_a_group_gets_the_list() -> None:
    whole = group(add.s(1), add.s(2))
    whole.link(total.s())
    built = Built(whole)
    assert built.kwargs(3) == {"numbers": ["#1", "#2"]}
    assert built.numbers(built.value) == [1, 2]
    assert Built(group(add.s(1)).set(link=[total.s(), done.si()])).plan.tasks[2].name == "done"


def hooks_of(one: PlannedTask) -> Any:
    return msgspec.json.decode(one.spec.hooks or "{}")


def test_error_callbacks_are_hooks_of_each_task_that_may_fail() -> None:
    own = mul.s(2).on_error(alert.s("mul"))
    built = Built((add.s(1) | own | group(add.s(), add.s())).on_error(alert.s(channel="all").set(queue="alerts")))
    everywhere = {"entrypoint": alert.entrypoint, "queue": "alerts", "kwargs": {"channel": "all"}}
    assert [hooks_of(one) for one in built.plan.tasks] == [
        {"failure": everywhere},
        {"failure": everywhere, "failure.2": {"entrypoint": alert.entrypoint, "kwargs": {"channel": "mul"}}},
        {"failure": everywhere},
        {"failure": everywhere},
    ]
    assert hooks_of(Built(add.s(1).set(link_error=alert)).plan.tasks[0]) == {
        "failure": {"entrypoint": alert.entrypoint}
    }
    assert hooks_of(Built(add.s(1).on_error(done.si())).plan.tasks[0]) == {
        "failure": {"entrypoint": done.entrypoint, "kwargs": {}, "tells": False}
    }
    named = signature("elsewhere.alert", kwargs={"level": 3})
    assert hooks_of(Built(add.s(1).on_error(named)).plan.tasks[0]) == {
        "failure": {"entrypoint": "elsewhere.alert", "kwargs": {"level": 3}}
    }
    kept = add.options(on_failure=alert).s(1).on_error(alert.s("x"))
    assert list(hooks_of(Built(kept).plan.tasks[0])) == ["failure", "failure.2"]


@task
def celery_errback(request: Any, exc: Any, traceback: Any) -> None: ...


@pytest.mark.parametrize(
    ("errback", "says"),
    [
        (celery_errback.s(), r"def celery_errback\(ended: EndedTask\)"),
        (alert.s(chanel="x"), "did you mean 'channel'"),
        (alert.s(7), "parameter 'channel'"),
        (alert.s().set(countdown=3), "countdown cannot be set"),
        (add.s(1) | add.s(2), "the signature of one task"),
        (print, "the signature of one task"),
        (signature("some.where", (1,)), "by name"),
        (signature(alert).set(link=done.si()), "callbacks itself"),
    ],
)
def test_error_callbacks_that_cannot_be_called_are_refused(errback: Any, says: str) -> None:
    with pytest.raises((BadTask, ArgumentsDoNotFit), match=says):
        add.s(1).link_error(errback)


def test_a_group_with_max_parallel_is_a_group_of_the_job() -> None:
    built = Built(add.s(1) | group(add.s(1), add.s(2)).set(max_parallel=1, name="few") | total.s())
    [made] = built.plan.groups
    assert (made.name, made.max_parallel) == ("few", 1)
    assert [one.group for one in built.plan.tasks] == [None, made.number, made.number, None]
    with pytest.raises(BadJob, match="dedupe_key= belongs to a job"):
        Built(add.s(1) | group(add.s()).set(dedupe_key="x"))


def test_signatures_are_made_by_name_and_found_when_they_are_used() -> None:
    one = signature(add.entrypoint, (1,), {"y": 2}, queue="x")
    built = Built(one | signature(mul, (3,)) | signature(add.s(4)))
    assert (built[1].spec.queue, built.kwargs(2), built.kwargs(3)) == ("x", {"x": "#1", "y": 3}, {"x": "#2", "y": 4})
    assert Built(add.s(1) | signature(done, immutable=True)).kwargs(2) == {}
    assert Built(add.s(1) | signature(add.s(7), immutable=True)).kwargs(2) == {"x": 7}


def test_tasks_that_only_workers_know_keep_their_names() -> None:
    names = [f"elsewhere.task{n}" for n in range(20)]
    built = Built(group(signature(name, kwargs={"n": n}) for n, name in enumerate(names)).set(queue="x"))
    assert [one.spec.entrypoint for one in built.plan.tasks] == names
    assert [one.task.kwargs for one in built.plan.tasks] == [f'{{"n":{n}}}' for n in range(20)]
    with Building() as building:
        one = add(1)
        signature("elsewhere.other", kwargs={"a": one, "b": [1, one]})()
    texts = [node.kwargs for node in building.nodes[1:]]
    assert texts == [f'{{"a":{{"$node":{one.number}}},"b":[1,{{"$node":{one.number}}}]}}']


def test_the_job_has_a_name_that_tells_what_it_does() -> None:
    assert (add.s(1) | mul.s(2)).title == "chain: add | mul"
    assert group(add.s(1), add.s(2), mul.s(3)).title == "group: 2 × add, mul"
    assert chord([add.s(i) for i in range(1000)], total.s()).title == "chord: (1,000 × add) | total"
    assert (add.s(1) | group(add.s() | mul.s(), mul.s())).title == "chain: add | (add | mul, mul)"
    assert group([]).title == "group: nothing"
    assert len(chain([add.s(1)] * 100).title) == 200
    assert add.options(name="plus").s(1).shown() == "plus"


no_signature: Any = mul
number: Any = 3


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (chain, "a chain of nothing"),
        (lambda: chain(add, mul), r"add is a task and no signature: write add.s\(…\)"),
        (lambda: chain(add), r"add is a task and no signature: write add.s\(…\)"),
        (lambda: group(add.s(1), 3), "group: 3 is no signature"),
        (lambda: group(3), "group: 3 is no signature"),
        (lambda: chain(add.s(1), [add.s(2)]), "a list of signatures is group"),
        (lambda: add.s(1) | no_signature, r"mul is a task and no signature: write mul.s\(…\)"),
        (lambda: add.s(1) | number, "3 is no signature"),
        (lambda: add.s(1).link(no_signature), r"write mul.s\(…\)"),
        (lambda: chord([add.s(1)], no_signature), r"write mul.s\(…\)"),
        (lambda: Built(chord([add.s(1)])), "a chord without a body"),
        (lambda: signature(number), "give a task"),
        (signature("no.such.task"), "no task is registered as 'no.such.task'"),
        (lambda: add.s(1).set(queu="x"), "did you mean 'queue'"),
        (lambda: group(add.s(1)).set(queu="x"), "did you mean 'queue'"),
        (lambda: add.s(1).clone(number), "as a tuple"),
        (lambda: Built(add.s("three")), "parameter 'x'"),
        (lambda: Built(add.s(1) | add.s(2).set(connection=3)), "connection= belongs to the whole"),
        (lambda: Built(add.s(1) | group(add.s(2)).set(client=3, name="x")), "client= belongs to the whole"),
        (lambda: Built(add.s(1) | done.s()), "takes 0 positional arguments"),
        (lambda: add.chunks([(1, 2)], 0), "from 1 on"),
        (lambda: add.chunks(number, 1), "give the items"),
        (lambda: Built(add.starmap([1, 2])), r"items\[0\] is 1: give a tuple"),
        (lambda: Built(add.starmap([(1,), ("x",)])), r"items\[1\]: parameter 'x'"),
        (lambda: Built(add.starmap([(1,), {"z": 1}])), r"items\[1\]: .* has no parameter 'z'"),
        (lambda: Built(add.starmap("ab")), "starmap over 'ab'"),
        (lambda: Built(add.starmap(5)), "starmap over 5"),
    ],
)
def test_what_cannot_work_is_refused_with_the_fix(wrong: Any, says: str) -> None:
    with pytest.raises((BadTask, ArgumentsDoNotFit), match=says):
        wrong()


def test_starmap_and_chunks_are_tasks_that_run_the_function_for_many() -> None:
    assert add.starmap([(1, 2), (3,), {"x": 5, "y": 5}])() == [3, 3, 10]
    built = Built(add.starmap(zip([1, 3], [2, 4], strict=True)))
    assert built.kwargs(1) == {"$each": [{"x": 1, "y": 2}, {"x": 3, "y": 4}]}
    assert built[1].spec.entrypoint == add.entrypoint
    built = Built(add.chunks([(i, i) for i in range(5)], 2) | total.s())
    assert [len(built.kwargs(n)["$each"]) for n in (1, 2, 3)] == [2, 2, 1]
    built = Built(add.s(1) | add.starmap())
    assert built.kwargs(2) == {"$each": "#1"}
    with Building() as building:
        one = add(1)
        add.starmap([(one, 2), (3, one)])()
        add.starmap(one)()
    texts = [node.kwargs for node in building.nodes[1:]]
    assert texts[0] == f'{{"$each":[[{{"$node":{one.number}}},2],[3,{{"$node":{one.number}}}]]}}'
    assert texts[1] == f'{{"$each":{{"$node":{one.number}}}}}'
