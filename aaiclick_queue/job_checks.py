"""What the doctor knows of jobs: gates count what is true, and nothing has started before its dependencies allowed it.

Of the newest jobs, up to 200,000 tasks of theirs together, so that the doctor is quick wherever it is asked.
"""

from __future__ import annotations

from .checks import LIMIT, WAITS_AT_GATE, Check
from .stalls import MOST_JOBS, MOST_TASKS, STALLED

_LOOKED = f"""looked AS MATERIALIZED (
    SELECT id FROM (
        SELECT j.id, sum(g.total) OVER (ORDER BY j.id DESC) AS so_far
        FROM (SELECT id FROM aaiclick_queue.jobs WHERE pruned_at IS NULL ORDER BY id DESC LIMIT {MOST_JOBS}) AS j
        JOIN aaiclick_queue.gates g ON g.id = j.id AND g.total <= {MOST_TASKS}) AS newest
    WHERE so_far <= {MOST_TASKS}
)"""
# What has arrived and was not counted yet.
_COMING = """coming AS MATERIALIZED (
    SELECT gate_id AS id, sum(n) AS n, sum(failed) AS failed, sum(skipped) AS skipped
    FROM aaiclick_queue.arrivals GROUP BY gate_id
)"""
_IS_SKIPPED = "(t.status = 'SKIPPED' OR t.status = 'FAILED' AND t.critical IS FALSE)"
HEIGHT = 10_000  # of groups in groups: a hostile client may write a circle of them
# A gate of a job or group counts its subtree, and an arrival below it comes up to it.
MISCOUNTED_MEMBERS = f"""
WITH RECURSIVE {_LOOKED}, {_COMING}, members AS MATERIALIZED (
    SELECT t.member_gate AS id, count(*) AS total, count(*) FILTER (WHERE t.status IS NULL) AS open,
           count(*) FILTER (WHERE {_IS_SKIPPED}) AS skipped,
           count(*) FILTER (WHERE t.status <> 'COMPLETED' AND NOT {_IS_SKIPPED}) AS failed
    FROM looked JOIN aaiclick_queue.tasks t ON t.job_id = looked.id GROUP BY t.member_gate
), gate AS MATERIALIZED (
    SELECT g.id, g.parent_id, g.total, g.remaining, g.failed, g.skipped, coalesce(members.total, 0) AS members,
           coalesce(members.open, 0) + coalesce(coming.n, 0) AS left_open,
           coalesce(members.failed, 0) - coalesce(coming.failed, 0) AS known_failed,
           coalesce(members.skipped, 0) - coalesce(coming.skipped, 0) AS known_skipped
    FROM looked JOIN aaiclick_queue.gates g ON g.job_id = looked.id AND g.kind IN ('JOB', 'GROUP')
    LEFT JOIN members ON members.id = g.id LEFT JOIN coming ON coming.id = g.id
), subtree AS (
    SELECT id, parent_id, members, left_open, known_failed, known_skipped, 1 AS height FROM gate
    UNION ALL
    SELECT gate.id, gate.parent_id, subtree.members, subtree.left_open, subtree.known_failed, subtree.known_skipped,
           subtree.height + 1
    FROM subtree JOIN gate ON gate.id = subtree.parent_id WHERE subtree.height < {HEIGHT}
), truth AS (
    SELECT id, sum(members) AS total, sum(left_open) AS remaining, sum(known_failed) AS failed,
           sum(known_skipped) AS skipped
    FROM subtree GROUP BY id
)
SELECT gate.id FROM gate JOIN truth ON truth.id = gate.id
WHERE (gate.total, gate.remaining, gate.failed, gate.skipped)
      <> (truth.total, truth.remaining, truth.failed, truth.skipped) LIMIT {LIMIT}
"""
# A gate of another kind counts what leads to it: tasks that have it behind them, and gates that have not told it yet.
# What a task returned leads there in its stead. A task's own gate is tied to it by whoever is asked to look there.
MISCOUNTED_ENDS = f"""
WITH {_LOOKED}, {_COMING}, of_tasks AS MATERIALIZED (
    SELECT t.exit_gate AS id, count(*) AS n FROM looked JOIN aaiclick_queue.tasks t ON t.job_id = looked.id
    WHERE t.exit_gate IS NOT NULL AND t.after_gate IS NULL AND t.status IS NULL GROUP BY t.exit_gate
    UNION ALL
    SELECT t.id, 1 FROM coming JOIN aaiclick_queue.tasks t ON t.id = coming.id
    WHERE t.exit_gate IS DISTINCT FROM t.id AND t.after_gate IS NULL
), of_gates AS MATERIALIZED (
    SELECT e.next_gate_id AS id, count(*) AS n
    FROM looked JOIN aaiclick_queue.gates g ON g.job_id = looked.id JOIN aaiclick_queue.gate_edges e ON e.gate_id = g.id
    WHERE g.state = 'WAITING' OR e.next_gate_id > g.edge_cursor GROUP BY e.next_gate_id
)
SELECT g.id FROM looked JOIN aaiclick_queue.gates g ON g.job_id = looked.id AND g.kind NOT IN ('JOB', 'GROUP')
LEFT JOIN of_tasks ON of_tasks.id = g.id LEFT JOIN of_gates ON of_gates.id = g.id LEFT JOIN coming ON coming.id = g.id
WHERE g.remaining < 0
   OR g.remaining <> coalesce(of_tasks.n, 0) + coalesce(of_gates.n, 0) + coalesce(coming.n, 0) LIMIT {LIMIT}
"""
UNFINISHED_GATES = f"""
WITH {_LOOKED}, {_COMING}
SELECT g.id FROM looked JOIN aaiclick_queue.gates g ON g.job_id = looked.id
WHERE g.state <> 'WAITING' AND g.id NOT IN (SELECT id FROM coming) AND (
    EXISTS (SELECT FROM aaiclick_queue.waiting w WHERE w.gate_id = g.id)
    OR EXISTS (SELECT FROM aaiclick_queue.gate_edges e WHERE e.gate_id = g.id AND e.next_gate_id > g.edge_cursor)
    OR g.remaining = 0 AND EXISTS (SELECT FROM aaiclick_queue.jobs j
                                   WHERE j.id = g.id AND j.status IN ('PENDING', 'RUNNING')))
LIMIT {LIMIT}
"""
# The dependencies as they were drawn against the tasks as they are, without a look at any counter. Of a task that was
# continued the gate of its continuation says how that came out, and what it chose is not asked.
#
# One that was retried, or waits again because of that, had ended before: what started because of that end is right,
# whatever the next one is. So that one, and no other, counts as it is wanted; but not for what was made or reset after
# the last retry, for that has waited for the end that there is now. With a task go those that it continues.
_STAYS_CLOSED = """CASE {rule}
        WHEN 'one_success' THEN bool_and({came_to} <> 'done') FILTER (WHERE NOT needed.any_of)
        WHEN 'all_done' THEN bool_or({came_to} IN ('open', 'not chosen')) FILTER (WHERE NOT needed.any_of)
        WHEN 'always' THEN bool_or({came_to} IN ('open', 'not chosen'))
                           FILTER (WHERE NOT needed.any_of AND needed.is_choice)
        ELSE bool_or({came_to} IN ('open', 'failed', 'not chosen')) FILTER (WHERE NOT needed.any_of) END
    OR bool_and({came_to} <> 'done') FILTER (WHERE needed.any_of)"""
STARTED_TOO_EARLY = f"""
WITH RECURSIVE {_LOOKED}, task AS MATERIALIZED (
    SELECT t.id, t.created_at, t.job_id, t.parent_id, t.group_id, coalesce(t.rule, 'all_success') AS rule, t.result,
           t.after_gate IS NOT NULL AS continued, own.ended_as, CASE
               WHEN own.ended_as = 'done' AND t.after_gate IS NOT NULL THEN (
                   SELECT CASE a.state WHEN 'WAITING' THEN 'open' WHEN 'OPEN' THEN 'done' WHEN 'SKIP' THEN 'skipped'
                                       ELSE 'failed' END FROM aaiclick_queue.gates a WHERE a.id = t.after_gate)
               ELSE own.ended_as END AS came_to,
           t.started_at IS NOT NULL OR t.status IS NULL AND NOT {WAITS_AT_GATE} AS has_started
    FROM looked JOIN aaiclick_queue.tasks t ON t.job_id = looked.id AND t.member_gate IS NOT NULL CROSS JOIN LATERAL (
        SELECT CASE WHEN t.status IS NULL THEN 'open' WHEN {_IS_SKIPPED} THEN 'skipped'
                    WHEN t.status = 'COMPLETED' THEN 'done' ELSE 'failed' END AS ended_as) AS own
), its_group AS MATERIALIZED (
    SELECT g.id, g.parent_group_id, g.spawned_by, coalesce(g.rule, 'all_success') AS rule
    FROM looked JOIN aaiclick_queue.groups g ON g.job_id = looked.id
), under AS (
    SELECT id AS top, id FROM its_group
    UNION SELECT under.top, its_group.id FROM under JOIN its_group ON its_group.parent_group_id = under.id
), members AS MATERIALIZED (
    SELECT group_id, count(*) AS n, count(*) FILTER (WHERE ended_as = 'open') AS open,
           count(*) FILTER (WHERE ended_as = 'failed') AS failed,
           count(*) FILTER (WHERE ended_as = 'skipped') AS skipped
    FROM task WHERE group_id IS NOT NULL GROUP BY group_id
), whole AS MATERIALIZED (
    SELECT under.top AS id, CASE WHEN sum(m.open) > 0 THEN 'open' WHEN sum(m.failed) > 0 THEN 'failed'
                                 WHEN sum(m.n) = sum(m.skipped) THEN 'skipped' ELSE 'done' END AS came_to
    FROM under JOIN members m ON m.group_id = under.id GROUP BY under.top
), needed AS MATERIALIZED (
    SELECT d.next_id, d.next_type, d.any_of, d.previous_id, d.previous_type, d.choices IS NOT NULL AS is_choice, CASE
               WHEN d.previous_type = 'group' THEN coalesce(whole.came_to, 'done')
               WHEN d.choices IS NULL OR task.continued OR task.came_to IN ('open', 'failed') THEN task.came_to
               ELSE CASE aaiclick_queue.arrives_as(CASE task.came_to WHEN 'done' THEN 'OPEN' ELSE 'SKIP' END,
                                                   d.choices, d.known, task.result)
                    WHEN 'OPEN' THEN 'done' WHEN 'FAIL' THEN 'failed' ELSE 'not chosen' END END AS came_to
    FROM looked JOIN aaiclick_queue.dependencies d ON d.job_id = looked.id
    LEFT JOIN task ON d.previous_type = 'task' AND task.id = d.previous_id
    LEFT JOIN whole ON d.previous_type = 'group' AND whole.id = d.previous_id
), node AS (
    SELECT id, 'task' AS type, rule FROM task UNION ALL SELECT id, 'group', rule FROM its_group
), closed AS MATERIALIZED (
    SELECT node.id, node.type, node.rule FROM needed
    JOIN node ON node.id = needed.next_id AND node.type = needed.next_type
    GROUP BY node.id, node.type, node.rule HAVING {_STAYS_CLOSED.format(rule="node.rule", came_to="needed.came_to")}
), early AS MATERIALIZED (
    SELECT found.id, found.job_id, found.behind, found.type, found.rule, greatest(found.created_at, (
        SELECT max(e.created_at) FROM aaiclick_queue.events e
        WHERE e.task_id = found.id AND e.type IN ('TASK_RETRIED', 'TASK_CLEARED'))) AS reset_at
    FROM (SELECT task.id, task.created_at, task.job_id, task.id AS behind, closed.type, closed.rule
          FROM closed JOIN task ON task.id = closed.id WHERE closed.type = 'task' AND task.has_started
          UNION ALL
          SELECT task.id, task.created_at, task.job_id, closed.id, closed.type, closed.rule
          FROM closed JOIN under ON under.top = closed.id JOIN task ON task.group_id = under.id
          WHERE closed.type = 'group' AND task.has_started) AS found
), again AS (
    SELECT e.task_id AS id, max(e.created_at) AS at
    FROM (SELECT DISTINCT job_id FROM early) AS its CROSS JOIN LATERAL (
        SELECT e.task_id, e.created_at FROM aaiclick_queue.events e WHERE e.job_id = its.job_id
        AND (e.type = 'TASK_RETRIED' OR e.type = 'TASK_CLEARED' AND e.data ? 'reason') OFFSET 0) AS e
    GROUP BY e.task_id
    UNION
    SELECT adder.id, again.at FROM again JOIN task ON task.id = again.id LEFT JOIN under ON under.id = task.group_id
    LEFT JOIN its_group ON its_group.id = under.top
    JOIN task AS adder ON adder.id IN (task.parent_id, its_group.spawned_by) AND adder.continued
), again_at AS MATERIALIZED (
    SELECT 'task' AS type, id, max(at) AS at FROM again GROUP BY id
    UNION ALL
    SELECT 'group', under.top, max(again.at) FROM again JOIN task ON task.id = again.id
    JOIN under ON under.id = task.group_id GROUP BY under.top
)
SELECT early.id FROM early JOIN needed ON needed.next_id = early.behind AND needed.next_type = early.type
LEFT JOIN again_at ON again_at.id = needed.previous_id AND again_at.type = needed.previous_type
CROSS JOIN LATERAL (
    SELECT CASE WHEN again_at.at > early.reset_at THEN 'done' ELSE needed.came_to END AS came_to
) AS was
GROUP BY early.id, early.behind, early.type, early.rule
HAVING {_STAYS_CLOSED.format(rule="early.rule", came_to="was.came_to")}
LIMIT {LIMIT}
"""
CROWDED = f"""
SELECT s.limit_id AS id FROM aaiclick_queue.slots s
LEFT JOIN aaiclick_queue.jobs j ON j.id = s.limit_id LEFT JOIN aaiclick_queue.groups g ON g.id = s.limit_id
WHERE coalesce(j.max_parallel, g.max_parallel) IS NOT NULL
GROUP BY s.limit_id, j.max_parallel, g.max_parallel HAVING count(*) > coalesce(j.max_parallel, g.max_parallel)
LIMIT {LIMIT}
"""
_REPORT = "report it with `aaiclick-queue job get ID`"
_SOME = "; of the newest jobs, up to 200,000 tasks"
JOB_CHECKS = (
    Check(
        "the gates of jobs and groups count their tasks",
        MISCOUNTED_MEMBERS,
        f"gates whose counts are not those of their tasks, taken together with what has arrived{_SOME}",
        _REPORT,
    ),
    Check(
        "gates count what leads to them",
        MISCOUNTED_ENDS,
        f"gates that wait for more ends than can come, or for fewer{_SOME}",
        _REPORT,
    ),
    Check(
        "what a gate has decided is carried out",
        UNFINISHED_GATES,
        f"gates that were decided with tasks or gates behind them that nobody will tell{_SOME}",
        "start a worker, or `aaiclick-queue background`: its sweep looks at them again",
        twice=True,
    ),
    Check(
        "nothing starts before its dependencies allow it",
        STARTED_TOO_EARLY,
        f"tasks in line, running or run although what they depend on was not done as their rule wants it{_SOME}",
        _REPORT,
    ),
    Check(
        "no more of a job is at work than its max_parallel",
        CROWDED,
        "jobs and groups with more runs than their max_parallel",
        _REPORT,
    ),
    Check(
        "no open job stalls",
        STALLED,
        "open jobs of which nothing runs, is queued, scheduled, held or about to be resolved"
        "; of the newest open ones, up to 200,000 tasks",
        "`aaiclick-queue job get ID` tells the reason; the sweep of a worker looks at them again",
        lambda _: (None,),
        twice=True,
    ),
)
