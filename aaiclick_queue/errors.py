"""Every exception of the package. A leaf carries its data and says what, why and how to fix.

QueueError
├── SettingsError            a setting is wrong; refused at start
│   └── BadFleet             a fleet file that cannot work; names the line
├── FleetBusy                a fleet of that name runs already; carries its pid
├── NoFleet                  no fleet of that name runs here
├── BadTask                  a decorator or an option that cannot work
│   ├── BadJob               a graph that cannot work: a cycle, equal names, a node of another job
│   ├── BadSchedule          a cron expression, time zone or interval that cannot work; names the place in it
│   └── BadResource          a resource that is missing, given twice or in a circle; refused when a worker starts
├── JobExists                a job of that name is registered already
├── StartupFailed            a resource or an on_startup function raised: the worker claimed nothing
├── ArgumentsDoNotFit        arguments that the function does not take (also ValueError)
├── ResultDoesNotEncode      a result that JSON cannot carry (also TypeError)
├── PayloadTooLarge          arguments beyond PAYLOAD_MAX_BYTES (also ValueError)
├── DuplicateTask            the dedupe key is taken; carries the task id that holds it
├── DedupeKeyBusy            another transaction holds the dedupe key and has not ended
├── QueueFull                the queue is at its max_depth
├── TasksBusy                another open transaction holds the tasks
├── PostgresUnavailable      no answer within the time given; nothing was half-written
├── NotAllowed               the database role lacks a right; names the role and what to grant
├── SchemaMismatch           the database is at another revision than this version
├── MissingExtra             an optional part is not installed; names the install line
├── PortInUse                the probe port cannot be listened on
├── StreamsDown              Redis did not take or give wake-ups (the flow goes on by polling)
├── LeaseLost                the run no longer owns its task; raised by current().transaction() only
├── UnknownTask              no task with that id
├── UnknownJob               no job with that id or name
├── JobEnded                 the job is over: nothing can be added to it, or cancelled
├── GroupClosed              the group has ended and takes no more tasks
├── SpawnDiverged            a repeated attempt gave a child of the same key other arguments
├── UnknownOperation         no operation with that number
├── ResultError
│   ├── TaskFailed           carries type, message, traceback, attempts
│   ├── JobFailed            carries the first tasks that failed, and their errors
│   ├── JobCancelled         cancelled by hand
│   ├── UpstreamFailed       a task that it waited for did not complete
│   ├── TaskSkipped          on the side of a branch that was not taken
│   ├── TaskCancelled        cancelled by hand, by raising Cancel, or expired
│   └── ResultExpired        the task is gone: pruned, or never committed
└── WrongContext             a call that cannot work from where it was made

Raised *by* tasks to steer their run: Retry, Snooze, Cancel, Skip, Fail (Directive).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta


class QueueError(Exception):
    """Root of everything this package raises on purpose."""


class SettingsError(QueueError):
    """A setting is wrong; the message names it, the value and what is allowed."""


class BadFleet(SettingsError):
    """A fleet file that cannot work; the message names the line, the value and what is allowed."""


class FleetBusy(QueueError):
    """A supervisor of that fleet runs already."""

    def __init__(self, name: str, pid: int) -> None:
        super().__init__(
            f"fleet {name!r} runs already (pid {pid}): end it with `aaiclick-queue fleet down --name {name}`, "
            "or give this one another name with --name"
        )
        self.name = name
        self.pid = pid


class NoFleet(QueueError, LookupError):
    """No supervisor of that fleet runs on this machine."""


class BadTask(QueueError, TypeError):
    """A task definition or an option that cannot work."""


class BadJob(BadTask):
    """A job whose graph cannot work; nothing of it was written."""


class JobExists(QueueError):
    """A job of that name is registered already."""


class BadSchedule(BadTask):
    """A cron expression, a time zone, an interval or bounds that cannot work; the message names the place."""


class BadResource(BadTask):
    """A resource that is asked for and not there, that two functions give, or that needs itself."""


class StartupFailed(QueueError):
    """A resource could not be opened, or an on_startup function raised; the cause is its `__cause__`."""


class ArgumentsDoNotFit(QueueError, ValueError):
    """Arguments that the function does not take."""

    def __init__(self, message: str, *, parameter: str | None = None) -> None:
        super().__init__(message)
        self.parameter = parameter


class ResultDoesNotEncode(QueueError, TypeError):
    """A result that JSON cannot carry."""


class PayloadTooLarge(QueueError, ValueError):
    """Encoded arguments or a result beyond the limit of the settings."""


class DuplicateTask(QueueError):
    """The dedupe key is held by a task, or a job, that has not ended."""

    def __init__(self, key: str, task_id: int, *, what: str = "task") -> None:
        modes = "'skip', 'replace' or 'debounce'" if what == "task" else "'skip'"
        super().__init__(
            f"a {what} with dedupe_key {key!r} is already there (id {task_id}): wait for it, "
            f"or enqueue with dedupe={modes}"
        )
        self.key = key
        self.task_id = task_id


class QueueFull(QueueError):
    """The queue is at its max_depth; nothing was written."""

    def __init__(self, queue: str, max_depth: int, wanted: int = 1) -> None:
        many = f" for {wanted:,} more" if wanted > 1 else ""
        super().__init__(
            f"queue {queue!r} has no room{many} (max_depth {max_depth:,}): enqueue later, with on_full='wait', "
            "or raise it with `aaiclick-queue queue limit`"
        )
        self.queue = queue
        self.max_depth = max_depth


class DedupeKeyBusy(QueueError):
    """Another open transaction has enqueued with the same dedupe key."""

    def __init__(self, key: str) -> None:
        super().__init__(
            f"dedupe_key {key!r} is held by another open transaction for more than 2 s: "
            "commit that one first, or try again later"
        )
        self.key = key


class TasksBusy(QueueError):
    """Tasks that could not be cancelled because another open transaction holds them; the others were."""

    def __init__(self, ids: Sequence[int]) -> None:
        shown = ", ".join(map(str, ids[:5])) + (" …" if len(ids) > 5 else "")
        super().__init__(f"another open transaction holds {shown}: commit that one first, or try again later")
        self.ids = tuple(ids)


class PostgresUnavailable(QueueError, ConnectionError):
    """Postgres gave no answer within the time given."""


class NotAllowed(QueueError):
    """The role that one is logged in with lacks a right in the database."""

    def __init__(self, role: str | None, refusal: str, *, schema: str) -> None:
        super().__init__(
            f"the database role {role or 'of this login'!r} may not do this ({refusal}): grant it a role of "
            f"`aaiclick-queue migrate roles` that may, as GRANT {schema}_worker TO {role or 'it'}"
        )
        self.role = role


class SchemaMismatch(QueueError):
    """The database schema is older or newer than this version of the package."""


class MissingExtra(QueueError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs an optional part: pip install 'aaiclick-queue[{extra}]'")
        self.extra = extra


class PortInUse(QueueError):
    """The port that probes are to be answered on is taken, or not ours to take."""


class StreamsDown(QueueError, ConnectionError):
    """Redis did not answer; wake-ups are late, work is not lost."""


class LeaseLost(QueueError):
    """The run no longer owns its task: everything in this transaction was rolled back."""


class UnknownTask(QueueError, LookupError):
    """No task with that id."""


class UnknownJob(QueueError, LookupError):
    """No job with that id or name."""


class JobEnded(QueueError):
    """The job is over."""

    def __init__(self, message: str, *, job_id: int, status: str) -> None:
        super().__init__(message)
        self.job_id = job_id
        self.status = status


class GroupClosed(QueueError):
    """The group has ended: what waited for it may have started, so it takes no more tasks."""


class SpawnDiverged(QueueError):
    """An earlier attempt wrote a child of this key with other arguments."""


class UnknownOperation(QueueError, LookupError):
    """No operation with that number."""


class WrongContext(QueueError, RuntimeError):
    """A call that cannot work from where it was made; the message says what to call instead."""


class ResultError(QueueError):
    """A task that has no result to give."""

    def __init__(self, message: str, *, task_id: int) -> None:
        super().__init__(message)
        self.task_id = task_id


class TaskFailed(ResultError):
    """The task ended FAILED; carries what its last attempt raised."""

    def __init__(  # noqa: PLR0913 - one value a fact
        self, message: str, *, task_id: int, error_type: str, error_message: str, traceback: str, attempts: int
    ) -> None:
        super().__init__(message, task_id=task_id)
        self.error_type = error_type
        self.error_message = error_message
        self.traceback = traceback
        self.attempts = attempts


class UpstreamFailed(ResultError):
    """The task ended UPSTREAM_FAILED: what it waited for did not complete."""


class TaskSkipped(ResultError):
    """The task ended SKIPPED: its side of a branch was not taken, or it skipped itself."""


class JobFailed(ResultError):
    """The job ended FAILED; `failed` names its first tasks that failed, with their errors."""

    def __init__(self, message: str, *, task_id: int, failed: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(message, task_id=task_id)
        self.failed = list(failed)


class JobCancelled(ResultError):
    """The job ended CANCELLED."""


class TaskCancelled(ResultError):
    """The task ended CANCELLED."""


class ResultExpired(ResultError):
    """The task is not in the database (any more)."""


class Directive(Exception):
    """Raised by a task to say what becomes of its run."""


class _Later(Directive):
    def __init__(self, in_: float | timedelta | None = None, reason: str = "") -> None:
        seconds = in_.total_seconds() if isinstance(in_, timedelta) else in_
        if seconds is not None and not 0 <= seconds <= 366 * 86400:
            raise ValueError(f"{type(self).__name__}(in_={in_!r}): give 0 to 366 days, in seconds or as a timedelta")
        super().__init__(reason)
        self.in_seconds = seconds
        self.reason = reason


class Retry(_Later):
    """Run again later; spends an attempt. Without `in_` the task's backoff decides."""


class Snooze(_Later):
    """Run again later; spends no attempt, at most 1,000 times a task."""

    def __init__(self, in_: float | timedelta, reason: str = "") -> None:
        super().__init__(in_, reason)


class Cancel(Directive):
    """End this task as CANCELLED."""


class Skip(Directive):
    """End this task as SKIPPED: those that wait for it alone are skipped too, joins run."""


class Fail(Directive):
    """End this task as FAILED, whatever attempts are left."""
