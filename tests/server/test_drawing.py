"""Drawings: pure functions from figures to SVG."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree as ET

import pytest

from aaiclick_queue.job_graphs import GraphEdge, GraphNode
from aaiclick_queue.server.drawing.charts import (
    Column,
    Mark,
    columns,
    histogram,
    line_chart,
    lines,
    nice,
    sparkline,
    state_bar,
    strip,
)
from aaiclick_queue.server.drawing.gantt import Lane, Segment, busy_share, critical_path, draw_gantt
from aaiclick_queue.server.drawing.graphs import brief, draw_graph
from aaiclick_queue.server.drawing.layers import layered
from aaiclick_queue.server.drawing.thinning import EACH_LIMIT, FRONTIER_LIMIT, thinned
from aaiclick_queue.server.drawing.twins import twin
from aaiclick_queue.server.pages.trends import bins_of

START = datetime(2026, 11, 16, 12, tzinfo=UTC)


def after(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def parsed(text: str) -> ET.Element:
    return ET.fromstring(text)


def node(number: int, *, name: str = "", kind: str = "task", status: str = "COMPLETED", **more: object) -> GraphNode:
    given = {"id": str(number), "kind": kind, "name": name or f"n{number}", "parent": None, "alike": str(number)}
    return GraphNode(**given | {"status": status} | more)  # type: ignore[arg-type]


def test_a_line_is_broken_where_nothing_is_known() -> None:
    drawn = lines([after(n) for n in range(5)], {"queued": [1.0, None, 3.0, 4.0, None]}, label="waits", unit="ms")
    assert drawn.count('class="line queued"') == 1
    assert drawn.count('class="dot queued"') == 1
    assert "4ms" in drawn


def test_a_table_tells_what_a_chart_draws_and_leaves_out_what_is_empty() -> None:
    rows = [(after(0), 1234, 0.25), (after(60), 0, None), (after(120), None, 2.0)]
    table = parsed(twin(("When", "<done>", "took"), rows, label="a & b"))
    told = [["".join(cell.itertext()) for cell in row] for row in table.iter("tr")]
    assert told == [["When", "<done>", "took"], ["16 Nov 12:00", "1,234", "0.25"], ["16 Nov 12:02", "–", "2"]]
    assert [cell.get("scope") for cell in table.iter("th")] == ["col"] * 3 + ["row"] * 2


def test_every_drawing_is_xml_with_a_label_and_without_a_style() -> None:
    lane = Lane("1", "plan", "completed", [Segment("run", START, after(3))])
    minutes = [Column(after(60 * n), {"completed": n, "failed": 1}) for n in range(60)]
    drawn = [
        sparkline([1, 2, 3], label="a & b"),
        sparkline([], label="none"),
        columns(minutes, ("completed", "failed"), label="done", marks=[Mark(after(90), "deploy")]),
        columns([], ("completed",), label="none"),
        line_chart([(after(n), n * 1.5) for n in range(9)], label="age", kind="queued", unit="s"),
        line_chart([], label="none", kind="queued"),
        lines([after(n) for n in range(4)], {"queued": [1.0, None, 3.0, 4.0]}, label="waits", unit="ms"),
        lines([], {"queued": []}, label="none", unit="s"),
        histogram([("1 ms", 3), ("10 ms", 9)], label="waits"),
        state_bar([("running", 1), ("ready", 0), ("held", 1000)], label="states"),
        strip([("completed", 0.5, "ok"), ("failed", 1, "bad")], label="runs"),
        draw_graph(thinned([node(1)], []), lambda _: "/tasks/1", label="graph"),
        draw_gantt([lane], lambda _: "/tasks/1", now=after(5)),
    ]
    for one in drawn:
        root = parsed(one)
        assert root.get("aria-label")
        assert root.get("role") in ("img", "group")
        assert " style=" not in one
        assert "nan" not in one.lower()


def test_what_people_name_is_escaped() -> None:
    evil = '"><script>alert(1)</script>'
    lane = Lane("1", evil, "running", [Segment("run", START, None, evil)])
    for drawn in (
        sparkline([1], label=evil),
        draw_graph(thinned([node(1, name=evil)], []), lambda _: "/", label=evil),
        draw_gantt([lane], lambda _: "/", now=after(1)),
    ):
        assert "<script" not in drawn
        parsed(drawn)


@pytest.mark.parametrize(("most", "axis"), [(0, 1), (1, 1), (3, 3), (7, 8), (11, 15), (260, 300), (1001, 1500)])
def test_an_axis_ends_at_a_round_number(most: float, axis: float) -> None:
    assert nice(most) == axis


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0, "0ms"), (0.0001, "<1ms"), (0.042, "42ms"), (1.26, "1.3s"), (59.7, "1m"), (72, "1m 12s"), (7500, "2h 05m"),
     (300, "5m"), (90_000, "1d 1h")],
)  # fmt: skip
def test_durations_are_short(seconds: float, told: str) -> None:
    assert brief(seconds) == told


def test_a_part_that_is_there_is_seen_however_small() -> None:
    bar = parsed(state_bar([("running", 1), ("ready", 1_000_000)], label="states"))
    [running] = [one for one in bar.iter() if one.get("class") == "s-running"]
    assert float(running.get("width", "0")) >= 2


def test_a_node_stands_behind_all_it_waits_for() -> None:
    layers = layered(["a", "b", "c", "d"], [("a", "b"), ("b", "c"), ("a", "c"), ("c", "d")])
    assert layers == [["a"], ["b"], ["c"], ["d"]]


def test_arrows_do_not_cross_where_that_can_be_had() -> None:
    first, second = layered(["a", "b", "c", "x", "y", "z"], [("a", "z"), ("b", "y"), ("c", "x")])
    place = {one: n for n, one in enumerate(second)}
    assert [place[{"a": "z", "b": "y", "c": "x"}[one]] for one in first] == [0, 1, 2]


def test_a_circle_is_drawn_all_the_same() -> None:
    assert sorted(one for layer in layered(["a", "b"], [("a", "b"), ("b", "a")]) for one in layer) == ["a", "b"]


def test_arrows_of_a_group_go_to_its_members() -> None:
    nodes = [node(1), node(2, kind="group"), node(3, parent="2"), node(4, parent="2"), node(5)]
    edges = [GraphEdge("1", "2"), GraphEdge("3", "4"), GraphEdge("2", "5")]
    thin = thinned(nodes, edges)
    assert [one.id for one in thin.nodes] == ["1", "3", "4", "5"]
    assert set(thin.edges) == {("1", "3"), ("3", "4"), ("4", "5")}


def test_beyond_300_nodes_those_that_are_alike_stand_as_one() -> None:
    many = [node(n, alike="same", status="COMPLETED" if n % 2 else "FAILED") for n in range(2, EACH_LIMIT + 50)]
    thin = thinned([node(1), *many], [GraphEdge("1", one.id) for one in many])
    assert len(thin.nodes) == 2
    assert thin.nodes[1].count == len(many)
    assert thin.nodes[1].status == "FAILED"
    assert thin.edges == [("1", "2")]
    assert "stand as one" in thin.note


def test_beyond_3000_nodes_only_the_frontier_is_drawn_and_that_is_said() -> None:
    done = [node(n) for n in range(FRONTIER_LIMIT + 10)]
    running = node(9000, status="RUNNING")
    thin = thinned([*done, running], [GraphEdge("7", "9000")])
    assert {one.id for one in thin.nodes} == {"7", "9000"}
    assert "only the frontier" in thin.note


def test_the_critical_path_goes_back_over_whom_each_waited_for_longest() -> None:
    ends = {"a": after(1), "b": after(5), "c": after(2), "d": after(9)}
    starts = {"a": START, "b": after(1), "c": after(1), "d": after(6)}
    path = critical_path(ends, [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")], starts=starts)
    assert path == ["a", "b", "d"]
    assert busy_share(path, starts, ends) == pytest.approx(8 / 9)


def test_waiting_standing_in_line_and_running_are_segments_of_their_own() -> None:
    parts = [
        Segment("wait", START, after(1)),
        Segment("queue", after(1), after(2)),
        Segment("retry", after(2), after(3)),
        Segment("run", after(4), None),
    ]
    drawn = draw_gantt([Lane("1", "a", "running", parts)], lambda _: "/", now=after(9), critical=["1"])
    assert re.findall(r'class="g-(\w+)', drawn) == ["wait", "queue", "retry", "run"]
    assert 'class="outline"' in drawn


def test_the_last_moment_of_a_timeline_is_written_inside_of_it() -> None:
    lane = Lane("1", "plan", "completed", [Segment("run", START, after(240.5))])
    drawn = parsed(draw_gantt([lane], lambda _: "/tasks/1", now=START))
    ticks = [one for one in drawn.iter() if "axis" in one.get("class", "")]
    assert [one.text for one in ticks][-1] == "+4m"
    for one in ticks:
        ends = float(one.get("x", 0)) + (0 if "end" in one.get("class", "") else 7 * len(one.text or ""))
        assert ends <= 760


def test_bins_are_told_by_their_bounds_and_empty_ends_are_left_out() -> None:
    assert bins_of((0.005, 0.25, 2.5, 60), [0, 2, 0, 1, 0]) == [("≤250ms", 2.0), ("≤2.5s", 0.0), ("≤1m", 1.0)]
    assert bins_of((0.005, 60), [0, 0, 7]) == [(">1m", 7.0)]
    assert bins_of((0.005,), [0, 0]) == []


def test_a_mark_is_drawn_where_it_was_and_not_outside() -> None:
    minutes = [Column(after(60 * n), {"completed": n}) for n in range(10)]
    marks = [Mark(after(60), "version 1"), Mark(after(530), "version 2"), Mark(after(9000), "version 3")]
    drawn = parsed(columns(minutes, ("completed",), label="done", marks=marks))
    words = {one.text: one.get("class") for one in drawn.iter() if "marked" in one.get("class", "")}
    assert words == {"version 1": "marked", "version 2": "marked end"}


def test_no_two_words_of_an_axis_of_time_stand_in_each_other() -> None:
    for seconds in (0.3, 5, 61, 73, 119, 241, 3_700, 7_000, 90_000):
        lane = Lane("1", "a", "completed", [Segment("run", START, START + timedelta(seconds=seconds))])
        drawn = draw_gantt([lane], lambda _: "/", now=START)
        ends = [0.0]
        for x, where, words in re.findall(r'<text x="([\d.]+)" y="[\d.]+" class="(axis[ \w]*)">([^<]+)</text>', drawn):
            wide = 6.0 * len(words)
            begins = float(x) - (wide if "end" in where else 0)
            assert begins >= ends[-1], (seconds, words)
            ends.append(begins + wide)
        assert len(ends) > 2
