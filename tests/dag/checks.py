"""What must be true when a round is over, told from the journal, the tables and the model."""

from __future__ import annotations

import copy
import json
from typing import Any

from aaiclick_queue import doctor
from aaiclick_queue.outcome import Cancelled, Failed, Skipped, Succeeded
from aaiclick_queue.postgres import Database
from tests.dag.additions import Job
from tests.dag.crew import Crew, Journal
from tests.dag.model import NEVER, Graph, Group, Task

TASKS = "SELECT id, status, result, error->>'type' AS error, group_id FROM aaiclick_queue.tasks WHERE job_id = $1"
GATES = """
SELECT id, kind, rule, state, total, remaining, failed, skipped FROM aaiclick_queue.gates WHERE job_id = $1
"""
UNTOLD = """
SELECT e.gate_id, e.next_gate_id FROM aaiclick_queue.gates g JOIN aaiclick_queue.gate_edges e ON e.gate_id = g.id
WHERE g.job_id = $1 AND e.next_gate_id > g.edge_cursor
"""
EVENTS = "SELECT type FROM aaiclick_queue.events WHERE job_id = $1 AND task_id IS NULL ORDER BY created_at"
JOB = "SELECT status, finished_at, started_at, failing_at FROM aaiclick_queue.jobs WHERE id = $1"
PLACES = ("waiting", "arrivals", "ready", "delayed", "held", "leases", "slots")


async def check(db: Database, crew: Crew) -> None:
    """Everything, for every job of the round."""
    for place in PLACES:
        left = await db.fetch(f"SELECT * FROM aaiclick_queue.{place}")
        assert not left, f"left in {place}: {[dict(row) for row in left]}"
    assert not [finding for finding in await doctor.check(db) if not finding.ok]
    for job in crew.jobs:
        await _look(db, crew.journal, job)
        _tasks_are_right(job)
        await _counts_are_right(db, job)
        await _job_is_right(db, job)
        _refusals_are_right(job)


async def _look(db: Database, journal: Journal, job: Job) -> None:
    """Tell the model what was seen."""
    numbers = {given: number for number, given in job.ids.items()}
    rows = {numbers[row["id"]]: row for row in await db.fetch(TASKS, job.id)}
    assert rows.keys() == job.graph.tasks.keys(), "tasks that nobody has written, or that are missing"
    for number, task in job.graph.tasks.items():
        row, given = rows[number], job.ids[number]
        task.status = row["status"]
        task.value = json.loads(row["result"]) if row["result"] is not None else None
        task.first_start = journal.starts.get(given, NEVER)
        task.by_hand = given in journal.by_hand
        if task.by_hand:
            assert task.status == "CANCELLED", f"t{number} was cancelled, and is {task.status}"
            task.end = journal.by_hand[given]
        if ended := journal.ends.get(given):
            task.end, outcome = ended
            task.ran = True
            words = {Succeeded: "COMPLETED", Failed: "FAILED", Skipped: "SKIPPED", Cancelled: "CANCELLED"}
            assert not task.by_hand, f"t{number} ended twice"
            assert task.status == words[type(outcome)], f"t{number} ended as {outcome}, and is {task.status}"
        elif task.status == "FAILED":
            assert row["error"] == "WorkerLost", f"t{number} failed by nobody"
            task.ran = True
        elif task.status == "CANCELLED" and not task.by_hand:
            task.by_hand, task.end = True, await _stopped_at(db, job, task)


async def _stopped_at(db: Database, job: Job, task: Task) -> float:
    """A moment not after the one at which the job, which must have been stopped, could end the task."""
    [row] = await db.fetch(JOB, job.id)
    if job.stopped is None:
        assert row["failing_at"], f"t{task.number} was cancelled by nobody"
        return 0.0
    return job.stopped


def _tasks_are_right(job: Job) -> None:
    graph = job.graph
    for task in graph.tasks.values():
        fates = graph.fates(task)
        if task.first_start < NEVER:
            assert "runs" in fates, f"{_told(job, task)} ran"
            assert task.first_start > graph.may_start_after(task), f"{_told(job, task)} started too early"
            assert task.status != "UPSTREAM_FAILED"
        if task.ran or task.by_hand:
            continue
        assert task.status in fates, f"{_told(job, task)} is {task.status}"


def _told(job: Job, task: Task) -> str:
    graph = job.graph
    around = [str(node) for node in graph.around(task)[1:]]
    before = {
        arrow.on: (graph.said_by(arrow.on), graph.end_of(arrow.on), _value(graph, arrow.on))
        for node in graph.around(task)
        for arrow in node.after
    }
    return f"{task}\n  in {around}\n  behind {before}\n  which may have come to {graph.fates(task)}"


def _value(graph: Graph, number: int) -> Any:
    task = graph.tasks.get(number)
    return (task.value, task.continued_by, graph.value_of(number)) if task else None


async def _counts_are_right(db: Database, job: Job) -> None:
    gates: dict[int, Any] = {row["id"]: row for row in await db.fetch(GATES, job.id)}
    for row in gates.values():
        assert row["remaining"] == 0, f"open at the end: {dict(row)}"
        assert row["state"] != "WAITING" or row["kind"] == "TASK", f"never decided: {dict(row)}"
        assert 0 <= row["failed"] + row["skipped"] <= row["total"], dict(row)
    told = {
        job.id: job.graph.counts(job.graph.tasks.values()),
        **{job.ids[number]: job.graph.counts(job.graph.subtree(number)) for number in job.graph.groups},
    }
    for gate, counts in told.items():
        row = gates[gate]
        assert (row["total"], row["failed"], row["skipped"]) == counts, f"{dict(row)}, and the truth is {counts}"
    assert not await db.fetch(UNTOLD, job.id), "edges that were never told"


async def _job_is_right(db: Database, job: Job) -> None:
    [row] = await db.fetch(JOB, job.id)
    if job.stopped is not None:
        assert row["status"] == "CANCELLED"
    else:
        assert row["status"] == ("FAILED" if row["failing_at"] else job.graph.verdict())
        assert row["finished_at"] >= row["started_at"]
        assert not row["failing_at"] or job.given["fail_fast"] or job.given["timeout"]
    events = [event["type"] for event in await db.fetch(EVENTS, job.id)]
    ends = [event for event in events if event in ("JOB_COMPLETED", "JOB_FAILED", "JOB_CANCELLED")]
    assert ends == [f"JOB_{row['status']}"], events
    assert events.count("JOB_STARTED") <= 1, events


def _refusals_are_right(job: Job) -> None:
    """What was refused as a cycle is one; a group that took no more had ended, or could not begin."""
    for new, returns, by in job.cycles:
        graph = copy.deepcopy(job.graph)
        for node in new:
            if isinstance(node, Group):
                graph.groups[node.number] = node
            else:
                graph.tasks[node.number] = node
        if by is not None:
            graph.tasks[by].continued_by += returns
        assert graph.has_cycle(), f"refused, and no cycle: {new} returned {returns}"
    for number, moment in job.refused:
        tasks = list(job.graph.subtree(number)) if number else list(job.graph.tasks.values())
        late = [task for task in tasks if task.first_start < NEVER and job.graph.end_of(task.number) > moment]
        assert not late, f"group {number} took no more at {moment}, and these were open: {late}"
