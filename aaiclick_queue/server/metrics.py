"""The state of the system for Prometheus: gauges out of Postgres, at most every five seconds, whoever asks.

Redis gets fifty milliseconds to tell the lengths of its streams; its absence is a gauge and no failure.
"""

from __future__ import annotations

import asyncio
import math
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..clickhouse import is_answering
from ..doctor import CHECK_NAMES
from ..errors import PostgresUnavailable, StreamsDown
from ..exposition import made, process_families, rendered
from ..flow.detect import EVENTS
from ..flow.watch import INVARIANT
from ..meters import Labels
from ..metric_families import FAMILIES
from ..postgres import Database
from ..streams import Streams
from . import state_rows as sql

CACHE_SECONDS = 5.0
SLOW_SECONDS = 30.0  # what changes slowly, a third of the whole: sizes, schedules, what is estimated
REDIS_SECONDS = 0.05
ARCHIVE_SECONDS = 0.3
COUNTED = 3_000  # tasks in line, over all queues
NAMED = 200
SAMPLED = 2_000
ALARM_KINDS = (*EVENTS, INVARIANT)
OBJECTIVE_SECONDS = 300.0
RELAY_SECONDS, SCHEDULE_SECONDS = 30.0, 120.0
YEAR = 366 * 86400.0

Values = dict[str, dict[Labels, float]]


class Found(NamedTuple):
    """What changes slowly, and helps to estimate what was not counted."""

    tables: Mapping[str, Any]
    gates: Mapping[str, int]  # tasks of a sample of those that wait for others, by queue
    shares: Mapping[str, float]  # of each queue in the line
    schedules: Sequence[Any]
    schedule_states: Sequence[Any]
    backlog: float

    def live(self, table: str) -> int:
        """Rows, as Postgres thinks."""
        return int(self.tables[table]["live"] or 0) if table in self.tables else 0


async def state_metrics(db: Database) -> bytes:
    """The gauges of the whole system as text; at most five seconds old."""
    return rendered([made(FAMILIES[name], values) for name, values in (await _collector(db).read()).items()])


async def server_metrics(db: Database) -> bytes:
    """The same, with what this process has counted of itself."""
    state = [made(FAMILIES[name], values) for name, values in (await _collector(db).read()).items()]
    return rendered([*process_families(), *state], others=True)


class Collector:
    """Reads the state, and keeps it for a moment."""

    def __init__(self, db: Database) -> None:
        self._settings = db.settings
        self._db = weakref.ref(db)
        self._values: Values = {}
        self._read_at = -CACHE_SECONDS
        self._found: Found | None = None
        self._found_at = 0.0
        self._changed: dict[int, tuple[str, float]] = {}  # marks of the oldest open jobs, and when they changed
        self._lock = asyncio.Lock()

    async def read(self) -> Values:
        """The gauges; those of Postgres are absent, but for `up`, while it does not answer."""
        async with self._lock:
            if time.monotonic() - self._read_at >= CACHE_SECONDS:
                self._values = await self._look()
                self._read_at = time.monotonic()
            return self._values

    async def _look(self) -> Values:
        db = self._db()
        assert db is not None
        values: Values = {family.name: {} for family in FAMILIES.values() if family.scope == "state"}
        try:
            await self._ask_postgres(db, values)
            values["up"][("postgres",)] = 1.0
        except PostgresUnavailable:
            values = {name: {} for name in values} | {"up": {("postgres",): 0.0}}
        await self._ask_redis(values)
        await self._ask_archive(values)
        return {name: found for name, found in values.items() if found}

    async def _ask_postgres(self, db: Database, values: Values) -> None:
        async with db.connection() as tx:
            found = self._found
            if found is None or time.monotonic() - self._found_at >= SLOW_SECONDS:
                found = self._found = await _look_around(tx, db)
                self._found_at = time.monotonic()
            _tables(values, found.tables)
            _queues(values, await tx.fetch(sql.QUEUE_STATE, COUNTED, NAMED, SAMPLED), found)
            [system] = await tx.fetch(sql.SYSTEM_STATE, SAMPLED)
            _system(values, system)
            workers = {row["status"]: row["n"] for row in await tx.fetch(sql.WORKER_STATES)}
            states = ("ACTIVE", "STOPPING", "STOPPED", "LOST")
            values["workers"] = {(status,): float(workers.get(status, 0)) for status in states}
            jobs = {row["status"]: row["n"] for row in await tx.fetch(sql.OPEN_JOBS, SAMPLED)}
            values["jobs"] = {(status,): float(jobs.get(status, 0)) for status in ("PENDING", "RUNNING")}
            values["oldest_job_progress_age_seconds"][()] = self._progress(await tx.fetch(sql.JOB_PROGRESS))
            for row in await tx.fetch(sql.UNACKNOWLEDGED, SAMPLED // 4):
                values["failed_tasks"][row["queue"],] = float(row["n"])
            values["alarms"] = dict.fromkeys(((kind,) for kind in ALARM_KINDS), 0.0)
            for row in await tx.fetch(sql.ALARMS):
                values["alarms"][row["kind"],] = float(row["n"])
            values["invariant_violations"] = dict.fromkeys(((name,) for name in CHECK_NAMES), 0.0)
            for row in await tx.fetch(sql.VIOLATIONS):
                values["invariant_violations"][row["what"],] = float(row["n"])
            _schedules(values, found.schedules, found.schedule_states)
            values["prune_backlog_rows"][()] = found.backlog

    def _progress(self, jobs: Sequence[Any]) -> float:
        """How long ago the job that has not changed for the longest did; one with another mark did so since a look."""
        now, before = time.monotonic(), self._changed
        self._changed = {}
        for job in jobs:
            mark, at = before.get(job["id"], (job["mark"], -math.inf))
            self._changed[job["id"]] = (job["mark"], max(at, now - job["age"]) if mark == job["mark"] else now)
        return max((now - at for _, at in self._changed.values()), default=0.0)

    async def _ask_archive(self, values: Values) -> None:
        url = self._settings.clickhouse_url
        answers = None if url is None else await asyncio.to_thread(is_answering, url, ARCHIVE_SECONDS)
        if answers is not None:
            values["up"][("archive",)] = float(answers)

    async def _ask_redis(self, values: Values) -> None:
        url = self._settings.redis_url
        if url is None:
            return
        queues = [labels[0] for labels in values.get("task_queue_depth", ())]
        streams = Streams(url, prefix=self._settings.redis_prefix)
        try:
            async with asyncio.timeout(REDIS_SECONDS):
                lengths = await streams.lengths(queues or ["default"])
        except (StreamsDown, TimeoutError):
            values["up"][("redis",)] = 0.0
            return
        finally:
            await streams.close()
        values["up"][("redis",)] = 1.0
        values["stream_length"] = {(queue,): float(n) for queue, n in lengths.items() if queue in queues}
        values["stream_pending"] = dict.fromkeys(values["stream_length"], 0.0)


async def _look_around(tx: Any, db: Database) -> Found:
    tables = {row["name"]: row for row in await tx.fetch(sql.TABLES, db.schema)}
    return Found(
        tables,
        gates={row["queue"]: row["n"] for row in await tx.fetch(sql.AT_GATES, NAMED)},
        shares={row["queue"]: row["share"] for row in await tx.fetch(sql.LINE_SHARES, db.schema)},
        schedules=await tx.fetch(sql.SCHEDULES, NAMED),
        schedule_states=await tx.fetch(sql.SCHEDULE_STATES, SAMPLED),
        backlog=await _backlog(tx, db, tables),
    )


def _tables(values: Values, tables: Mapping[str, Any]) -> None:
    for name, row in tables.items():
        values["db_table_bytes"][name,] = float(row["bytes"] or 0)
        values["db_dead_tuples"][name,] = float(row["dead"] or 0)


def _queues(values: Values, rows: Any, found: Found) -> None:
    ready, held = _beyond(rows, "ready", found, found.shares), _beyond(rows, "held", found, {})
    delayed = _scaled({row["name"]: row["delayed"] for row in rows}, found.live("delayed"), SAMPLED)
    waiting = _scaled({row["name"]: found.gates.get(row["name"], 0) for row in rows}, found.live("waiting"), NAMED)
    running = _scaled({row["name"]: row["running"] for row in rows}, found.live("leases"), 3 * SAMPLED)
    for row in rows:
        queue = row["name"]
        states = {
            "QUEUED": ready[queue],
            "SCHEDULED": delayed[queue],
            "PENDING": waiting[queue] + held[queue],
            "RUNNING": running[queue],
        }
        for state, n in states.items():
            values["tasks"][queue, state] = float(n)
        values["task_queue_depth"][queue,] = float(ready[queue])
        claimable = row["oldest_seconds"] is not None and not row["paused"]
        values["oldest_ready_age_seconds"][queue,] = max(0.0, row["oldest_seconds"]) if claimable else 0.0
        values["oldest_running_age_seconds"][queue,] = max(0.0, row["oldest_running"])
        values["overdue_scheduled_tasks"][queue,] = float(row["overdue"])
        values["failed_tasks"][queue,] = 0.0
        values["queue_paused"][queue,] = float(row["paused"])
        values["queue_latency_objective_seconds"][queue,] = row["objective_seconds"] or OBJECTIVE_SECONDS
        values["queue_consumers"][queue,] = float(row["consumers"])
        values["worker_slots"][queue, "used"] = float(row["used"])
        values["worker_slots"][queue, "free"] = float(row["slots"] - row["used"])


def _beyond(rows: Any, place: str, found: Found, shares: Mapping[str, float]) -> dict[str, int]:
    """What was counted, here or by the background; queues cut short share what Postgres thinks there is besides."""
    counts = {row["name"]: row[place] for row in rows}
    cut = [row["name"] for row in rows if row[place] >= row["share"]]
    if place == "ready":
        seen = {row["name"]: row["counted"] for row in rows if row["name"] in cut and row["counted"] is not None}
        counts |= {name: max(n, counts[name]) for name, n in seen.items()}
        cut = [row["name"] for row in rows if row["name"] in cut and row["counted"] is None]
    left = max(0, found.live(place) - sum(n for name, n in counts.items() if name not in cut))
    known = sum(shares.get(name, 0.0) for name in cut)
    for name in cut:
        share = shares.get(name, 0.0) / known if known else 1 / len(cut)
        counts[name] = max(counts[name], round(left * share))
    return counts


def _scaled(counts: dict[str, int], live: int, limit: int) -> dict[str, int]:
    """What was sampled, scaled to what Postgres thinks there is."""
    seen = sum(counts.values())
    return counts if seen < limit or live <= seen else {name: round(n * live / seen) for name, n in counts.items()}


def _system(values: Values, row: Any) -> None:
    values["outbox_entries"][()] = float(row["outbox"])
    values["outbox_oldest_age_seconds"][()] = max(0.0, row["outbox_age"])
    values["workers_active"][()] = float(row["active"])
    values["worker_heartbeat_age_seconds"][()] = max(0.0, row["heartbeat_age"])
    values["schedule_lag_seconds"][()] = max(0.0, row["schedule_lag"])
    led = row["is_led"]
    values["up"] |= {
        ("relay",): float(led and row["outbox_age"] < RELAY_SECONDS),
        ("scheduler",): float(led and row["schedule_lag"] < SCHEDULE_SECONDS),
        ("rescue",): float(led and not row["is_unreaped"]),
    }


def _schedules(values: Values, schedules: Any, states: Any) -> None:
    counts = {row["state"]: row["n"] for row in states}
    values["schedules"] = {(state,): float(counts.get(state, 0)) for state in ("enabled", "disabled")}
    for row in schedules:
        if row["enabled"] and row["next"] is not None:
            values["schedule_next_fire_timestamp_seconds"][row["name"],] = row["next"]
        if row["last"] is not None:
            values["schedule_last_fire_timestamp_seconds"][row["name"],] = row["last"]


async def _backlog(tx: Any, db: Database, tables: Mapping[str, Any]) -> float:
    policy = db.settings
    days = [policy.retention_completed_days, policy.retention_failed_days]
    completed, failed = (YEAR * 100 if one == "forever" else float(one) * 86400 for one in days)
    [row] = await tx.fetch(sql.PRUNABLE, completed, failed)
    if not row["prunable"] or row["first"] is None or row["last"] <= row["first"]:
        return 0.0
    until = int((time.time() - completed) * 1000) << 22
    share = min(1.0, max(0.0, (until - row["first"]) / (row["last"] - row["first"])))
    live = tables["tasks"]["live"] if "tasks" in tables else 0
    return float(max(row["prunable"], round(live * share * row["prunable"] / 1000)))


_collectors: weakref.WeakKeyDictionary[Database, Collector] = weakref.WeakKeyDictionary()


def _collector(db: Database) -> Collector:
    if db not in _collectors:
        _collectors[db] = Collector(db)
    return _collectors[db]
