"""`job …` and what `task …` knows of jobs, as a person or a script sees them."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from click.testing import Result
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st

from aaiclick_queue.cli.drawing import draw_graph
from aaiclick_queue.cli.lines import MARKS, PLAIN, Line, columns, fitted
from aaiclick_queue.flow.graph import Previous
from aaiclick_queue.job_graphs import GraphEdge, GraphNode, JobGraph
from aaiclick_queue.outcome import Error, Failed
from aaiclick_queue.postgres import Database
from aaiclick_queue.settings import Settings
from aaiclick_queue.status import Status
from tests.cli.conftest import Invoke
from tests.cli.running import environment, program
from tests.cli.terminal import Terminal
from tests.dag.hands import FAILS, Hands, settle
from tests.planned import Job, group_before

Cli = Callable[..., Coroutine[Any, Any, Result]]
NOW = datetime(2026, 1, 1, tzinfo=UTC)
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture
def cli(invoke: Invoke) -> Cli:
    """The command line beside the loop of the test."""

    async def run(*arguments: str, stdin: str | None = None) -> Result:
        return await asyncio.to_thread(invoke, *arguments, stdin=stdin)

    return run


async def etl(db: Database) -> Job:
    """A job with a bit of everything, half done: its map has failed items, one task runs."""
    job = Job(name="etl", kwargs='{"day":"monday"}')
    extract = job.task(name="extract")
    checks = job.group(Previous(extract), name="checks", max_parallel=2)
    job.task(group=checks, name="check_rows")
    job.task(group=checks, name="check_sums")
    parts = job.group(Previous(extract), name="process", mapped=True)
    items = [job.task(group=parts, name=f"process[{n}]", map_index=n) for n in range(40)]
    job.task(group_before(parts), name="sum")
    load = job.task(group_before(checks), name="load")
    job.task(Previous(load, choices=("?true",)), name="publish")
    job.task(Previous(load, choices=("?false",)), name="archive")
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.take()
    await hands.end(job[extract])
    await settle(db)
    await hands.take()
    bad = job.of(items[:2])
    await hands.end(*bad, outcome=Failed(Error("ValueError", "row 17 has no customer\nsee the manual")))
    await hands.end(*job.of(items[2:]))
    await settle(db)
    return job


# One job.


async def test_a_job_is_drawn_with_its_groups_its_map_and_what_failed(db: Database, cli: Cli) -> None:
    job = await etl(db)
    ran = await cli("job", "get", "etl")
    assert ran.exit_code == 0
    assert ran.stdout.splitlines()[0] == f"etl  {job.id}  RUNNING"
    drawn = ran.stdout
    assert re.search(r"╭─ ▶ checks  ▶ 2  2 at once ─+", drawn)
    assert re.search(r"│ ╭  ▶ check_rows .* │$", drawn, re.MULTILINE)
    assert re.search(r"✘ process ×40  ✔ 38  ✘ 2", drawn)
    assert re.search(r"⊘ sum +upstream failed", drawn)
    assert re.search(r"· publish  if true", drawn)
    assert "process[5]" not in drawn
    assert "✘ process[0]  " in drawn
    assert "    ValueError: row 17 has no customer\n    see the manual" in drawn
    assert "✔ completed" in drawn  # what the marks mean
    assert "\x1b" not in drawn


async def test_a_job_is_given_to_machines_as_it_is(db: Database, cli: Cli) -> None:
    job = await etl(db)
    page = json.loads((await cli("job", "get", str(job.id), "--json")).stdout)
    assert (page["job"]["id"], page["job"]["status"]) == (str(job.id), "RUNNING")
    assert (page["progress"]["total"], page["progress"]["running"]) == (47, 2)
    assert {"process", "checks", "load"} <= {node["name"] for node in page["graph"]["nodes"]}
    ids = {node["id"] for node in page["graph"]["nodes"]}
    assert all(edge["previous"] in ids and edge["next"] in ids for edge in page["graph"]["edges"])


async def test_a_finished_job_shows_its_result_and_a_failed_one_how_to_go_on(db: Database, cli: Cli) -> None:
    job = Job(name="good")
    number = job.task(name="a")
    job._options["returns"] = f'{{"rows": {{"$node": {number}}}}}'
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.run()
    assert 'result  {"rows":1}' in (await cli("job", "get", "good")).stdout
    bad = Job(name="bad")
    number = bad.task(name="a")
    await bad.submit(db)
    await hands.run({bad[number]: FAILS})
    drawn = (await cli("job", "get", "bad")).stdout
    assert f"again   aaiclick-queue job retry {bad.id}" in drawn
    assert "error   JobFailed: 1 of 1 tasks did not complete" in drawn


async def test_outputs_are_json_by_name(db: Database, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    await etl(db)
    outputs = json.loads((await cli("job", "get", "etl", "--outputs")).stdout)
    assert outputs["extract"] == 1
    assert len(outputs) == 39
    from aaiclick_queue import job_outputs

    monkeypatch.setattr(job_outputs, "OUTPUTS_LIMIT", 3)
    ran = await cli("job", "get", "etl", "--outputs")
    assert len(json.loads(ran.stdout)) == 3
    assert "36 more are left out" in ran.stderr


@pytest.mark.parametrize(
    "command",
    [
        ("get",), ("stats",), ("timeline",), ("wait",), ("cancel", "--yes"), ("retry", "--yes"), ("pause",),
        ("resume",), ("rerun", "--from", "x", "--yes"),
    ],
)  # fmt: skip
async def test_a_job_that_is_not_there_ends_with_4(cli: Cli, command: tuple[str, ...]) -> None:
    for job in ("nothing", "1234567890123456789"):
        ran = await cli("job", command[0], job, *command[1:])
        assert (ran.exit_code, ran.stdout) == (4, "")
        assert ran.stderr.startswith(f"error: no job '{job}'\nfix: `aaiclick-queue job list` shows")


async def test_an_empty_job_and_one_that_stalls_can_be_looked_at(db: Database, cli: Cli) -> None:
    await Job(name="empty").submit(db)
    await settle(db)
    assert "COMPLETED" in (await cli("job", "get", "empty")).stdout


@pytest.mark.breaks_invariants
async def test_a_job_of_which_nothing_is_on_its_way_says_why(db: Database, cli: Cli) -> None:
    job = Job(name="stuck")
    job.task(name="a")
    await job.submit(db)
    await db.fetch("DELETE FROM aaiclick_queue.ready")
    assert "stands still: task 'a'" in (await cli("job", "get", "stuck")).stdout


@pytest.mark.parametrize("width", [80, 120])
async def test_in_a_terminal_a_job_has_colours_and_fits(db: Database, settings: Settings, width: int) -> None:
    await etl(db)

    def look() -> tuple[str, set[str]]:
        with Terminal("job", "get", "etl", env=environment(settings), columns=width, lines=60) as screen:
            assert screen.ends() == 0
            screen.wait_for("completed")
            return screen.text, screen.colours()

    text, colours = await asyncio.to_thread(look)
    assert {"green", "red", "cyan"} <= colours
    boxes = [line for line in text.splitlines() if "╭─" in line]
    assert [len(line) for line in boxes] == [width]  # nothing was wrapped


async def test_without_colours_and_on_a_plain_terminal_the_same_is_said(db: Database, settings: Settings) -> None:
    await etl(db)

    def look(**more: str) -> Terminal:
        with Terminal("job", "get", "etl", env=environment(settings) | more, columns=80, lines=60) as screen:
            assert screen.ends() == 0
            screen.wait_for("upstream failed")
            return screen

    screen = await asyncio.to_thread(look, NO_COLOR="1")
    assert screen.colours() == set()
    screen = await asyncio.to_thread(look, PYTHONIOENCODING="ascii")
    assert "x process x40  + 38  x 2" in screen.text
    assert "?" not in screen.text


async def test_watching_shows_again_and_again(db: Database, settings: Settings) -> None:
    await etl(db)

    def watch() -> None:
        with program("job", "get", "etl", "--json", "--watch", "0.1", env=environment(settings)) as watching:
            watching.wait_for(lambda: len(watching.lines()) >= 2)
            watching.press_ctrl_c()
            assert watching.ends() == 130

    await asyncio.to_thread(watch)


# Lists and figures.


async def test_jobs_are_listed_with_how_far_they_are(db: Database, cli: Cli) -> None:
    job = await etl(db)
    other = await Job(name="other").submit(db)
    ran = await cli("job", "list")
    header, first, second = ran.stdout.splitlines()
    assert header.split() == ["ID", "STATUS", "JOB", "DONE", "OF", "FAILED", "CREATED", "TOOK", "WHAT"]
    assert first.split()[:4] == [str(other.id), "PENDING", "other", "–"]
    assert second.split()[:7] == [str(job.id), "RUNNING", "etl", "89", "%", "47", "3"]
    assert [row["id"] for row in json.loads((await cli("job", "list", "--like", "et", "--json")).stdout)] == [
        str(job.id)
    ]
    assert (await cli("job", "list", "--status", "failed")).stdout == "no job is FAILED\n"
    ran = await cli("job", "list", "--limit", "1")
    assert ran.stderr == f"older ones: add --before {other.id}\n"
    assert str(job.id) in (await cli("job", "list", "--before", str(other.id))).stdout
    assert str(other.id) not in (await cli("job", "list", "--offset", "1")).stdout
    assert (await cli("job", "list", "--status", "nonsense")).exit_code == 2


async def test_statistics_are_a_line_a_name(db: Database, cli: Cli) -> None:
    await etl(db)
    lines = (await cli("job", "stats", "etl")).stdout.splitlines()
    assert lines[0].split()[:2] == ["TASK", "COUNT"]
    [process] = [line for line in lines if line.startswith("process")]
    assert process.split()[1:4] == ["40", "38", "2"]
    found = json.loads((await cli("job", "stats", "etl", "--json")).stdout)
    assert {"p50", "p95", "max"} == set(found["tasks"][0]["run"])


# Waiting.


async def test_waiting_ends_with_what_the_job_came_to(db: Database, cli: Cli) -> None:
    job = Job(name="etl")
    number = job.task()
    await job.submit(db)
    ran = await cli("job", "wait", "etl", "--timeout", "0")
    assert ran.exit_code == 1
    assert "has not ended within 0 s, 0 % of 1" in ran.stderr
    hands = await Hands.register(db)
    waiting = asyncio.create_task(cli("job", "wait", "etl"))
    await hands.run()
    ran = await waiting
    assert (ran.exit_code, ran.stdout.split(" in ")[0]) == (0, "etl COMPLETED")
    bad = Job(name="bad")
    number = bad.task()
    await bad.submit(db)
    await hands.run({bad[number]: FAILS})
    ran = await cli("job", "wait", "bad", "--json")
    assert (ran.exit_code, json.loads(ran.stdout)["status"]) == (1, "FAILED")
    assert (await cli("job", "wait", "bad")).stdout.endswith(": 1 task, 1 did not complete\n")


# Changing.


async def test_cancelling_asks_first_and_ends_what_is_open(db: Database, cli: Cli) -> None:
    job = await etl(db)
    refused = await cli("job", "cancel", "etl")
    assert (refused.exit_code, "fix: add --yes" in refused.stderr) == (2, True)
    would = (await cli("job", "cancel", "etl", "--dry-run")).stdout
    assert would == f"would cancel job etl ({job.id}): 2 running, 5 open of 47 tasks\n"
    assert (await cli("job", "cancel", "etl", "--yes")).stdout == f"cancelled job etl ({job.id}), with 5 tasks\n"
    ran = await cli("job", "cancel", "etl", "--yes")
    assert (ran.exit_code, "has ended CANCELLED already" in ran.stderr) == (3, True)
    await settle(db)
    drawn = (await cli("job", "get", "etl")).stdout
    assert "CANCELLED" in drawn.splitlines()[0]
    assert "⊗ check_rows" in drawn
    timeline = (await cli("job", "timeline", "etl", "--type", "job_cancelled")).stdout
    assert "cancelled by " in timeline


async def test_what_failed_is_retried_and_what_is_behind_it_waits_again(db: Database, cli: Cli) -> None:
    job = await etl(db)
    would = (await cli("job", "retry", "etl", "--dry-run")).stdout
    assert would == f"would retry 2 tasks of job etl ({job.id}): process[0], process[1]\n"
    ran = await cli("job", "retry", "etl", "--yes")
    assert ran.stdout == f"in line again: 2 tasks of job etl ({job.id})\n"
    [row] = json.loads((await cli("task", "list", "--job", "etl", "--status", "PENDING", "--json")).stdout)[-1:]
    assert row["name"] == "sum"
    ran = await cli("job", "retry", "etl", "--yes")
    assert (ran.exit_code, "FAILED or was CANCELLED" in ran.stderr) == (3, True)


async def test_one_task_of_a_job_is_retried_by_its_id(db: Database, cli: Cli) -> None:
    await etl(db)
    [bad, *_] = json.loads((await cli("task", "list", "--job", "etl", "--status", "FAILED", "--json")).stdout)
    ran = await cli("task", "retry", bad["id"], "--yes")
    assert (ran.exit_code, ran.stdout) == (0, f"{bad['id']} is in line again\n")
    [row] = json.loads((await cli("task", "list", "--job", "etl", "--status", "FAILED", "--json")).stdout)
    assert row["id"] != bad["id"]


async def test_a_job_runs_again_from_a_task_on(db: Database, cli: Cli) -> None:
    job = Job(name="etl")
    a = job.task(name="a")
    b = job.task(a, name="b")
    job.task(b, name="c")
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.run()
    would = (await cli("job", "rerun", "etl", "--from", "b", "--dry-run")).stdout
    assert would == "would run again b and what is behind it, 1 task (c)\n"
    assert (await cli("job", "get", "etl")).stdout.splitlines()[0].endswith("COMPLETED")
    assert (await cli("job", "rerun", "etl", "--from", "b")).exit_code == 2
    assert (await cli("job", "rerun", "etl", "--from", "b", "--yes")).stdout == "runs again: 2 tasks\n"
    assert (await cli("job", "get", "etl")).stdout.splitlines()[0].endswith("RUNNING")
    ran = await cli("job", "rerun", "etl", "--from", "nobody", "--yes")
    assert (ran.exit_code, "is called 'nobody'" in ran.stderr) == (4, True)
    await hands.run()
    assert (await cli("task", "clear", str(job[b]), "--dry-run")).stdout == would
    assert (await cli("task", "clear", str(job[b])[-8:], "--yes")).stdout == "runs again: 2 tasks\n"
    timeline = (await cli("task", "timeline", str(job[b]))).stdout
    assert timeline.count("cleared by ") == 2
    assert timeline.count("completed in ") == 2


async def test_clearing_a_task_without_a_job_says_what_to_do_instead(db: Database, cli: Cli) -> None:
    task_id = (await cli("task", "enqueue", "shop.send")).stdout.strip()
    ran = await cli("task", "clear", task_id, "--yes")
    assert (ran.exit_code, "is in no job" in ran.stderr, "task retry" in ran.stderr) == (1, True, True)


async def test_a_job_is_paused_and_goes_on(db: Database, cli: Cli) -> None:
    job = await etl(db)
    assert (await cli("job", "pause", "etl", "--dry-run")).stdout.startswith("would pause job etl")
    assert (await cli("job", "resume", "etl")).exit_code == 3
    ran = await cli("job", "pause", "etl", "--reason", "the warehouse is down")
    assert ran.stdout == f"paused job etl ({job.id}): 2 running, 5 open\n"
    assert (await cli("job", "pause", "etl")).exit_code == 3
    drawn = (await cli("job", "get", "etl")).stdout
    assert drawn.splitlines()[0].endswith("RUNNING  PAUSED")
    assert re.search(r"^paused by .* since .*: the warehouse is down$", drawn, re.MULTILINE)
    assert f"go on   aaiclick-queue job resume {job.id}" in drawn
    assert "PAUSED: the warehouse is down" in (await cli("job", "list")).stdout
    assert (await cli("job", "resume", "etl", "--dry-run")).stdout.startswith("would resume job etl")
    assert (await cli("job", "resume", "etl")).stdout.startswith("resumed job etl")
    assert "PAUSED" not in (await cli("job", "list")).stdout


# Timelines, and tasks of jobs.


async def test_a_timeline_is_a_line_an_event_with_a_summary(db: Database, cli: Cli) -> None:
    await etl(db)
    lines = (await cli("job", "timeline", "etl")).stdout.splitlines()
    assert re.fullmatch(r"[\d: -]+\.\d{3}  · \(job\) +JOB_CREATED +job etl was created", lines[0])
    assert any("ready: extract ended" in line for line in lines)
    assert lines[-1].startswith(re.match(r"\d+ events", lines[-1])[0])  # type: ignore[index]
    failed = (await cli("job", "timeline", "etl", "--level", "failure")).stdout
    assert failed.count("ValueError: row 17 has no customer") == 2
    assert "TASK_COMPLETED" not in failed
    ran = await cli("job", "timeline", "etl", "--limit", "3")
    mark = re.search(r"add --after (\S+)", ran.stderr)
    assert mark is not None
    following = (await cli("job", "timeline", "etl", "--limit", "3", "--after", mark[1])).stdout
    assert following.splitlines()[0] not in ran.stdout
    last = json.loads((await cli("job", "timeline", "etl", "--last", "--limit", "1", "--json")).stdout)
    assert [event["type"] for event in last["events"]] == ["TASK_UPSTREAM_FAILED"]
    assert (await cli("job", "timeline", "etl", "--type", "TASK_DONE")).exit_code == 2
    assert (await cli("job", "timeline", "etl", "--after", "yesterday")).exit_code == 2
    none = await cli("job", "timeline", "etl", "--type", "TASK_LOST")
    assert (none.exit_code, none.stdout) == (0, "nothing has happened that was asked for\n")


async def test_a_task_of_a_job_says_where_it_is_and_what_it_waits_for(db: Database, cli: Cli) -> None:
    await etl(db)
    [load] = [row for row in json.loads((await cli("task", "list", "--job", "etl", "--json")).stdout)
              if row["name"] == "load"]  # fmt: skip
    shown = (await cli("task", "get", load["id"])).stdout
    assert re.search(r"  job +etl \d+, RUNNING\n", shown)
    assert re.search(r"  waits for +checks \(open\)\n", shown)
    running = json.loads((await cli("task", "list", "--job", "etl", "--status", "running", "--json")).stdout)
    [check] = [row for row in running if row["name"] == "check_rows"]
    shown = (await cli("task", "get", check["id"])).stdout
    assert re.search(r"  group +checks\n", shown)
    assert "deadline of this run" in shown
    ran = await cli("task", "list", "--job", "nothing")
    assert ran.exit_code == 4
    assert (await cli("task", "list", "--job", "etl", "--status", "SKIPPED")).stdout == (
        "no task is SKIPPED, of those that match\n"
    )


async def test_queues_show_what_waits_for_other_tasks(db: Database, cli: Cli) -> None:
    assert "WAITING" not in (await cli("queue", "list")).stdout
    job = Job(name="etl")
    a = job.task(name="a")
    job.tasks(3, a)
    await job.submit(db)
    header, row = (await cli("queue", "list")).stdout.splitlines()
    assert row[: header.index("WAITING") + len("WAITING")].split()[-1] == "3"
    found = json.loads((await cli("top", "--once", "--json", "--interval", "0.2")).stdout)
    assert found["totals"]["waiting"] == 3


# Drawing.


def node(key: str, status: str = "COMPLETED", **more: Any) -> GraphNode:
    given: dict[str, Any] = {"id": key, "name": key, "kind": "task", "parent": None, "alike": key}
    return GraphNode(status=status, **given | more)


def drawn(*nodes: GraphNode, edges: str = "", width: int = 80, everything: bool = False) -> list[str]:
    """The graph with edges as in "a>b b>c", without colours."""
    found = [GraphEdge(before, after) for before, after in (edge.split(">") for edge in edges.split())]
    lines = draw_graph(JobGraph(list(nodes), found, []), now=NOW, width=width, everything=everything)
    return [COLOUR.sub("", str(line)) for line in lines]


def test_many_of_one_name_side_by_side_are_one_row() -> None:
    many = [node(f"fetch#{n}", "COMPLETED" if n < 40 else "QUEUED", alike="x") for n in range(57)]
    assert drawn(node("start"), *many, edges=" ".join(f"start>{one.id}" for one in many)) == [
        "●  ✔ start", "●  ○ fetch ×57  ✔ 40  ○ 17",
    ]  # fmt: skip
    assert len(drawn(*many, everything=True)) == 57


def test_of_many_others_those_that_need_a_look_are_shown() -> None:
    many = [node(f"n{n}", "FAILED" if n == 44 else "COMPLETED", alike="x") for n in range(50)]
    rows = drawn(*many)
    assert any("✘ n44" in row for row in rows)
    assert rows[-1] == "╰  … 41 more  ✔ 41"
    assert len(rows) == 10


def test_a_long_chain_shows_its_ends_and_what_happens() -> None:
    chain = [node(f"n{n}", "COMPLETED" if n < 60 else "RUNNING" if n == 60 else "PENDING") for n in range(500)]
    rows = drawn(*chain, edges=" ".join(f"n{n}>n{n + 1}" for n in range(499)))
    assert [row for row in rows if "more" in row] == ["⋮  … 51 more  ✔ 51", "⋮  … 435 more  · 435"]
    assert any("▶ n60" in row for row in rows)
    assert rows[-1] == "●  · n499"


def test_a_way_through_a_group_and_back_into_it_is_told_in_words() -> None:
    nodes = [node("g", kind="group", count=2), node("x", parent="g"), node("y", parent="g"), node("z")]
    rows = drawn(*nodes, edges="x>z z>y")
    assert any("✔ y  ← z" in row for row in rows)


def test_what_nobody_could_follow_is_told_in_words() -> None:
    names = [f"{letter}{n}" for letter in "ab" for n in range(12)]
    edges = " ".join(f"a{n}>b{(n * m) % 12}" for n in range(12) for m in (1, 5, 7))
    rows = drawn(*map(node, names), edges=edges)
    assert rows[0] == "too many lines to draw: ← names what a task waits for"
    assert any(re.match(r"✔ b5  ← a\d+, a\d+", row) for row in rows)


def test_groups_too_deep_for_the_width_are_counted() -> None:
    nodes = [node("g0", kind="group", count=1, counts={"COMPLETED": 1})]
    nodes += [node(f"g{n}", kind="group", count=1, counts={"COMPLETED": 1}, parent=f"g{n - 1}") for n in range(1, 12)]
    nodes.append(node("deep", parent="g11"))
    rows = drawn(*nodes, width=60)
    assert any("… 1 deeper down" in row for row in rows)
    assert all(columns(row) <= 60 for row in rows)


NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=60)
STATUSES = tuple(one.value for one in Status)


@st.composite
def any_graph(draw: st.DrawFn) -> JobGraph:
    """Groups in groups, tasks anywhere, edges between anything, names of anything."""
    nodes: list[GraphNode] = []
    for number in range(draw(st.integers(1, 25))):
        groups = [one.id for one in nodes if one.kind == "group"]
        kind = draw(st.sampled_from(["task", "task", "task", "group", "map"]))
        status = draw(st.sampled_from(STATUSES))
        started = NOW - timedelta(seconds=draw(st.integers(0, 10**6))) if draw(st.booleans()) else None
        nodes.append(
            node(
                str(number), status, kind=kind, name=draw(NAMES), count=draw(st.integers(1, 10**6)),
                parent=draw(st.sampled_from([None, *groups])), alike=draw(st.sampled_from([str(number), "same"])),
                counts={status: 3} if kind != "task" else {}, started_at=started, not_before=NOW, ready_at=NOW,
                finished_at=NOW if started and draw(st.booleans()) else None,
                max_parallel=draw(st.sampled_from([None, 7])),
            )
        )  # fmt: skip
    ids = [one.id for one in nodes]
    pairs = st.tuples(st.sampled_from(ids), st.sampled_from(ids))
    edges = [GraphEdge(a, b, draw(st.sampled_from([[], ["?true"]]))) for a, b in draw(st.lists(pairs, max_size=40))]
    return JobGraph(nodes, [edge for edge in edges if edge.previous != edge.next], [])


@limits(max_examples=40, deadline=None)
@given(any_graph(), st.integers(40, 130))
def test_whatever_the_graph_is_it_is_drawn_and_fits(graph: JobGraph, width: int) -> None:
    lines = draw_graph(graph, now=NOW, width=width)
    for line in lines:
        assert line.width <= width
        assert columns(COLOUR.sub("", str(line))) <= width
        assert COLOUR.sub("", str(line)).isprintable()


def test_a_text_is_cut_by_columns_and_not_by_characters() -> None:
    assert fitted("漢字漢字", 5) == "漢字…"
    assert columns(fitted("漢字漢字", 6)) <= 6
    assert fitted("short", 5) == "short"
    assert fitted("anything", 0) == ""
    assert fitted("a\nb\x1b[31m", 20) == "a b [31m"
    assert (Line("ab", fg="red") + "c").padded(5).width == 5


def test_every_mark_has_a_plain_twin() -> None:
    for sign, _ in MARKS.values():
        assert sign.translate(PLAIN).isascii()
