"""What the doctor knows of schedules: they fire in time, can be read, and go on as long as a fire lies ahead."""

from __future__ import annotations

from typing import Any

from .checks import LIMIT, Check
from .errors import BadSchedule
from .flow.schedule_rows import aware, schedule_of

MOST_READ = 10 * LIMIT

LATE = f"""
SELECT id FROM aaiclick_queue.registered_jobs WHERE next_run_at < now() - interval '1 minute'
ORDER BY next_run_at LIMIT {LIMIT}
"""
_TIMING = "r.id, r.schedule, r.timezone, r.interval_seconds, r.anchor_at, r.starts_at, r.ends_at"
ENABLED = f"""
SELECT {_TIMING} FROM aaiclick_queue.registered_jobs r
WHERE r.enabled AND (r.schedule <> '{{}}' OR r.interval_seconds IS NOT NULL) ORDER BY r.id LIMIT {MOST_READ}
"""
# Where a test lets time pass, the clock of a schedule is that of its last tick.
ENDED = f"""
SELECT {_TIMING}, greatest(now() AT TIME ZONE 'UTC', (
           SELECT t.fire_at FROM aaiclick_queue.ticks t WHERE t.registered_job_id = r.id
           ORDER BY t.fire_at DESC LIMIT 1)) AS now
FROM aaiclick_queue.registered_jobs r
WHERE r.enabled AND r.next_run_at IS NULL AND (r.schedule <> '{{}}' OR r.interval_seconds IS NOT NULL)
ORDER BY r.id LIMIT {MOST_READ}
"""
GONE = f"SELECT name FROM aaiclick_queue.registered_jobs WHERE is_gone ORDER BY name LIMIT {LIMIT}"


def _is_unreadable(row: Any) -> bool:
    try:
        schedule_of(row)
    except BadSchedule:
        return True
    return False


def _would_fire(row: Any) -> bool:
    try:
        return schedule_of(row).after(aware(row["now"])) is not None
    except BadSchedule:
        return False


SCHEDULE_CHECKS = (
    Check(
        "schedules fire in time",
        LATE,
        "enabled schedules whose next run was due more than a minute ago",
        "start a worker, or `aaiclick-queue background`; `aaiclick-queue registered-job list` shows them",
    ),
    Check(
        "enabled schedules can be read",
        ENABLED,
        "enabled schedules with an expression, a time zone or bounds that cannot be read here; they do not fire",
        "`aaiclick-queue registered-job get NAME` says why: register it anew with --replace, or install a newer tzdata",
        keep=_is_unreadable,
    ),
    Check(
        "schedules go on as long as a fire lies ahead",
        ENDED,
        "enabled schedules without a next run although they should fire again",
        "`aaiclick-queue registered-job disable NAME`, then enable it; and report it",
        keep=_would_fire,
    ),
)
SCHEDULE_NOTICES = (
    Check(
        "schedules are gone from the code that declared them",
        GONE,
        "disabled, because a worker started with the same modules and did not find them there",
        "`aaiclick-queue registered-job delete NAME`, or enable it to keep it",
    ),
)
