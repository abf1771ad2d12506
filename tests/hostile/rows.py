"""Rows as a hostile client writes them, or one that is newer than we are: by table, each a name and its statements.

`#1` to `#9` are ids of the row's own. What Postgres itself refuses needs no cure; all else must be lived with.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

Rows = Sequence[str]

GOOD, FAILS, IN_THREAD = "hostile.good", "hostile.fails", "hostile.in_thread"


def in_line(task: str = "", place: str = "", *, entrypoint: str = GOOD) -> Rows:
    """A task in line, with these columns of its own and of its place."""
    return (
        f"""INSERT INTO aaiclick_queue.tasks (id, queue, entrypoint, kwargs) VALUES (#1, 'default', '{entrypoint}', '{{}}');
            INSERT INTO aaiclick_queue.ready (queue, rank, order_key, task_id) VALUES ('default', 0, #1, #1)""",
        f"UPDATE aaiclick_queue.tasks SET {task} WHERE id = #1" if task else "",
        f"UPDATE aaiclick_queue.ready SET {place} WHERE task_id = #1" if place else "",
    )


def delayed(task: str = "", place: str = "not_before = now()") -> Rows:
    """One that waits for its time."""
    return (
        *in_line(task),
        """DELETE FROM aaiclick_queue.ready WHERE task_id = #1;
           INSERT INTO aaiclick_queue.delayed (task_id, not_before, order_key, rank, queue, reason)
           VALUES (#1, now() + interval '1 h', #1, 0, 'default', 'eta')""",
        f"UPDATE aaiclick_queue.delayed SET {place} WHERE task_id = #1",
    )


def leased(task: str = "", place: str = "worker_id = #2") -> Rows:
    """One that runs, as its row says."""
    return (
        *in_line(task),
        """DELETE FROM aaiclick_queue.ready WHERE task_id = #1;
           INSERT INTO aaiclick_queue.leases (task_id, worker_id, order_key, ready_at, deadline_at, rank, run_epoch,
                                              attempt, lost_count, snoozes, flags, queue)
           VALUES (#1, #2, #1, now(), now() + interval '1 hour', 0, 1, 1, 0, 0, 0, 'default')""",
        f"UPDATE aaiclick_queue.leases SET {place} WHERE task_id = #1",
    )


def worker(columns: str) -> Rows:
    """A worker's row."""
    return (
        """INSERT INTO aaiclick_queue.workers (id, lease_expires_at, pid, slots, hostname, version, status, queues)
           VALUES (#2, now() + interval '1 h', 1, 1, 'elsewhere', '99.0', 'ACTIVE', '{}')""",
        f"UPDATE aaiclick_queue.workers SET {columns} WHERE id = #2",
    )


def job(columns: str = "", *, gate: str = "1, 1, 'JOB', 'whole'", arrived: bool = False) -> Rows:
    """A job with its gate."""
    return (
        f"""INSERT INTO aaiclick_queue.jobs (id, name) VALUES (#3, 'odd');
            INSERT INTO aaiclick_queue.gates (id, job_id, total, remaining, kind, rule) VALUES (#3, #3, {gate})""",
        f"UPDATE aaiclick_queue.jobs SET {columns} WHERE id = #3" if columns else "",
        "INSERT INTO aaiclick_queue.arrivals (gate_id, n) VALUES (#3, 1)" if arrived else "",
    )


def at_gate(task: str, place: str = "flags = 128") -> Rows:
    """A task that waits at a gate which opens."""
    return (
        *in_line(task),
        *job(),
        f"""DELETE FROM aaiclick_queue.ready WHERE task_id = #1;
            INSERT INTO aaiclick_queue.gates (id, job_id, total, remaining, kind, rule)
            VALUES (#4, #3, 1, 1, 'WAIT', 'all_success');
            UPDATE aaiclick_queue.tasks SET job_id = #3, wait_gate = #4, member_gate = #3 WHERE id = #1;
            INSERT INTO aaiclick_queue.waiting (gate_id, task_id) VALUES (#4, #1);
            UPDATE aaiclick_queue.waiting SET {place} WHERE task_id = #1;
            INSERT INTO aaiclick_queue.arrivals (gate_id, n) VALUES (#4, 1)""",
    )


def operation(kind: str, where: str = "{}", arguments: str = "{}", more: str = "") -> Rows:
    """An operation."""
    return (
        f"""INSERT INTO aaiclick_queue.operations (id, kind, filter, arguments, up_to) OVERRIDING SYSTEM VALUE
            VALUES (#5, '{kind}', '{where}', '{arguments}', 9223372036854775807)""",
        f"UPDATE aaiclick_queue.operations SET {more} WHERE id = #5" if more else "",
    )


def schedule(columns: str) -> Rows:
    """A registered job that is due."""
    return (
        """INSERT INTO aaiclick_queue.registered_jobs (name, entrypoint, anchor_at, fire_at, next_run_at,
                                                       interval_seconds)
           VALUES ('odd #6', 'hostile.good', now(), now(), now(), 3600)""",
        f"UPDATE aaiclick_queue.registered_jobs SET {columns} WHERE name = 'odd #6'",
    )


def _each(build: Callable[[str], Rows], column: str, values: str) -> Iterator[tuple[str, Rows]]:
    for value in values.split(" | "):
        yield column.replace("?", value), build(column.replace("?", value))


_OBJECTS = """'"x"' | '5' | '[1]' | 'null' | '{}' | '{"a": {"b": [1e400]}}'"""
_MOMENTS = "'infinity' | '-infinity' | '290000-01-01' | '4000-01-01 BC'"
_NUMBERS = "'inf' | '-inf' | 'nan' | -1 | 0 | 1e-30 | 1e12 | 1e30 | -1e30"

TASKS = {
    "entrypoint unknown": in_line("entrypoint = 'no.such'"),
    "entrypoint empty": in_line("entrypoint = ''"),
    "entrypoint huge": in_line("entrypoint = repeat('x', 100000)"),
    "entrypoint of a terminal": in_line(r"entrypoint = E'a\nb\x1b[31m', name = E'\x1b[31m\n'"),
    **dict(_each(in_line, "kwargs = ?", _OBJECTS)),
    "kwargs extra": in_line("""kwargs = '{"zzz": 1}'"""),
    "kwargs of another type": in_line("""kwargs = '{"n": {"a": [1]}}'"""),
    "kwargs huge number": in_line("""kwargs = ('{"n": ' || repeat('9', 5000) || '}')::jsonb"""),
    "kwargs with a tag": in_line("""kwargs = '{"n": {"$type": "os.system", "$node": "x"}}'"""),
    "kwargs deep": in_line("""kwargs = ('{"n": ' || repeat('[', 5000) || repeat(']', 5000) || '}')::jsonb"""),
    "kwargs for many": in_line("""kwargs = '{"$each": 3}'"""),
    "kwargs for many, one odd": in_line("""kwargs = '{"$each": [3, {}, [1, 2, 3], null]}'"""),
    "kwargs that name a task beyond": in_line("""kwargs = '{"n": {"$node": 99999999999999999999}}'""", "flags = 256"),
    "kwargs that name no task": in_line("""kwargs = '[{"$node": 1}]'""", "flags = 256"),
    "kwargs that name a group of itself": (
        *job(),
        "INSERT INTO aaiclick_queue.groups (id, job_id, parent_group_id, name) VALUES (#7, #3, #8, ''), (#8, #3, #7, '')",
        *in_line("""kwargs = '{"n": {"$group": #7}}'""", "flags = 256"),
        "UPDATE aaiclick_queue.tasks SET job_id = #3 WHERE id = #1",
    ),
    **dict(_each(in_line, "timeout_seconds = ?", _NUMBERS)),
    "timeout of a thread": in_line("timeout_seconds = 1e12", entrypoint=IN_THREAD),
    "priority": in_line("priority = -32768"),
    "priority of a failure": in_line("priority = -32768", entrypoint=FAILS),
    **dict(_each(in_line, "created_at = ?, eta = ?, expires_at = ?", _MOMENTS)),
    "max_attempts below": in_line("max_attempts = -1", entrypoint=FAILS),
    "max_attempts none": in_line("max_attempts = 0", entrypoint=FAILS),
    "max_attempts spent": in_line("max_attempts = 32767", "attempt = 32765", entrypoint=FAILS),
    **{
        f"{column} of {entrypoint} is {value}": in_line(
            f"{column} = {value}, max_attempts = 2", flags, entrypoint=entrypoint
        )
        for column, flags in (("retry", ""), ("metadata", ""), ("hooks", "flags = 16"))
        for entrypoint in (GOOD, FAILS)
        for value in _OBJECTS.split(" | ")
    },
    "retry of words": in_line("""retry = '{"delay": "x"}'""", entrypoint=FAILS),
    "retry beyond": in_line("""retry = '{"delay": 1e308, "factor": 1e308, "max_delay": 1e308}'""", entrypoint=FAILS),
    "retry before": in_line("""retry = '{"delay": -1e12, "max_delay": -1e12}'""", entrypoint=FAILS),
    "headers": in_line("""metadata = '{"$headers": 5}'"""),
    "headers of another type": in_line("""metadata = '{"$headers": {"traceparent": 5}}'"""),
    "hook without name": in_line("""hooks = '{"success": {}, "failure": "x"}'""", "flags = 16"),
    "hook with a list": in_line(
        """hooks = '{"success": {"entrypoint": "hostile.good", "kwargs": [1], "queue": {"a": 1}}}'""", "flags = 16"
    ),
    "hook of a retry": in_line("""hooks = '{"retry": {}, "failure": {}}'""", "flags = 16", entrypoint=FAILS),
    "keep, rule": in_line("keep = 'maybe', rule = '??', name = '', spawn_key = '??', map_index = -5"),
    "another queue": in_line("queue = 'another'"),
    "final and in line": in_line("status = 'COMPLETED'"),
    "final with rubbish": in_line("status = 'FAILED', error = '[1]', result = '{}'"),
    "result before its end": in_line("result = '5', error = '5'"),
    "long keys": in_line("concurrency_key = repeat('k', 100000), correlation_id = repeat('c', 100000)"),
    "of a job that is not there": in_line(
        "job_id = #9, member_gate = #9, exit_gate = #8, group_id = #7", "flags = 128"
    ),
    "of a crowd that is none": delayed("job_id = #9, crowd = 'x=y/=='"),
    "of a crowd beyond": delayed("job_id = #9, crowd = '99999999999999999999=99999999999999999999'"),
    "of a crowd and no job": delayed("crowd = '1=1'"),
    "order of a long name": delayed("order_by = (SELECT string_agg(md5(n::text), '') FROM generate_series(1, 500) n)"),
    "ended before all time": (
        *in_line("status = 'FAILED', finished_at = '-infinity'"),
        "DELETE FROM aaiclick_queue.ready WHERE task_id = #1",
    ),
    "ended after all time": (
        *in_line("status = 'COMPLETED', finished_at = 'infinity', started_at = '-infinity'"),
        "DELETE FROM aaiclick_queue.ready WHERE task_id = #1",
    ),
}
PLACES = {
    **dict(_each(lambda place: in_line("", place), "ready_at = ?", _MOMENTS)),
    **dict(_each(lambda place: in_line("", place), "attempt = ?", "32767 | -32768")),
    **dict(_each(lambda place: in_line("", place), "run_epoch = ?", "2147483647 | -2147483648")),
    **dict(_each(lambda place: in_line("", place), "lost_count = ?", "32767 | -32768")),
    **dict(_each(lambda place: in_line("", place), "snoozes = ?", "32767 | -32768")),
    **dict(_each(lambda place: in_line("", place), "rank = ?", "2147483647 | -2147483648")),
    **dict(_each(lambda place: in_line("", place), "order_key = ?", "9223372036854775807 | -9223372036854775808")),
    **dict(_each(lambda place: in_line("", place), "flags = ?", "-1 | 16384 | 512 | 128 | 2 | 30 | 32767")),
    "flags of a failure": in_line("", "flags = -1", entrypoint=FAILS),
    "a newer flag of a failure": in_line("", "flags = 1024", entrypoint=FAILS),
    "in line without a task": (
        "INSERT INTO aaiclick_queue.ready (queue, rank, order_key, task_id) VALUES ('default', 0, 1, #1)",
    ),
    "twice in line": (
        *in_line(),
        "INSERT INTO aaiclick_queue.ready (queue, rank, order_key, task_id) VALUES ('default', 5, #1, #1)",
    ),
    "in line and leased": (
        *leased(),
        "INSERT INTO aaiclick_queue.ready (queue, rank, order_key, task_id) VALUES ('default', 0, #1, #1)",
    ),
    "in line and delayed": (
        *delayed("", "not_before = now()"),
        "INSERT INTO aaiclick_queue.ready (queue, rank, order_key, task_id) VALUES ('default', 0, #1, #1)",
    ),
    **dict(_each(lambda place: delayed("", place), "not_before = ?", _MOMENTS + " | '1900-01-01'")),
    "delayed for a reason": delayed("", "not_before = now(), reason = '??'"),
    "delayed at its end": delayed(
        "", "not_before = now(), attempt = 32767, run_epoch = 2147483647, rank = -2147483648"
    ),
    "delayed with a priority": delayed("priority = -32768"),
    "delayed without a task": (
        "INSERT INTO aaiclick_queue.delayed (task_id, not_before, order_key, rank, queue, reason) VALUES (#1, now(), 1, 0, 'default', 'x')",
    ),
    "leased to nobody": leased(),
    **dict(_each(lambda place: leased("", place), "claimed_at = ?, ready_at = ?, deadline_at = ?", _MOMENTS)),
    **dict(_each(lambda place: leased("", place), "deadline_at = now(), claimed_at = ?", _MOMENTS)),
    "leased and lost": leased("", "lost_count = 32767"),
    "leased before its first attempt": leased("", "attempt = -32768"),
    "leased with flags": leased("hooks = '[1]'", "flags = -1, lost_count = 30"),
    "leased with a priority": leased("priority = -32768", "deadline_at = now()"),
    "leased with a retry": leased("""retry = '{"delay": "x"}'""", "deadline_at = now()"),
    "leased without a task": (
        """INSERT INTO aaiclick_queue.leases (task_id, worker_id, order_key, ready_at, deadline_at, rank, run_epoch,
           attempt, lost_count, snoozes, flags, queue) VALUES (#1, #2, 1, now(), now(), 0, 1, 1, 0, 0, 0, 'default')""",
    ),
    "leased to one that is lost": (*worker("status = 'LOST'"), *leased("", "lost_count = 32767")),
    "leased long ago to one that is lost": (
        *worker("status = 'LOST'"),
        *leased("""retry = '"x"'""", "claimed_at = '-infinity', attempt = -32768"),
    ),
    "leased to one that is silent": (
        *worker("lease_expires_at = now() - interval '1 day'"),
        *leased("priority = -32768", "ready_at = 'infinity'"),
    ),
    "held without a task": (
        "INSERT INTO aaiclick_queue.held (task_id, order_key, rank, queue) VALUES (#1, -1, -5, 'default')",
    ),
    **{
        f"held {columns}": (
            *in_line(),
            "DELETE FROM aaiclick_queue.ready WHERE task_id = #1; INSERT INTO aaiclick_queue.held (task_id, order_key, rank, queue) VALUES (#1, #1, 0, 'default')",
            f"UPDATE aaiclick_queue.held SET {columns} WHERE task_id = #1",
        )
        for columns in (
            "crowd = '///=x'",
            "crowd = '5/5=99999999999999999999'",
            "crowd = 'x/y'",
            "held_at = 'infinity'",
            "attempt = 32767, run_epoch = 2147483647, rank = -2147483648, order_key = -9223372036854775808",
            "chain = repeat('c', 500), key = 'k', entrypoint = 'e'",
        )
    },
    "waiting at no gate": ("INSERT INTO aaiclick_queue.waiting (gate_id, task_id) VALUES (#4, #1)",),
    "waiting without a task": (
        *job(gate="1, 1, 'WAIT', 'all_success'", arrived=True),
        "INSERT INTO aaiclick_queue.waiting (gate_id, task_id) VALUES (#3, #1)",
    ),
    **dict(_each(at_gate, "countdown = ?", _NUMBERS)),
    **dict(_each(at_gate, "eta = ?", _MOMENTS)),
    "waiting with a priority": at_gate("priority = -32768"),
    "waiting at its end": at_gate("name = 'x'", "run_epoch = 2147483647, flags = -1"),
}
JOBS = {
    **dict(_each(job, "deadline_at = ?", _MOMENTS)),
    **dict(_each(job, "created_at = ?, started_at = ?, deadline_at = now()", _MOMENTS)),
    **{
        f"{column} {value}": job(f"{column} = {value}", arrived=True)
        for column in ("hooks", "metadata", "kwargs", "returns", "error")
        for value in _OBJECTS.split(" | ")
    },
    "a hook without name": job("""hooks = '{"success": {}}'""", arrived=True),
    "a priority": job("""priority = -32768, hooks = '{"success": {"entrypoint": "hostile.good"}}'""", arrived=True),
    "a long name": job(
        "name = repeat('n', 2000), run_type = '??', max_parallel = -5, registered_job_id = -4", arrived=True
    ),
    "started before all time": job("started_at = '-infinity'", arrived=True),
    **dict(
        _each(job, "status = 'COMPLETED', finished_at = now() - interval '40 days', retention_seconds = ?", _NUMBERS)
    ),
    **dict(_each(job, "status = 'COMPLETED', finished_at = ?", _MOMENTS)),
    "no gate": ("INSERT INTO aaiclick_queue.jobs (id, name) VALUES (#3, 'without a gate')",),
    "a gate and no job": (
        """INSERT INTO aaiclick_queue.gates (id, job_id, total, remaining, kind, rule) VALUES (#4, #4, 1, 1, 'JOB', 'whole');
           INSERT INTO aaiclick_queue.arrivals (gate_id, n) VALUES (#4, 1)""",
    ),
    "arrivals at no gate": ("INSERT INTO aaiclick_queue.arrivals (gate_id, n) VALUES (#4, 1), (-#4, 2147483647)",),
    "too many arrivals": (
        *job(gate="5, 5, 'JOB', 'whole'"),
        """INSERT INTO aaiclick_queue.arrivals (gate_id, n, failed, skipped, vetoed)
           SELECT #3, 2147483647, 2147483647, 2147483647, 2147483647 FROM generate_series(1, 3)""",
    ),
    "arrivals below": (
        *job(gate="5, 5, 'JOB', 'whole'"),
        """INSERT INTO aaiclick_queue.arrivals (gate_id, n, failed, skipped, vetoed)
           SELECT #3, -2147483648, -2147483648, -2147483648, -2147483648 FROM generate_series(1, 3)""",
    ),
    "a gate beyond": job(gate="2147483647, -2147483648, 'JOB', 'one_success'", arrived=True),
    "a gate of itself": (
        *job(gate="5, 5, 'GROUP', 'whole'", arrived=True),
        "UPDATE aaiclick_queue.gates SET parent_id = #3 WHERE id = #3",
    ),
    "gates of each other": (
        *job(gate="5, 5, 'GROUP', 'whole'", arrived=True),
        """INSERT INTO aaiclick_queue.gates (id, job_id, total, remaining, kind, rule, parent_id) VALUES (#4, #3, 5, 5, 'GROUP', 'whole', #3);
           UPDATE aaiclick_queue.gates SET parent_id = #4 WHERE id = #3""",
    ),
    "edges to itself and nowhere": (
        *job(gate="1, 1, 'TASK', 'all_success'", arrived=True),
        "INSERT INTO aaiclick_queue.gate_edges VALUES (#3, #3, NULL, NULL), (#3, #4, '{a,NULL}', '{}')",
    ),
    "groups in circles": (
        *job(),
        """INSERT INTO aaiclick_queue.groups (id, job_id, parent_group_id, name, max_parallel, crowd, rule)
           VALUES (#7, #3, #7, '', -1, 'x', '??'), (#8, #3, #9, '', -1, 'x', '??'), (#9, #3, #8, '', -1, 'x', '??')""",
        *in_line(),
        "UPDATE aaiclick_queue.tasks SET job_id = #3, group_id = #7 WHERE id = #1",
    ),
    "dependencies in circles": (
        *job(),
        """INSERT INTO aaiclick_queue.dependencies (job_id, previous_id, next_id, previous_type, next_type, choices)
           VALUES (#3, #1, #1, 'task', 'task', '{NULL}'), (#3, #1, #2, 'task', 'group', '{}'), (#3, #2, #1, 'group', 'task', NULL)""",
    ),
}
OPERATIONS = {
    "unknown": operation("dance"),
    "empty": operation(""),
    **{
        f"{kind} {where} {arguments}": operation(kind, where, arguments)
        for kind in ("move", "limit", "cancel", "cancel_job", "retry", "backfill")
        for where, arguments in (
            ("{}", "[]"),
            ("[1]", '"x"'),
            ("null", "null"),
            (
                '{"job": "x", "queue": 5, "registered": "x", "ids": ["x"], "fingerprint": 5}',
                '{"limit_id": "x", "start": 1}',
            ),
            ('{"job": "99999999999999999999", "older_than": "x"}', '{"priority": 99999999, "queue": null}'),
            ('{"queue": "nobody", "entrypoint": {"a": 1}, "status": ["x"]}', '{"error": 5, "message": []}'),
        )
    },
    "at no place": operation("move", '{"queue": "nobody"}', '{"queue": "q2"}', "place = 'nowhere'"),
    "after nothing": operation(
        "move", '{"queue": "nobody"}', '{"queue": "q2"}', """place = 'ready', after = '"rubbish"'"""
    ),
    "moments": operation(
        "cancel",
        '{"queue": "nobody"}',
        "{}",
        "created_at = 'infinity', updated_at = '-infinity', up_to = -1, done = -5",
    ),
}
SCHEDULES = {
    **dict(
        _each(schedule, "schedule = ?", """'{rubbish}' | '{NULL}' | ARRAY[repeat('* ', 100000)] | '{"60 * * * *"}'""")
    ),
    "no schedule": schedule("interval_seconds = NULL"),
    "a zone": schedule("timezone = 'Mars/Olympus', schedule = '{\"* * * * *\"}'"),
    **dict(_each(schedule, "interval_seconds = ?", _NUMBERS)),
    **dict(_each(schedule, "jitter_seconds = ?", _NUMBERS)),
    **dict(_each(schedule, "timeout_seconds = ?, retention_seconds = ?", _NUMBERS)),
    **dict(_each(schedule, "next_run_at = ?", _MOMENTS)),
    **dict(_each(schedule, "fire_at = ?", _MOMENTS + " | NULL")),
    **dict(_each(schedule, "anchor_at = ?", _MOMENTS)),
    **dict(_each(schedule, "starts_at = ?, ends_at = ?", _MOMENTS)),
    **dict(_each(schedule, "queued_fire_at = ?, overlap = 'queue'", _MOMENTS)),
    **dict(_each(schedule, "created_at = ?, updated_at = ?", _MOMENTS)),
    **dict(_each(schedule, "default_kwargs = ?", _OBJECTS)),
    **dict(_each(schedule, "options = ?, declared = ?", _OBJECTS)),
    "options": schedule("""options = '{"fail_fast": "perhaps", "hooks": 5, "metadata": [1]}'"""),
    "numbers": schedule("priority = -32768, max_attempts = 2147483647, max_parallel = -2147483648"),
    "misfires": schedule(
        "misfire = 'catch_up', misfire_limit = -5, fire_at = now() - interval '99 years', next_run_at = now() - interval '99 years'"
    ),
    "replacing": schedule("replacing = '{-1,5,NULL}', overlap = 'replace'"),
    "no names": schedule("queue = '', entrypoint = '', description = '', source = 'code', declared_in = '??'"),
}
OTHERS = {
    **dict(_each(worker, "lease_expires_at = ?, started_at = ?, last_heartbeat = ?", _MOMENTS)),
    "a worker": worker(
        r"""pid = -1, slots = -5, running = 2147483647, version = '', hostname = E'\n\x1b', asked = 'rubbish',
            rss_bytes = -9223372036854775808, lag_seconds = 'nan', skew_seconds = 'inf', entrypoints = ARRAY[NULL, 'x'],
            secrets = ARRAY[NULL, 'nospace', ''], queues = ARRAY[NULL, '']::text[]"""
    ),
    "a wake-up of nothing": (
        "INSERT INTO aaiclick_queue.outbox (order_key, rank, n, queue, task_ids) VALUES (0, 0, 0, 'default', '{}')",
    ),
    "wake-ups of rubbish": (
        "INSERT INTO aaiclick_queue.outbox (order_key, rank, n, queue, task_ids) VALUES (-9223372036854775808, -2147483648, -2147483648, '', '{-1,NULL}')",
        "INSERT INTO aaiclick_queue.outbox (order_key, rank, n, queue, task_ids) VALUES (9223372036854775807, 2147483647, 2147483647, repeat('q', 1000000), '{{1,2},{3,4}}')",
        "INSERT INTO aaiclick_queue.outbox (created_at, order_key, rank, n, queue, task_ids) VALUES ('-infinity', 0, 0, 1, 'nobody', '{1}')",
    ),
    "a wake-up of the future": (
        "INSERT INTO aaiclick_queue.outbox (created_at, order_key, rank, n, queue, task_ids) VALUES ('infinity', 0, 0, 1, 'default', '{1}')",
    ),
    "limits": (
        "INSERT INTO aaiclick_queue.limits (scope, name, kind, n) VALUES ('job', 'notanumber', 'pause', 1), ('job', '99999999999999999999999', 'pause', 1)",
        "INSERT INTO aaiclick_queue.limits (scope, name, kind, n, per_key) VALUES ('key', '', 'running', 0, true)",
        "INSERT INTO aaiclick_queue.limits (scope, name, kind, n, turn) VALUES ('queue', 'odd', 'fair', -1, -9223372036854775808)",
        "INSERT INTO aaiclick_queue.limits (scope, name, kind, n, until) VALUES ('queue', 'odd', 'pause', 1, 'infinity')",
        "INSERT INTO aaiclick_queue.limits (scope, name, kind, n, seconds) VALUES ('queue', 'odd', 'rate', 0, NULL)",
    ),
    **{
        f"a rate of {value}": (
            f"INSERT INTO aaiclick_queue.limits (scope, name, kind, n, seconds) VALUES ('queue', 'odd #5', 'rate', 1, {value})",
        )
        for value in _NUMBERS.split(" | ")
    },
    "queues": (
        """INSERT INTO aaiclick_queue.queues (name, max_depth, depth, objective_seconds, ready_count)
           VALUES ('odd', -5, -5, 'nan', -7), ('', 2147483647, 9223372036854775807, 'inf', 9223372036854775807)""",
        "INSERT INTO aaiclick_queue.queues (name, paused_at, paused_by) VALUES ('odd 2', '-infinity', 'operation 99')",
        "INSERT INTO aaiclick_queue.queues (name, depth_at, full_at, ready_counted_at, max_depth) VALUES ('odd 3', 'infinity', '-infinity', 'infinity', 1)",
    ),
    **{
        f"slots of {value}": (
            *in_line("", "flags = 2", entrypoint=entrypoint),
            f"INSERT INTO aaiclick_queue.slots (task_id, limit_id, seconds) VALUES (#1, 99, {value})",
        )
        for value in _NUMBERS.split(" | ")
        for entrypoint in (GOOD, FAILS)
    },
    "slots": (
        "INSERT INTO aaiclick_queue.slots (task_id, limit_id, stopping, ends_at, worker_id) VALUES (1, 99, -5, 'infinity', -1), (3, 0, 0, '-infinity', 4)",
    ),
    "keys": (
        "INSERT INTO aaiclick_queue.dedupe (scope, key, task_id, until, first_at) VALUES ('??', '', -1, 'infinity', '-infinity'), ('', '', 0, '-infinity', 'infinity')",
    ),
    **{
        f"a timer {value}": (f"INSERT INTO aaiclick_queue.timers VALUES (#1, {value})",)
        for value in _MOMENTS.split(" | ")
    },
    "a timer of what is odd": (
        *delayed("priority = -32768, metadata = '5', hooks = '5'", "flags = -1, attempt = -32768"),
        "INSERT INTO aaiclick_queue.timers VALUES (#1, now())",
    ),
    "events": (
        "INSERT INTO aaiclick_queue.events (task_id, type, data, job_id) VALUES (1, 'NEW_KIND', '5', 2), (NULL, '', '[1]', NULL), (1, repeat('x', 100000), '\"x\"', 2)",
    ),
    "attempts": (
        "INSERT INTO aaiclick_queue.attempts (task_id, run_epoch, attempt, outcome, error, started_at, ready_at) VALUES (1, -1, -5, 'DANCED', '5', 'infinity', '-infinity')",
    ),
    **{
        f"events of the system {value}": (
            f"INSERT INTO aaiclick_queue.system_events (type, data, created_at) VALUES ('??', '5', {value}), ('', '[]', now())",
        )
        for value in _MOMENTS.split(" | ")
    },
    **{
        f"alarms {value}": (
            f"INSERT INTO aaiclick_queue.alarms (kind, what, data, since, seen_at) VALUES ('??', '#1', '5', {value}, {value}), ('invariant', '#1', '[1]', {value}, now()), ('stall', 'x #1', '5', now(), now())",
        )
        for value in _MOMENTS.split(" | ")
    },
    "orchestrators": (
        """INSERT INTO aaiclick_queue.orchestrators (id, pid, hostname, version, loops) VALUES (1, -1, '', '', '5'), (2, -1, '', '', '{"relay": 5, "zz": {"cycles": "x"}}')""",
    ),
    "figures": (
        """INSERT INTO aaiclick_queue.figures (minute, queue, entrypoint, waits, runs, wait_seconds, completed)
                   VALUES (date_trunc('minute', now()), 'default', 'hostile.good', '{}', '{{1,2},{3,4}}', 'nan', -5),
                          (date_trunc('minute', now()), '', '', '{NULL}', ARRAY(SELECT 2147483647 FROM generate_series(1, 1000)), 'inf', 2147483647),
                          (date_trunc('minute', now()), 'default', 'hostile.fails', '{2147483647}', '{2147483647}', 0, 2147483647)""",
    ),
    "samples": (
        """INSERT INTO aaiclick_queue.samples (minute, queue, ready, running, delayed, held, created, oldest_seconds)
                   VALUES (date_trunc('minute', now()), 'odd', -5, -5, 9223372036854775807, -1, -1, 'nan')""",
        "INSERT INTO aaiclick_queue.samples (minute, queue, ready, running, delayed, held) VALUES ('infinity', '', 1, 1, 1, 1), ('-infinity', '', 1, 1, 1, 1)",
    ),
    **{
        f"failures {value}": (
            f"INSERT INTO aaiclick_queue.failures (task_id, failed_at, fingerprint, queue, entrypoint, error_type) VALUES (#1, {value}, '', '', '', '')",
        )
        for value in _MOMENTS.split(" | ")
    },
    **{
        f"ticks {value}": (
            f"INSERT INTO aaiclick_queue.ticks (registered_job_id, fire_at, outcome, missed, job_id, due_at) VALUES (-1, {value}, 'FIRED', -5, -1, {value})",
        )
        for value in _MOMENTS.split(" | ")
    },
    "progress": (
        *in_line(),
        "INSERT INTO aaiclick_queue.progress (task_id, run_epoch, data) VALUES (#1, 99, '\"x\"')",
        "INSERT INTO aaiclick_queue.checkpoints (task_id, run_epoch, data, updated_at) VALUES (#1, -1, '5', '-infinity')",
    ),
    "loops": ("INSERT INTO aaiclick_queue.loops VALUES ('odd', -1, 'infinity'), ('other', 5, '-infinity')",),
}
ALL = {
    f"{table}: {name}": rows
    for table, group in (
        ("tasks", TASKS),
        ("places", PLACES),
        ("jobs", JOBS),
        ("operations", OPERATIONS),
        ("schedules", SCHEDULES),
        ("others", OTHERS),
    )
    for name, rows in group.items()
}


def statements(rows: Rows, number: int) -> Iterator[str]:
    """The statements with ids that no other rows have."""
    for one in rows:
        text = re.sub(r"#([1-9])", lambda place: str(10_000_000 + number * 10 + int(place[1])), one)
        yield from (part for part in text.split(";") if part.strip())
