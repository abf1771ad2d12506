"""The checker: what must be true when all is over, read from the journal, the witness and the tables.

A check is a statement whose rows are what is wrong, or a function over the journal that gives sentences.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from aaiclick_queue import Task
from tests.chaos import tasks
from tests.chaos.calls import Call
from tests.chaos.journal import Line
from tests.faults.fleet import Console

# The bodies of jobs and what the product adds itself leave no line.
LEAVE_LINES = {one.entrypoint for one in vars(tasks).values() if isinstance(one, Task)}
# They end inside their own code, and may be killed between that commit and their last line.
END_THEMSELVES = {one.entrypoint for one in (tasks.pay, tasks.pay_apart, tasks.pay_and_spawn)}
# What is wrong, by rows of statements.
WRONG_ROWS = {
    "a task that was accepted has not ended": "SELECT id, entrypoint FROM aaiclick_queue.tasks WHERE status IS NULL",
    "a job has not ended": "SELECT id, name, status FROM aaiclick_queue.jobs WHERE finished_at IS NULL",
    "a task ended twice": """SELECT task_id, array_agg(status) AS ends FROM chaos.ends
        GROUP BY task_id HAVING count(*) > 1""",
    "one epoch was leased twice": """SELECT task_id, run_epoch FROM chaos.leases WHERE what = 'taken'
        GROUP BY task_id, run_epoch HAVING count(*) > 1""",
    "a lease was given up twice, or never": """SELECT task_id, run_epoch FROM chaos.leases
        GROUP BY task_id, run_epoch HAVING count(*) <> 2""",
    "an end without its lease in the same commit": """SELECT e.task_id, e.status, e.run_epoch, e.worker_id
        FROM chaos.ends e WHERE e.status IN ('COMPLETED', 'FAILED') AND NOT EXISTS (
            SELECT FROM chaos.leases l WHERE l.task_id = e.task_id AND l.run_epoch = e.run_epoch
                AND l.worker_id = e.worker_id AND l.what = 'gone' AND l.xid = e.xid)""",
    "what ended is not what is recorded": """SELECT t.id, t.status, e.status AS seen FROM aaiclick_queue.tasks t
        LEFT JOIN chaos.ends e ON e.task_id = t.id
        WHERE (t.status, t.run_epoch, t.worker_id) IS DISTINCT FROM (e.status, e.run_epoch, e.worker_id)""",
    "a run wrote without its lease": "SELECT what, task_id, run_epoch FROM chaos.stale",
    "an effect is doubled, missing or another run's": """
        SELECT t.id, t.status, count(f.task_id) AS effects FROM aaiclick_queue.tasks t
        LEFT JOIN chaos.effects f ON f.task_id = t.id
        WHERE t.entrypoint LIKE 'tests.chaos.tasks.pay%%'
        GROUP BY t.id HAVING count(f.task_id) <> (t.status = 'COMPLETED')::int
            OR bool_or(f.run_epoch <> t.run_epoch)""",
    "an effect came in another commit than its end": """SELECT f.task_id FROM chaos.effects f
        WHERE NOT EXISTS (SELECT FROM chaos.ends e WHERE e.task_id = f.task_id AND e.xid = f.xid)""",
    "children were doubled or lost": """
        SELECT t.id, t.kwargs, count(c.id) AS children FROM aaiclick_queue.tasks t
        LEFT JOIN aaiclick_queue.tasks c ON c.parent_id = t.id
        WHERE t.entrypoint IN ('tests.chaos.tasks.spawn', 'tests.chaos.tasks.pay_and_spawn') AND t.status = 'COMPLETED'
        GROUP BY t.id HAVING count(c.id) <> (t.kwargs->>'many')::int""",
    "a job's gate differs from its tasks": """
        SELECT j.id, g.total, g.remaining, g.failed, g.skipped, count(t.id) AS tasks
        FROM aaiclick_queue.jobs j JOIN aaiclick_queue.gates g ON g.id = j.id
        LEFT JOIN aaiclick_queue.tasks t ON t.job_id = j.id
        GROUP BY j.id, g.total, g.remaining, g.failed, g.skipped
        HAVING (g.total, g.remaining, g.failed, g.skipped) <> (count(t.id), 0,
            count(t.id) FILTER (WHERE t.status IN ('FAILED', 'UPSTREAM_FAILED', 'CANCELLED')),
            count(t.id) FILTER (WHERE t.status = 'SKIPPED'))""",
    "a group's gate differs from its tasks": """
        WITH RECURSIVE under AS (
            SELECT id AS top, id FROM aaiclick_queue.groups
            UNION ALL SELECT under.top, g.id FROM under JOIN aaiclick_queue.groups g ON g.parent_group_id = under.id)
        SELECT g.id, g.total, g.remaining, g.failed, g.skipped, count(t.id) AS tasks
        FROM aaiclick_queue.gates g JOIN under ON under.top = g.id
        LEFT JOIN aaiclick_queue.tasks t ON t.group_id = under.id
        WHERE g.kind = 'GROUP' GROUP BY g.id
        HAVING (g.total, g.remaining, g.failed, g.skipped) <> (count(t.id), 0,
            count(t.id) FILTER (WHERE t.status IN ('FAILED', 'UPSTREAM_FAILED', 'CANCELLED')),
            count(t.id) FILTER (WHERE t.status = 'SKIPPED'))""",
    "a job's status is not what its tasks say": """
        SELECT j.id, j.status, array_agg(DISTINCT t.status) AS tasks FROM aaiclick_queue.jobs j
        LEFT JOIN aaiclick_queue.tasks t ON t.job_id = j.id WHERE j.status <> 'CANCELLED'
        GROUP BY j.id HAVING (j.status = 'FAILED')
            <> coalesce(bool_or(t.status IN ('FAILED', 'UPSTREAM_FAILED', 'CANCELLED')), false)""",
    "a dependent started before what it depends on had ended": """
        SELECT t.id, p.id AS before FROM aaiclick_queue.dependencies d
        JOIN aaiclick_queue.tasks p ON p.id = d.previous_id JOIN aaiclick_queue.tasks t ON t.id = d.next_id
        WHERE t.started_at < p.finished_at""",
    "a run that did not end its task left no trace": """
        SELECT l.task_id, l.run_epoch FROM chaos.leases l WHERE l.what = 'gone'
        AND NOT EXISTS (SELECT FROM chaos.ends e WHERE e.task_id = l.task_id AND e.xid = l.xid)
        AND NOT EXISTS (SELECT FROM chaos.lines r
                        WHERE r.task_id = l.task_id AND r.run_epoch = l.run_epoch AND r.xid = l.xid)
        AND (SELECT count(*) FROM aaiclick_queue.attempts a
             WHERE a.task_id = l.task_id AND a.run_epoch = l.run_epoch AND a.worker_id = l.worker_id) <> 1""",
    "a run is in the history and had no lease": """
        SELECT a.task_id, a.run_epoch, a.outcome FROM aaiclick_queue.attempts a WHERE NOT EXISTS (
            SELECT FROM chaos.leases l WHERE l.task_id = a.task_id AND l.run_epoch = a.run_epoch
                AND l.worker_id = a.worker_id AND l.what = 'gone')""",
    "a lost or repeated run has no event": """
        SELECT a.task_id, a.run_epoch, a.outcome FROM aaiclick_queue.attempts a WHERE a.outcome IN ('LOST', 'RETRYING')
        AND (SELECT count(*) FROM aaiclick_queue.events e WHERE e.task_id = a.task_id AND e.run_epoch = a.run_epoch
             AND e.type = 'TASK_' || a.outcome) <> 1""",
    "an end without a run has no event, or several": """
        SELECT t.id, t.status FROM aaiclick_queue.tasks t WHERE t.status IN ('CANCELLED', 'SKIPPED', 'UPSTREAM_FAILED')
        AND (SELECT count(*) FROM aaiclick_queue.events e
             WHERE e.task_id = t.id AND e.type = 'TASK_' || t.status) <> 1""",
    "a job lacks the event of its end, or has several": """
        SELECT j.id, j.status FROM aaiclick_queue.jobs j WHERE (
            SELECT array_agg(e.type) FROM aaiclick_queue.events e WHERE e.job_id = j.id AND e.task_id IS NULL
            AND e.type IN ('JOB_COMPLETED', 'JOB_FAILED', 'JOB_CANCELLED'))
            IS DISTINCT FROM ARRAY['JOB_' || j.status]""",
    "a job's start has no event, or several": """
        SELECT j.id FROM aaiclick_queue.jobs j WHERE j.started_at IS NOT NULL AND (
            SELECT count(*) FROM aaiclick_queue.events e WHERE e.job_id = j.id AND e.type = 'JOB_STARTED') <> 1""",
    "a tick of the schedule is missing or late beyond its policy": """
        SELECT fire_at, outcome, missed FROM aaiclick_queue.ticks WHERE outcome <> 'FIRED' OR missed <> 0
        UNION ALL SELECT gap.fire_at, 'none', 0 FROM (
            SELECT fire_at, lead(fire_at) OVER (ORDER BY fire_at) - fire_at AS until_next FROM aaiclick_queue.ticks
        ) AS gap WHERE until_next > interval '1 second'""",
    "a tick has no job of its own": """
        SELECT k.fire_at, k.job_id FROM aaiclick_queue.ticks k LEFT JOIN aaiclick_queue.jobs j ON j.id = k.job_id
        WHERE j.id IS NULL OR j.registered_job_id IS NULL
        UNION ALL SELECT NULL, j.id FROM aaiclick_queue.jobs j WHERE j.registered_job_id IS NOT NULL
            AND (SELECT count(*) FROM aaiclick_queue.ticks k WHERE k.job_id = j.id) <> 1""",
    "attempts were not counted as they were spent": """
        SELECT t.id, t.attempt, t.kwargs FROM aaiclick_queue.tasks t
        WHERE t.entrypoint = 'tests.chaos.tasks.fail_first' AND t.status IN ('COMPLETED', 'FAILED')
        AND (t.attempt <> least((t.kwargs->>'times')::int + 1, t.max_attempts)
             OR t.attempt - 1 <> (SELECT count(*) FROM aaiclick_queue.attempts a
                                  WHERE a.task_id = t.id AND a.outcome = 'RETRYING'))""",
    "too many of a queue at once": f"""{{intervals}}
        SELECT at, running FROM (SELECT at, sum(step) OVER (ORDER BY at, step) AS running FROM steps
                                 WHERE queue = '{tasks.NARROW}') AS counted WHERE running > {tasks.SEATS}""",
    "too many of a key at once": f"""{{intervals}}
        SELECT at, key, running FROM (
            SELECT at, t.concurrency_key AS key,
                   sum(step) OVER (PARTITION BY t.concurrency_key ORDER BY at, step) AS running
            FROM steps JOIN aaiclick_queue.tasks t ON t.id = steps.task_id
            WHERE t.concurrency_key IS NOT NULL) AS counted WHERE running > {tasks.PER_KEY}""",
    "too many of a group at once": """{intervals}
        SELECT at, group_id, running FROM (
            SELECT at, g.id AS group_id, g.max_parallel, sum(step) OVER (PARTITION BY g.id ORDER BY at, step) AS running
            FROM steps JOIN aaiclick_queue.tasks t ON t.id = steps.task_id
            JOIN aaiclick_queue.groups inside ON inside.id = t.group_id
            JOIN aaiclick_queue.groups g ON g.id IN (inside.id, inside.parent_group_id)
            WHERE g.max_parallel IS NOT NULL) AS counted WHERE running > max_parallel""",
    "two of a strict order at once": """{intervals}
        SELECT at, order_by, running FROM (
            SELECT at, t.order_by, sum(step) OVER (PARTITION BY t.order_by ORDER BY at, step) AS running
            FROM steps JOIN aaiclick_queue.tasks t ON t.id = steps.task_id
            WHERE t.order_by IS NOT NULL) AS counted WHERE running > 1""",
    "a strict order was not kept": """
        SELECT t.id, t.order_by FROM (
            SELECT id, order_by, started_at, max(started_at) OVER (
                PARTITION BY order_by ORDER BY id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
            FROM aaiclick_queue.tasks WHERE order_by IS NOT NULL AND status = 'COMPLETED') AS t
        WHERE t.started_at < t.before""",
}
INTERVALS = """WITH steps AS (
    SELECT at, task_id, queue, CASE what WHEN 'taken' THEN 1 ELSE -1 END AS step FROM chaos.leases)"""
LEFT_BEHIND = (
    "ready", "waiting", "delayed", "held", "leases", "slots", "arrivals", "dedupe", "outbox", "timers",
)  # fmt: skip
OPEN_OPERATIONS = "SELECT id, kind FROM aaiclick_queue.operations WHERE status = 'OPEN'"


class Wrong(msgspec.Struct, frozen=True):
    """One thing that is not as promised."""

    what: str
    count: int
    examples: str


def check_rows(look: Console) -> Iterator[Wrong]:
    """What the witness and the tables say."""
    for what, sql in WRONG_ROWS.items():
        if rows := look.rows(sql.replace("{intervals}", INTERVALS)):
            yield Wrong(what, len(rows), str(rows[:5]))


def left_behind(look: Console) -> list[str]:
    """Places that should be empty and are not; the sweeps may need a moment for some."""
    counts = {name: look.value(f"SELECT count(*) FROM aaiclick_queue.{name}") for name in LEFT_BEHIND}
    left = [f"{count} in {name}" for name, count in counts.items() if count]
    return [*left, *(f"operation {row}" for row in look.rows(OPEN_OPERATIONS))]


def check_calls(look: Console, calls: Sequence[Call]) -> Iterator[Wrong]:
    """What producers were told against what is there: accepted means once, rolled back means never."""
    mine = "metadata->>'call' IS NOT NULL"
    found: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
    numbered = "SELECT id, (metadata->>'call')::int AS call, status FROM aaiclick_queue."
    for row in look.rows(f"{numbered}tasks WHERE {mine} AND parent_id IS NULL"):
        found[row["call"]].append(row)
    jobs = {
        row["call"]: row
        for row in look.rows(
            f"SELECT id, (metadata->>'call')::int AS call, status FROM aaiclick_queue.jobs WHERE {mine}"
        )
    }
    sizes = {
        row["job_id"]: row["n"]
        for row in look.rows(
            "SELECT job_id, count(*) AS n FROM aaiclick_queue.tasks WHERE job_id IS NOT NULL GROUP BY job_id"
        )
    }
    known = {row["id"]: row["status"] for rows in found.values() for row in rows}
    sentences = [
        sentence
        for call in calls
        for sentence in (
            _job_wrong(call, jobs.get(call.number), sizes)
            if call.kind in {"pipeline", "broken"}
            else _task_wrong(call, found.get(call.number, []), known)
        )
    ]
    if sentences:
        yield Wrong("a call was not kept as answered", len(sentences), "; ".join(sentences[:5]))


def _task_wrong(call: Call, rows: Sequence[Mapping[str, Any]], known: Mapping[int, str]) -> Iterator[str]:
    said = f"call {call.number} ({call.kind}, {call.answer}, cancel {call.cancelled})"
    ids = sorted(row["id"] for row in rows)
    if call.answer == "accepted" and call.key is not None:
        if call.ids[0] not in known:
            yield f"{said}: task {call.ids[0]} is not there"
        return
    if call.answer == "accepted" and ids != sorted(call.ids):
        yield f"{said}: rows {ids}, told {call.ids}"
    if call.answer == "rolled back" and ids:
        yield f"{said}: rows {ids}"
    if call.answer == "unknown" and len(ids) not in {0, call.tasks}:
        yield f"{said}: {len(ids)} rows of {call.tasks}"
    statuses = {row["status"] for row in rows}
    allowed = {"no": call.ends, "asked": call.ends | {"CANCELLED"}, "yes": {"CANCELLED"}}[call.cancelled]
    if not statuses <= allowed:
        yield f"{said}: ended {statuses}, not {set(allowed)}"


def _job_wrong(call: Call, row: Mapping[str, Any] | None, sizes: Mapping[int, int]) -> Iterator[str]:
    said = f"call {call.number} ({call.kind}, {call.answer}, cancel {call.cancelled})"
    if row is None:
        if call.answer == "accepted":
            yield f"{said}: job {call.job_id} is not there"
        return
    allowed = {"no": call.ends, "asked": call.ends | {"CANCELLED"}, "yes": {"CANCELLED"}}[call.cancelled]
    if row["status"] not in allowed:
        yield f"{said}: job {row['id']} ended {row['status']}"
    if row["status"] == "COMPLETED" and call.answer == "accepted" and sizes[row["id"]] != call.tasks:
        yield f"{said}: job {row['id']} has {sizes[row['id']]} tasks, not {call.tasks}"


def check_journal(look: Console, lines: Sequence[Line], *, crashed: bool) -> Iterator[Wrong]:
    """What the runs themselves wrote down; where Postgres has `crashed` it may have forgotten claims, not ends."""
    starts = [line for line in lines if line.kind == "start"]
    twice = [run for run, times in Counter(map(_fence, starts)).items() if times > 1]
    if twice:
        yield Wrong("one fence ran twice", len(twice), str(twice[:5]))
    early = [line for line in lines if line.kind == "early"]
    if early:
        yield Wrong("a dependent ran before what it was given had ended", len(early), str(early[:5]))
    leased = {tuple(row.values()) for row in look.rows(LEASED)}
    recorded = {tuple(row.values()) for row in look.rows(RECORDED)}
    unleased = [line for line in starts if _fence(line) not in leased]
    if crashed:
        unleased = [line for line in unleased if _fence(line) in recorded]
    if unleased:
        yield Wrong("a run started that nobody had leased", len(unleased), str(unleased[:5]))
    ran = {_fence(line): line for line in lines if line.kind == "end"}
    completed = look.rows(
        "SELECT id, run_epoch, worker_id, entrypoint FROM aaiclick_queue.tasks WHERE status = 'COMPLETED'"
    )
    begun = set(map(_fence, starts))
    unseen = [
        row
        for row in completed
        if row["entrypoint"] in LEAVE_LINES
        and _fence_of(row) not in (begun if row["entrypoint"] in END_THEMSELVES else ran)
    ]
    if unseen:
        yield Wrong("a task is COMPLETED by a run that nobody saw", len(unseen), str(unseen[:5]))
    yield from _early_edges(look, starts, ran)


LEASED = "SELECT task_id, run_epoch, worker_id FROM chaos.leases WHERE what = 'taken'"
RECORDED = "SELECT task_id, run_epoch, worker_id FROM chaos.ends"
_Fence = tuple[int, int, int]


def _fence(line: Line) -> _Fence:
    return line.task_id, line.run_epoch, line.worker_id


def _fence_of(row: Mapping[str, Any]) -> _Fence:
    return row["id"], row["run_epoch"], row["worker_id"]


def _early_edges(look: Console, starts: Iterable[Line], ended: Mapping[_Fence, Line]) -> Iterator[Wrong]:
    """Edges as they were drawn, groups spelled out, against the journal's own times."""
    first: dict[int, float] = {}
    for line in starts:
        first[line.task_id] = min(line.at, first.get(line.task_id, line.at))
    rows = look.rows(
        "SELECT id, group_id, run_epoch, worker_id, status FROM aaiclick_queue.tasks WHERE job_id IS NOT NULL"
    )
    done = {
        row["id"]: ended[_fence_of(row)].at for row in rows if row["status"] == "COMPLETED" and _fence_of(row) in ended
    }
    members: dict[int, list[int]] = defaultdict(list)
    parents = {
        row["id"]: row["parent_group_id"] for row in look.rows("SELECT id, parent_group_id FROM aaiclick_queue.groups")
    }
    for row in rows:
        group = row["group_id"]
        while group is not None:
            members[group].append(row["id"])
            group = parents[group]
    early = [
        (before, after)
        for edge in look.rows("SELECT previous_id, next_id FROM aaiclick_queue.dependencies")
        for before in members.get(edge["previous_id"], [edge["previous_id"]])
        for after in members.get(edge["next_id"], [edge["next_id"]])
        if before in done and after in first and first[after] < done[before]
    ]
    if early:
        yield Wrong("a dependent ran early, by the journal", len(early), str(early[:5]))
