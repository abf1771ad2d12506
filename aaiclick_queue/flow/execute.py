"""Execute: runs one claimed task and says what it came to. Before: claim. After: complete.

Executing returns a value and never raises: what to do about it is a pure decision over that value.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Literal, Protocol

from ..codec import Signature
from ..errors import (
    ArgumentsDoNotFit,
    BadJob,
    BadTask,
    Cancel,
    Fail,
    GroupClosed,
    PayloadTooLarge,
    ResultDoesNotEncode,
    Retry,
    Skip,
    Snooze,
)
from ..outcome import Cancelled, Error, Failed, Later, Outcome, Released, Skipped, Succeeded
from ..settings import Settings
from ..spec import Options
from .claim import Claimed

log = logging.getLogger(__name__)

SNOOZE_LIMIT = 1000
EXPIRED = Cancelled(Error("Expired", "its expiry passed before it started"))


class Definition(Protocol):
    """What running needs to know of a task's code."""

    function: Callable[..., Any]
    entrypoint: str
    signature: Signature
    is_async: bool
    isolation: Literal["process"] | None
    heartbeat_timeout: float | None
    defaults: Options


class Run:
    """One claimed task on its way through this process."""

    __slots__ = (
        "asyncio_task",
        "building",
        "child_pid",
        "claimed",
        "committed",
        "committing",
        "context",
        "coroutine",
        "definition",
        "in_thread",
        "is_over",
        "kind",
        "log",
        "max_attempts",
        "redact_names",
        "result_max_bytes",
        "sign_of_life",
        "started",
        "stop",
        "stop_told",
        "taken",
        "thread_id",
        "timeout",
        "timer",
        "worker_id",
    )

    def __init__(self, claimed: Claimed, definition: Definition, settings: Settings, worker_id: int) -> None:
        own = definition.defaults
        self.claimed = claimed
        self.definition = definition
        self.worker_id = worker_id
        self.timeout = claimed.timeout_seconds or own.timeout or settings.task_timeout_seconds
        self.max_attempts = claimed.max_attempts or own.max_attempts or settings.max_attempts
        self.result_max_bytes = settings.result_max_bytes
        self.redact_names = settings.redact_names
        self.taken = time.monotonic()
        self.started = 0.0  # monotonic, at the first line of the task
        self.sign_of_life = 0.0
        self.stop: Stop | None = None
        self.committing = False  # inside the commit of current().transaction(): must not be disturbed
        self.committed = False  # ended by current().transaction(): nothing more is recorded
        self.in_thread: bool | None = None  # its code cannot be stopped there; None: it never was
        self.stop_told = False  # whether anybody was told that its code has ended after a stop
        self.thread_id = 0
        self.child_pid = 0  # of the process that runs it, where that is not this one
        self.asyncio_task: asyncio.Task[None] | None = None  # from its first step to its last
        self.coroutine: Coroutine[Any, Any, None] | None = None
        self.is_over = False  # its code has ended, or is a thread that was given up
        self.timer: asyncio.TimerHandle | None = None
        self.context: Any = None
        self.kind: Any = None  # whose slots it uses
        self.log: Any = None  # where what it says is kept, from its first line on
        self.building: Any = None  # of a job's run: the nodes that its code has built

    @property
    def secrets(self) -> tuple[str, ...]:
        """What of its arguments may stand in no text that others read."""
        return self.definition.signature.secrets_in(self.claimed.kwargs, self.redact_names)


class Stop(Exception):
    """Why a run was told to stop: `outcome` is what it comes to then, None when it is not ours any more."""

    def __init__(self, outcome: Outcome | None, *, at_once: bool = False) -> None:
        """`at_once`: a child process gets no time to end by itself."""
        super().__init__()
        self.outcome = outcome
        self.at_once = at_once


class TimedOut(TimeoutError):
    """The run took longer than its timeout."""


async def execute(run: Run, call: Callable[[Callable[..., Any], dict[str, Any]], Awaitable[Any]]) -> Outcome | None:
    """Run the task by `call`; None when there is nothing to record, because the lease is gone or the task has ended."""
    if run.claimed.expired:
        return EXPIRED
    try:
        kwargs = run.definition.signature.decode(run.claimed.kwargs)
    except (ArgumentsDoNotFit, BadTask) as error:
        return Failed(Error.of(error, run.secrets))
    outcome: Outcome | None
    try:
        value = await call(run.definition.function, kwargs)
        outcome = None if run.committed else _succeeded(run, value)
        if run.committed and value is not None:
            log.warning("task %d returned a value after its transaction had completed it: dropped", run.claimed.task_id)
    except asyncio.CancelledError as cancelled:
        outcome = _stopped(run, cancelled)
    except Exception as error:
        outcome = decide(error, run)
    except (SystemExit, GeneratorExit) as error:  # ends this run, never the worker
        raised = RuntimeError(f"the task raised {error!r}, which is no way to end a run: raise Fail or Cancel instead")
        raised.__cause__ = error
        outcome = decide(raised, run)
    return outcome


def _succeeded(run: Run, value: Any) -> Outcome:
    # Encoded before anything is written: what cannot be stored is a failure of this task, never of the worker.
    try:
        return Succeeded(encoded_result(run, value))
    except (ResultDoesNotEncode, PayloadTooLarge) as error:
        return Failed(Error.of(error, run.secrets))


def encoded_result(run: Run, value: Any) -> str | None:
    """The result as it is stored; raises ResultDoesNotEncode or PayloadTooLarge."""
    return checked_result(run, run.definition.signature.encode_result(value))


def checked_result(run: Run, text: str | None) -> str | None:
    """The result, unless it is too large."""
    if text is not None and len(text) * 4 > run.result_max_bytes and len(text.encode()) > run.result_max_bytes:
        raise PayloadTooLarge(
            f"the result takes {len(text.encode()):,} bytes, the limit is {run.result_max_bytes:,}: store it "
            "elsewhere and return a reference, or raise AAICLICK_QUEUE_RESULT_MAX_BYTES"
        )
    return text


def _stopped(run: Run, cancelled: asyncio.CancelledError) -> Outcome | None:
    if run.stop is not None:
        return run.stop.outcome
    return decide(RuntimeError(f"the task cancelled itself: {cancelled!r}"), run)


def timed_out(run: Run, what: str = "timeout", seconds: float | None = None) -> Outcome | None:
    """What a run comes to that took too long."""
    limit = run.timeout if seconds is None else seconds
    return decide(TimedOut(f"{what} of {limit:g} s passed in attempt {run.claimed.attempt}"), run)


def call_plainly(function: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
    """The call of a `def` task, in its thread."""
    try:
        return function(**kwargs)
    except StopIteration as error:
        # A future cannot carry it: before Python 3.12 whoever awaits that future waits for ever.
        raise RuntimeError(f"the task raised {error!r}") from error


def as_exception(error: BaseException) -> Exception:
    """What no task should raise, as something to decide over."""
    if isinstance(error, Exception):
        return error
    raised = RuntimeError(f"the task raised {error!r}")
    raised.__cause__ = error
    return raised


def decide(raised: Exception, run: Run) -> Outcome | None:  # noqa: PLR0911 - a row of the table of outcomes each
    """What becomes of a run that raised."""
    secrets = run.secrets
    error = Error.of(raised, secrets)
    if run.committed:
        told = f"\n{error.traceback}".rstrip() if secrets else ""  # as text, because the exception itself has them
        text = "task %d raised after its transaction had completed it%s"
        log.error(text, run.claimed.task_id, told, exc_info=None if secrets else raised)
        return None
    attempts_left = run.claimed.attempt < run.max_attempts
    match raised:
        case Snooze() if run.claimed.snoozes >= SNOOZE_LIMIT:
            return Failed(Error("SnoozedTooOften", f"snoozed {SNOOZE_LIMIT:,} times, the limit of one task"))
        case Snooze(in_seconds=seconds):
            return Later("SNOOZED", error, seconds)
        case Retry(in_seconds=seconds) if attempts_left:
            return Later("RETRYING", error, seconds)
        case Cancel():
            return Cancelled(error)
        case Skip():
            return Skipped(error)
        case Fail() | Retry() | ResultDoesNotEncode() | PayloadTooLarge() | BadJob() | GroupClosed():
            return Failed(error)
    options = run.definition.defaults
    if attempts_left and _worth_another(raised, options):
        return Later("RETRYING", error, retry=options.retry.text() if options.retry else None)
    return Failed(error)


def _worth_another(raised: Exception, options: Options) -> bool:
    if options.give_up_on and isinstance(raised, options.give_up_on):
        return False
    return options.retry_on is None or isinstance(raised, options.retry_on)


RELEASED = Released()
