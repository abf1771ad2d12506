"""What people read of jobs: lists, one job, its tasks, how far it is, what they took, its graph."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest

from aaiclick_queue import Client, job_figures, job_graphs, job_outputs, job_views, sync, views
from aaiclick_queue.errors import BadTask, UnknownJob, UnknownTask
from aaiclick_queue.flow.graph import Previous
from aaiclick_queue.job_graphs import GraphNode, JobGraph, read_graph
from aaiclick_queue.job_handles import job_handle
from aaiclick_queue.outcome import Error, Later, Skipped, Succeeded
from aaiclick_queue.postgres import Database
from aaiclick_queue.queue_views import list_queues
from aaiclick_queue.reading import (
    count_jobs,
    get_job,
    get_task,
    get_tasks_for_job,
    job_progress,
    job_stats,
    list_jobs,
)
from aaiclick_queue.recovery import pause_job, resume_job
from aaiclick_queue.settings import Settings
from aaiclick_queue.status import JobStatus, Status
from tests.dag.hands import FAILS, Hands, settle
from tests.dag.written import planned
from tests.planned import Job, group_before
from tests.tools import age


async def written(db: Database, *names: str) -> list[int]:
    """Jobs of one task each."""
    ids = []
    for name in names:
        job = Job(name=name)
        job.task()
        ids.append((await job.submit(db)).id)
    return ids


# One job.


async def test_a_job_is_found_by_its_id_by_the_end_of_it_and_the_newest_by_its_name(
    db: Database, client: Client
) -> None:
    older, newer = await written(db, "etl", "etl")
    assert (await get_job(older, client=client)).id == str(older)
    assert (await get_job(str(older), client=client)).id == str(older)
    assert (await get_job("etl", client=client)).id == str(newer)
    if str(older)[-8:] != str(newer)[-8:]:
        assert (await get_job(str(older)[-8:], client=client)).id == str(older)


@pytest.mark.parametrize("given", [123, "123", "nothing", "9" * 30, 2**63, "1234567"])
async def test_a_job_that_is_not_there_is_named(db: Database, client: Client, given: Any) -> None:
    await written(db, "etl")
    with pytest.raises(UnknownJob, match="job list"):
        await get_job(given, client=client)


@pytest.mark.parametrize("given", [None, True, 1.5, ["etl"], ""])
async def test_what_cannot_be_a_job_is_refused(client: Client, given: Any) -> None:
    with pytest.raises(BadTask, match="give"):
        await get_job(given, client=client)


async def test_a_job_says_what_it_was_made_with_and_how_it_ended(db: Database, client: Client) -> None:
    job = Job(name="etl", kwargs='{"day":"monday"}', metadata='{"team":"a"}', correlation_id="c", priority=3)
    job.task()
    await job.submit(db)
    hands = await Hands.register(db)
    found = await get_job(job.id, client=client)
    assert (found.status, found.kwargs, found.metadata) == ("PENDING", {"day": "monday"}, {"team": "a"})
    assert (found.total, found.remaining, found.completed) == (1, 1, 0)
    assert not found.is_final
    assert found.duration is None
    assert found.wait is not None
    await age(db, "jobs", "created_at", 60)
    await hands.run({job.ids[next(iter(job.ids))]: FAILS})
    found = await get_job(job.id, client=client)
    assert (found.status, found.is_final, found.failed, found.completed) == ("FAILED", True, 1, 0)
    assert found.error is not None
    assert found.error.type == "JobFailed"
    assert found.wait is not None
    assert found.wait >= timedelta(seconds=60)
    assert found.duration is not None


async def test_a_job_that_is_being_pruned_is_gone(db: Database, client: Client) -> None:
    [job_id] = await written(db, "etl")
    await db.fetch("UPDATE aaiclick_queue.jobs SET pruned_at = now()")
    for given in (job_id, "etl"):
        with pytest.raises(UnknownJob):
            await get_job(given, client=client)
    assert await list_jobs(client=client) == []


# Lists.


async def test_jobs_are_listed_newest_first_by_status_and_by_a_part_of_their_names(
    db: Database, client: Client
) -> None:
    a, b, c = await written(db, "daily_report", "dailyXreport", "etl")
    hands = await Hands.register(db)
    await hands.take()
    listed = await list_jobs(client=client)
    assert [one.id for one in listed] == [str(c), str(b), str(a)]
    assert {one.status for one in listed} == {"RUNNING"}
    assert [one.id for one in await list_jobs(name_like="y_r", client=client)] == [str(a)]  # no wildcard in names
    assert [one.id for one in await list_jobs(name_like="daily%", client=client)] == [str(b), str(a)]
    assert [one.id for one in await list_jobs(name_like="*report", client=client)] == [str(b), str(a)]
    assert [one.id for one in await list_jobs(name_like="report*", client=client)] == []
    assert [one.id for one in await list_jobs("running", "etl", client=client)] == [str(c)]
    assert await list_jobs(JobStatus.FAILED, client=client) == []
    assert await count_jobs(client=client) == 3
    assert await count_jobs("RUNNING", "daily", client=client) == 2
    assert await count_jobs("COMPLETED", client=client) == 0
    await hands.end(*hands.held)
    await settle(db)
    assert await count_jobs("COMPLETED", client=client) == 3


async def test_pages_of_jobs_follow_each_other(db: Database, client: Client) -> None:
    ids = [str(one) for one in await written(db, *("job" for _ in range(5)))][::-1]
    first = await list_jobs(limit=2, client=client)
    second = await list_jobs(limit=2, before=first[-1].id, client=client)
    assert [one.id for one in (*first, *second)] == ids[:4]
    assert [one.id for one in await list_jobs(limit=2, offset=3, client=client)] == ids[3:]


async def test_a_filter_that_finds_nothing_among_the_newest_says_where_to_go_on(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = await written(db, "wanted", "a", "b", "c")
    monkeypatch.setattr(job_views, "SCAN_LIMIT", 2)
    page = await job_views.read_jobs(db, job_views.JobFilter(like="wanted"))
    assert page.jobs == []
    assert page.before is not None
    page = await job_views.read_jobs(db, job_views.JobFilter(like="wanted"), before=int(page.before))
    assert [one.id for one in page.jobs] == [str(ids[0])]


@pytest.mark.parametrize(
    "given",
    [{"limit": 0}, {"limit": 10_001}, {"limit": True}, {"offset": -1}, {"status": "DONE"}, {"before": "x"}],
)
async def test_a_list_that_makes_no_sense_is_refused(client: Client, given: dict[str, Any]) -> None:
    with pytest.raises(BadTask):
        await list_jobs(**given, client=client)


# Tasks of a job.


async def test_tasks_of_a_job_come_in_the_order_they_were_made_with_their_statuses(
    db: Database, client: Client
) -> None:
    await written(db, "other")
    job = Job(name="etl")
    first = job.task(name="first")
    second = job.task(first, name="second")
    later = job.task(name="later", countdown=60)
    await job.submit(db)
    rows = await get_tasks_for_job("etl", client=client)
    assert [(one.name, one.status) for one in rows] == [
        ("first", "QUEUED"), ("second", "PENDING"), ("later", "SCHEDULED"),
    ]  # fmt: skip
    assert {one.job_id for one in rows} == {str(job.id)}
    assert [one.reason for one in rows] == [None, "other tasks of its job", "eta"]
    assert [one.id for one in await get_tasks_for_job(job.id, after=rows[0].id, limit=1, client=client)] == [
        str(job[second])
    ]
    [found] = await get_tasks_for_job(job.id, status=Status.SCHEDULED, client=client)
    assert found.id == str(job[later])
    pending = await views.list_tasks(db, views.TaskFilter(status=Status.PENDING))
    assert [one.id for one in pending.tasks] == [str(job[second])]
    of_job = await views.list_tasks(db, views.TaskFilter(job_id=job.id), limit=2)
    assert [one.id for one in of_job.tasks] == [str(job[later]), str(job[second])]
    assert of_job.before == str(job[second])


async def test_how_long_a_task_waited_is_kept_with_it(db: Database, client: Client) -> None:
    job = Job()
    number = job.task(max_attempts=2)
    await job.submit(db)
    hands = await Hands.register(db)
    await age(db, "ready", "ready_at", 40)
    waits = (await get_task(job[number], client=client)).wait
    assert waits is not None
    assert waits >= timedelta(seconds=40)
    await hands.take()
    await hands.end(job[number], outcome=Later("RETRYING", Error("ValueError", "no"), 0.0))
    [attempt] = (await get_task(job[number], client=client)).attempts
    assert attempt.ready_at is not None
    assert attempt.started_at is not None
    assert attempt.started_at - attempt.ready_at >= timedelta(seconds=39)
    await db.fetch("UPDATE aaiclick_queue.delayed SET not_before = now() - interval '1 s'")
    from aaiclick_queue.flow.reaper import Reaper

    await Reaper(db).due_once()
    await age(db, "ready", "ready_at", 20)
    await hands.run()
    found = await get_task(job[number], client=client)
    assert found.is_final
    assert found.wait is not None
    assert timedelta(seconds=20) <= found.wait < timedelta(seconds=40)


async def test_a_task_that_is_not_there_is_named(client: Client) -> None:
    with pytest.raises(UnknownTask):
        await get_task(12345, client=client)
    with pytest.raises(BadTask):
        await get_task("etl", client=client)


async def test_a_task_says_where_in_its_job_it_is_and_what_it_waits_for(db: Database, client: Client) -> None:
    job = Job(name="etl")
    a, b = job.task(name="a"), job.task(name="b")
    outer = job.group(Previous(b), name="outer")
    inner = job.group(name="inner", parent=outer, mapped=True)
    c = job.task(a, group=inner, name="c", map_index=0, rule="all_done", critical=False)
    d = job.task(group_before(outer), name="d")
    await job.submit(db)
    hands = await Hands.register(db)
    node = (await get_task(job[c], client=client)).job
    assert node is not None
    assert (node.job_name, node.job_id, node.groups, node.map_index) == ("etl", str(job.id), ["outer", "inner"], 0)
    assert (node.rule, node.critical) == ("all_done", False)
    assert {(one.name, one.status) for one in node.waits_for} == {("a", "QUEUED"), ("b", "QUEUED")}
    await hands.take()
    await hands.end(job[a])
    await settle(db)
    node = (await get_task(job[c], client=client)).job
    assert node is not None
    assert [one.name for one in node.waits_for] == ["b"]
    node = (await get_task(job[d], client=client)).job
    assert node is not None
    assert [(one.name, one.kind, one.status) for one in node.waits_for] == [("outer", "group", "OPEN")]
    await hands.end(job[b], outcome=FAILS)
    await settle(db)
    found = await get_task(job[c], client=client)
    assert found.status == "UPSTREAM_FAILED"
    assert found.job is not None
    assert [one.name for one in found.job.failed] == ["b"]
    assert found.job.waits_for == []


async def test_a_task_that_returned_others_names_them_and_those_behind_it_wait(db: Database, client: Client) -> None:
    job = Job()
    a = job.task(name="a")
    b = job.task(a, name="b")
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.take()
    [more] = await hands.continue_by(job[a], job.id, planned(10_001))
    await settle(db)
    node = (await get_task(job[a], client=client)).job
    assert node is not None
    assert [one.id for one in node.continued_by] == [str(more)]
    assert node.is_continued
    node = (await get_task(job[b], client=client)).job
    assert node is not None
    assert [(one.name, one.status) for one in node.waits_for] == [("a", "CONTINUED")]
    await hands.run()
    node = (await get_task(job[a], client=client)).job
    assert node is not None
    assert not node.is_continued


async def test_what_waits_at_gates_is_counted_by_queue(db: Database) -> None:
    job = Job()
    a = job.task()
    job.tasks(3, a)
    job.tasks(2, a, queue="reports")
    await job.submit(db)
    assert {view.name: view.waiting for view in await list_queues(db)} == {"default": 3, "reports": 2}


# Figures.


async def test_progress_counts_what_the_gate_counts(db: Database, client: Client) -> None:
    job = Job()
    good, bad, skips = job.tasks(6), job.task(), job.task()
    job.task(bad)
    await job.submit(db)
    hands = await Hands.register(db)
    now = await job_progress(job.id, client=client)
    assert (now.status, now.total, now.remaining, now.queued, now.running) == ("PENDING", 9, 9, 8, 0)
    assert (now.percent, now.ends_at, now.elapsed) == (0.0, None, None)
    await hands.take()
    now = await job_progress(job.id, client=client)
    assert (now.status, now.queued, now.running, now.ends_at) == ("RUNNING", 0, 8, None)
    await hands.end(*job.of(good[:4]))
    await hands.end(job[bad], outcome=FAILS)
    await hands.end(job[skips], outcome=Skipped(Error("Skipped", "not today")))
    await settle(db)
    now = await job_progress(job.id, client=client)
    assert (now.completed, now.failed, now.skipped, now.remaining, now.running) == (4, 2, 1, 2, 2)
    assert round(now.percent) == 78
    assert now.ends_at is not None
    await hands.end(*job.of(good[4:]))
    await settle(db)
    now = await job_progress(job.id, client=client)
    assert (now.status, now.percent, now.ends_at, now.remaining) == ("FAILED", 100.0, None, 0)


async def test_the_end_is_guessed_from_the_mean_speed_so_far(db: Database, client: Client) -> None:
    job = Job()
    numbers = job.tasks(4)
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.take()
    await hands.end(*job.of(numbers[:1]))
    await settle(db)
    await db.fetch("UPDATE aaiclick_queue.jobs SET started_at = now() - interval '100 s'")
    now = await job_progress(job.id, client=client)
    assert now.ends_at is not None
    assert timedelta(seconds=299) < now.ends_at - now.read_at < timedelta(seconds=301)
    await db.fetch("UPDATE aaiclick_queue.jobs SET paused_at = now()")
    assert (await job_progress(job.id, client=client)).ends_at is None


async def test_progress_reads_no_task_however_many_there_are(db: Database) -> None:
    job = Job()
    job.tasks(2000)
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.take()
    async with db.connection() as connection:
        [row] = await connection.raw.fetch(
            "EXPLAIN (ANALYZE, FORMAT JSON) " + job_figures.PROGRESS, job.id, job_figures.COUNT_LIMIT
        )
    assert read_from(json.loads(row[0])[0]["Plan"], "tasks") == 0


def read_from(plan: dict[str, Any], table: str) -> float:
    """Rows that a plan read of a table."""
    own = plan["Actual Rows"] * plan["Actual Loops"] if plan.get("Relation Name") == table else 0
    return own + sum(read_from(child, table) for child in plan.get("Plans", ()))


async def test_under_fair_turns_what_is_in_line_is_not_counted(db: Database, client: Client) -> None:
    job = Job()
    job.task()
    await job.submit(db)
    await db.fetch(
        "INSERT INTO aaiclick_queue.limits (scope, name, kind, per_key, n) VALUES ('queue', 'x', 'fair', false, 1)"
    )
    assert (await job_progress(job.id, client=client)).queued is None


async def test_an_empty_job_is_all_done_when_it_has_ended(db: Database, client: Client) -> None:
    job = await Job(name="empty").submit(db)
    assert (await job_progress(job.id, client=client)).percent == 0.0
    await settle(db)
    now = await job_progress(job.id, client=client)
    assert (now.status, now.percent, now.total) == ("COMPLETED", 100.0, 0)


async def test_statistics_are_by_name_and_say_what_was_left_out(
    db: Database, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(name="etl")
    numbers = [job.task(name=f"load#{n}" if n else "load") for n in range(4)]
    numbers += [job.task(name=f"part[{n}]") for n in range(2)]
    job.task(numbers[0], name="behind")
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.take()
    await hands.end(*job.of(numbers))
    for number, seconds in zip(numbers, (1, 2, 3, 10, 1, 1), strict=True):
        await db.fetch(
            "UPDATE aaiclick_queue.tasks SET attempt = 2, ready_at = now() - interval '1 h', started_at = now() - "
            "interval '59 min', finished_at = now() - interval '59 min' + make_interval(secs => $2) WHERE id = $1",
            job[number],
            float(seconds),
        )
    stats = await job_stats("etl", client=client)
    load, part, behind = stats.tasks
    assert (load.name, load.count, load.completed, load.attempts, load.most_attempts) == ("load", 4, 4, 8, 2)
    assert load.run is not None
    assert load.wait is not None
    assert (load.run.p50, round(load.run.p95, 2), load.run.max) == (2.5, 8.95, 10.0)
    assert (load.wait.p50, load.wait.max) == (60.0, 60.0)
    assert (part.name, part.count) == ("part", 2)
    assert (behind.open, behind.run, behind.wait) == (1, None, None)
    assert stats.left_out == 0
    monkeypatch.setattr(job_figures, "STATS_LIMIT", 5)
    stats = await job_stats("etl", client=client)
    assert (stats.looked_at, stats.left_out) == (5, 2)
    one = await job_figures.read_node_stats(db, job.id, "load")
    assert one is not None
    assert (one.name, one.count, one.run, one.is_cut) == ("load", 4, load.run, True)  # of five tasks
    one = await job_figures.read_node_stats(db, job.id, "load", limit=2)
    assert one is not None
    assert (one.count, one.is_cut) == (2, True)
    assert await job_figures.read_node_stats(db, job.id, "loa") is None


# Results.


async def test_outputs_are_by_name_and_the_result_has_them_in_place_of_nodes(
    db: Database, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(name="etl")
    a, b = job.task(name="a"), job.task(name="b")
    job._options["returns"] = f'{{"both": {{"$nodes": [{a},{b}]}}, "n": 3}}'
    await job.submit(db)
    hands = await Hands.register(db)
    assert await job_outputs.read_result(db, job.id) == (False, None)
    await hands.take()
    [more] = await hands.continue_by(job[a], job.id, planned(10_002))
    await hands.take()
    await hands.end(more, outcome=Succeeded('"from the other"'))
    await hands.end(job[b], outcome=Succeeded("2"))
    await settle(db)
    found = await job_outputs.read_outputs(db, job.id, completed=3)
    assert found.outputs == {"a": "from the other", "b": 2, "t10002": "from the other"}
    assert found.left_out == 0
    assert await job_outputs.read_result(db, job.id) == (True, {"both": ["from the other", 2], "n": 3})
    assert await job_outputs.read_result(db, job.id, at_most=1) == (False, None)
    monkeypatch.setattr(job_outputs, "OUTPUTS_LIMIT", 2)
    found = await job_outputs.read_outputs(db, job.id, completed=3)
    assert (list(found.outputs), found.left_out) == (["a", "b"], 1)


# The graph.


def named(graph: JobGraph) -> dict[str, GraphNode]:
    return {node.name: node for node in graph.nodes}


def lines(graph: JobGraph) -> set[tuple[str, str]]:
    names = {node.id: node.name for node in graph.nodes}
    return {(names[edge.previous], names[edge.next]) for edge in graph.edges}


async def test_a_graph_has_its_groups_all_kinds_of_edges_and_the_choices(db: Database) -> None:
    job = Job()
    a = job.task(name="a")
    checks = job.group(Previous(a), name="checks", max_parallel=2)
    inner = job.group(name="inner", parent=checks)
    job.task(group=checks, name="c1")
    job.task(group=inner, name="c2")
    loads = job.group(group_before(checks), name="loads")
    job.task(group=loads, name="l1")
    picks = job.task(group_before(checks), name="picks")
    job.task(Previous(picks, choices=("?true",)), name="yes")
    no = job.task(Previous(picks, choices=("?false",)), name="no")
    job.task(no, a, name="always", rule="always")
    await job.submit(db)
    graph = await read_graph(db, job.id, total=8)
    nodes = named(graph)
    assert {node.name: node.kind for node in graph.nodes if node.kind != "task"} == {
        "checks": "group", "inner": "group", "loads": "group",
    }  # fmt: skip
    assert (nodes["inner"].parent, nodes["c2"].parent) == (nodes["checks"].id, nodes["inner"].id)
    assert (nodes["checks"].count, nodes["checks"].max_parallel, nodes["checks"].counts) == (2, 2, {"OPEN": 2})
    found = lines(graph)
    assert {("a", "checks"), ("checks", "loads"), ("checks", "picks"), ("picks", "yes"), ("picks", "no")} <= found
    assert {("no", "always"), ("a", "always")} <= found
    choices = {edge.next: edge.choices for edge in graph.edges if edge.choices}
    assert choices == {nodes["yes"].id: ["?true"], nodes["no"].id: ["?false"]}
    assert not graph.is_folded


async def test_a_map_is_one_node_and_what_makes_its_items_is_none_of_them(db: Database) -> None:
    job = Job()
    a = job.task(name="a")
    parts = job.group(name="parts", mapped=True)
    job.task(a, group=parts, name="parts[*]", entrypoint="aaiclick_queue.expand")
    items = [job.task(a, group=parts, name=f"parts[{n}]", map_index=n) for n in range(5)]
    job.task(group_before(parts), name="sum")
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.run({job[items[1]]: FAILS})
    graph = await read_graph(db, job.id, total=8)
    node = named(graph)["parts"]
    assert (node.kind, node.count, node.counts) == ("map", 5, {"COMPLETED": 4, "FAILED": 1})
    assert (node.status, len(graph.nodes)) == ("FAILED", 3)
    assert node.started_at is not None
    assert node.finished_at is not None
    assert lines(graph) == {("a", "parts"), ("parts", "sum")}
    assert [(one.name, one.error_type) for one in graph.failed] == [("parts[1]", "ValueError")]
    assert named(graph)["sum"].status == "UPSTREAM_FAILED"


async def test_what_a_task_has_returned_stands_between_it_and_those_behind_it(db: Database) -> None:
    job = Job()
    a = job.task(name="a")
    b = job.task(a, name="b")
    job.task(a, b, name="c")
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.take()
    await hands.continue_by(job[a], job.id, planned(10_003))
    await settle(db)
    graph = await read_graph(db, job.id, total=4)
    assert lines(graph) == {("a", "t10003"), ("t10003", "b"), ("t10003", "c"), ("b", "c")}


async def test_a_large_job_is_folded_by_what_is_alike_and_a_larger_one_by_names(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job()
    a = job.task(name="a")
    some = [job.task(a, name=f"load#{n}" if n else "load") for n in range(20)]
    job.task(*some, name="end")
    stored: list[int] = []
    for n in range(20):
        first = job.task(a, name=f"fetch[{n}]")
        stored.append(job.task(first, name=f"store[{n}]"))
    job.task(*stored, name="last")
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.take()
    await hands.end(job[a])
    await settle(db)
    await hands.take()
    await hands.end(*job.of(some[:5]))
    monkeypatch.setattr(job_graphs, "NODES_LIMIT", 50)
    graph = await read_graph(db, job.id, total=63)
    load = named(graph)["load"]
    assert graph.is_folded
    assert (load.kind, load.count, load.counts) == ("tasks", 20, {"COMPLETED": 5, "RUNNING": 15})
    assert {("a", "load"), ("load", "end"), ("a", "fetch"), ("fetch", "store")} <= lines(graph)
    monkeypatch.setattr(job_graphs, "NODES_LIMIT", 30)  # less than there are kinds by their gates
    graph = await read_graph(db, job.id, total=63)
    assert {node.name: node.count for node in graph.nodes} == {
        "a": 1, "load": 20, "end": 1, "fetch": 20, "store": 20, "last": 1,
    }  # fmt: skip
    expected = {("a", "load"), ("load", "end"), ("a", "fetch"), ("fetch", "store"), ("store", "last")}
    assert lines(graph) == expected
    assert graph.left_out == 0
    monkeypatch.setattr(job_graphs, "LOOK_LIMIT", 10)
    assert (await read_graph(db, job.id, total=63)).left_out == 53
    assert (await read_graph(db, job.id, total=63, looked=20)).left_out == 43


async def test_a_running_task_shows_how_far_it_is_and_a_held_one_why(db: Database) -> None:
    from aaiclick_queue.flow.fenced import keep_progress

    job = Job(max_parallel=1)
    a, b = job.task(name="a"), job.task(name="b")
    await job.submit(db)
    hands = await Hands.register(db)
    await settle(db)
    await hands.take()
    await keep_progress(db, hands.fence(job[a]), '{"current": 3, "total": 4}')
    nodes = named(await read_graph(db, job.id, total=2))
    assert (nodes["a"].status, nodes["a"].progress) == ("RUNNING", {"current": 3, "total": 4})
    assert (nodes["b"].status, nodes["b"].reason) == ("PENDING", "held")
    assert b


@pytest.mark.parametrize(
    ("counts", "status"),
    [
        ({"COMPLETED": 3}, "COMPLETED"),
        ({"COMPLETED": 3, "OPEN": 1}, "OPEN"),
        ({"OPEN": 4}, "PENDING"),
        ({"RUNNING": 1, "FAILED": 1, "OPEN": 2}, "RUNNING"),
        ({"COMPLETED": 3, "FAILED": 1, "SKIPPED": 1}, "FAILED"),
        ({"UPSTREAM_FAILED": 1, "COMPLETED": 1}, "UPSTREAM_FAILED"),
        ({"SKIPPED": 2}, "SKIPPED"),
        ({"SKIPPED": 2, "COMPLETED": 1}, "COMPLETED"),
        ({}, "COMPLETED"),
    ],
)
def test_several_tasks_have_one_status(counts: dict[str, int], status: str) -> None:
    assert job_graphs.status_of(counts) == status


# Handles, and code without an event loop.


async def test_a_handle_says_how_far_its_job_is_and_stands_for_it_everywhere(db: Database, client: Client) -> None:
    job = Job(name="etl")
    job.tasks(4)
    await job.submit(db)
    run = job_handle(job.id, client=client)
    hands = await Hands.register(db)
    await hands.take()
    await hands.end(next(iter(hands.held)))
    await settle(db)
    assert (await run.progress()).percent == 25.0
    assert len(await get_tasks_for_job(run, client=client)) == 4
    found = await get_job(run, client=client)
    assert found.id == str(job.id)
    assert (await job_stats(found, client=client)).looked_at == 4
    assert await pause_job(found, client=client)  # what was read stands for it too
    assert await resume_job(found, client=client)


def test_the_synchronous_twins_read_the_same(as_default: None, settings: Settings) -> None:
    job_id = asyncio.run(_a_job(settings))
    assert sync.get_job("etl").id == str(job_id)
    assert [one.id for one in sync.list_jobs(limit=1)] == [str(job_id)]
    assert sync.count_jobs("PENDING") == 1
    [row] = sync.get_tasks_for_job(job_id)
    assert sync.get_task(row.id).job == sync.get_task(int(row.id)).job
    assert sync.job_progress("etl").total == 1
    assert sync.job_stats("etl").tasks[0].count == 1
    assert sync.timeline("etl", limit=1).events[0].type == "JOB_CREATED"


async def _a_job(settings: Settings) -> int:
    async with Database(settings, size=1) as db:
        [job_id] = await written(db, "etl")
    return job_id
