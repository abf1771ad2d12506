"""What is left of a graph when tasks leave it: whose gates stay, whose go, who tells those behind by itself again."""

from __future__ import annotations

from collections.abc import Iterable

from aaiclick_queue.flow.closure import Closure, Edge, Gate, Graph, Group, Line, Node, downstream, trim

JOB = 1


def graph(
    tasks: Iterable[Node], gates: Iterable[Gate] = (), edges: Iterable[Edge] = (), groups: Iterable[Group] = ()
) -> Graph:
    """A job of these; the gates of the job and of its groups are made here."""
    own = [Gate(JOB, "JOB", "whole"), *(Gate(one.id, "GROUP", "whole", one.parent or JOB) for one in groups)]
    return Graph(
        JOB,
        {one.id: one for one in tasks},
        {one.id: one for one in groups},
        {one.id: one for one in (*own, *gates)},
        [*edges],
    )


def wait(number: int) -> Gate:
    return Gate(number, "WAIT", "all_success")


def gone(*tasks: int, again: Iterable[int] = (), groups: Iterable[int] = ()) -> Closure:
    return Closure({*again}, {*tasks}, {*groups})


def test_what_waits_for_a_task_is_behind_each_task_of_a_group_that_continues_it() -> None:
    more = Group(20, parent_task=10)
    tasks = [Node(10, exit=30, after=31), Node(11, parent=10, group=20), Node(12, wait=30)]
    gates = [wait(30), Gate(31, "AFTER", "whole")]
    job = graph(tasks, gates, [Edge(20, 31), Edge(31, 30)], [more])
    job.lines.append(Line("task", 10, "task", 12))
    assert downstream(job, [11]) == gone(again=[11, 12])
    assert downstream(job, [10]) == gone(11, again=[10, 12], groups=[20])


def test_where_nothing_leaves_and_nobody_was_continued_the_graph_stays_the_same() -> None:
    job = graph([Node(10, exit=30), Node(11, wait=30)], [wait(30)])
    assert trim(job, gone(again=[10, 11])).graph is job


def test_a_gate_at_which_only_tasks_waited_that_leave_goes_and_who_told_it_tells_nobody() -> None:
    job = graph([Node(10, exit=30), Node(11, wait=30), Node(12)], [wait(30)])
    trimmed = trim(job, gone(11, again=[12]))
    assert trimmed.gone_gates == [30]
    assert trimmed.left_behind == {30}
    assert trimmed.new_exits == {10: None}
    assert trimmed.graph.tasks[10].exit is None
    assert trimmed.graph.gates.keys() == {JOB}


def test_a_gate_stays_as_long_as_one_task_waits_there() -> None:
    job = graph([Node(10, exit=30), Node(11, wait=30), Node(12, wait=30)], [wait(30)])
    trimmed = trim(job, gone(11))
    assert (trimmed.gone_gates, trimmed.left_behind, trimmed.new_exits) == ([], set(), {})


def test_the_conditions_of_a_gate_that_stays_stay_with_it() -> None:
    tasks = [Node(10, exit=30), Node(11, exit=31), Node(12, wait=32), Node(13)]
    job = graph(tasks, [wait(30), wait(31), wait(32)], [Edge(30, 32), Edge(31, 32)])
    trimmed = trim(job, gone(13))
    assert trimmed.gone_gates == []
    assert trimmed.graph.edges == job.edges
    assert trimmed.new_exits == {}


def test_the_conditions_of_a_gate_that_goes_go_with_it_and_so_do_its_edges() -> None:
    tasks = [Node(10, exit=30), Node(11, exit=31), Node(12, wait=32)]
    job = graph(tasks, [wait(30), wait(31), wait(32)], [Edge(30, 32), Edge(31, 32)])
    trimmed = trim(job, gone(12))
    assert {*trimmed.gone_gates} == {30, 31, 32}
    assert {*trimmed.gone_edges} == {*job.edges}
    assert trimmed.new_exits == {10: None, 11: None}


def test_the_entry_of_a_group_stays_though_all_that_waited_there_leaves() -> None:
    group = Group(20, entry=30)
    job = graph([Node(10, exit=30), Node(11, group=20, wait=30)], [wait(30)], groups=[group])
    trimmed = trim(job, gone(11))
    assert trimmed.gone_gates == []
    assert trimmed.graph.tasks[10].exit == 30


def test_the_gate_of_a_continuation_stays_as_long_as_its_task_has_ended_by_it() -> None:
    tasks = [Node(10, exit=30, after=31), Node(11, parent=10, exit=31), Node(12, wait=30), Node(13)]
    job = graph(tasks, [wait(30), Gate(31, "AFTER", "whole")], [Edge(31, 30)])
    trimmed = trim(job, gone(13))
    assert trimmed.gone_gates == []
    assert trimmed.graph.tasks[11].exit == 31
    assert trimmed.graph.edges == [Edge(31, 30)]


def test_a_continued_task_that_runs_again_tells_its_one_gate_as_before() -> None:
    tasks = [Node(10, exit=30, after=31), Node(11, parent=10, exit=31), Node(12, wait=30)]
    job = graph(tasks, [wait(30), Gate(31, "AFTER", "whole")], [Edge(31, 30)])
    trimmed = trim(job, gone(11, again=[10, 12]))
    assert trimmed.graph.tasks[10] == Node(10, exit=30)
    assert (trimmed.gone_gates, trimmed.gone_edges) == ([31], [Edge(31, 30)])
    assert (trimmed.new_gates, trimmed.new_edges, trimmed.new_exits) == ([], [], {})


def test_a_continued_task_gets_a_gate_for_all_that_its_continuation_told() -> None:
    tasks = [Node(10, exit=30, after=31), Node(12, wait=30), Node(13, wait=32)]
    job = graph(tasks, [wait(30), wait(32), Gate(31, "AFTER", "whole")], [Edge(31, 30), Edge(31, 32)])
    trimmed = trim(job, gone(again=[10, 12, 13]))
    assert trimmed.graph.tasks[10] == Node(10, exit=10)
    assert trimmed.new_gates == [10]
    assert trimmed.new_exits == {10: 10}
    assert trimmed.new_edges == [Edge(10, 30), Edge(10, 32)]
    assert {*trimmed.graph.edges} == {*trimmed.new_edges}


def test_the_gate_of_a_continued_task_tells_what_it_did_not_tell_yet_and_nothing_twice() -> None:
    tasks = [Node(10, exit=10, after=31), Node(12, wait=30), Node(13, wait=32)]
    gates = [Gate(10, "TASK", "whole"), wait(30), wait(32), Gate(31, "AFTER", "whole")]
    job = graph(tasks, gates, [Edge(31, 10), Edge(31, 30), Edge(31, 32), Edge(10, 30)])
    trimmed = trim(job, gone(again=[10, 12, 13]))
    assert (trimmed.new_gates, trimmed.new_exits) == ([], {})
    assert trimmed.new_edges == [Edge(10, 32)]
    assert sorted(trimmed.graph.edges) == [Edge(10, 30), Edge(10, 32)]


def test_a_continued_task_whose_own_gate_nobody_had_made_its_exit_yet_tells_that_one() -> None:
    tasks = [Node(10, exit=30, after=31), Node(12, wait=30)]
    gates = [Gate(10, "TASK", "whole"), wait(30), Gate(31, "AFTER", "whole")]
    job = graph(tasks, gates, [Edge(31, 10), Edge(31, 30)])
    trimmed = trim(job, gone(again=[10, 12]))
    assert trimmed.new_exits == {10: 10}
    assert trimmed.new_edges == [Edge(10, 30)]
