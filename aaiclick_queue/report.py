"""What a worker tells a person: one line an event, a bounded number of lines a second.

Lines are standard log records of `aaiclick_queue.task`: the message is for people, the extra fields for machines.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, assert_never

import msgspec

from .meters import METERS
from .outcome import Cancelled, Ended, Failed, Later, Lost, Outcome, Released, Skipped, Succeeded, kind_of
from .spans import TOLD

if TYPE_CHECKING:
    from .flow.claim import Claimed
    from .flow.execute import Run
    from .worker import Worker

log = logging.getLogger("aaiclick_queue.task")

TRACEPARENT = re.compile(r'"traceparent": ?"[0-9a-f]{2}-([0-9a-f]{32})-')  # sent along by whoever traces
LINES_A_SECOND = 50
RUNNING_SECONDS = 1.0  # a run of this age is worth a line before it ends
UNKNOWN_SECONDS = 60.0
UNKNOWN_LIMIT = 1000
NAME_WIDTH = 24
ERROR_WIDTH = 300


class Kind(msgspec.Struct, frozen=True, eq=False):  # a key by what it is: compared by its fields it took 0.3 µs more
    """How one kind of event is told."""

    level: int
    mark: str
    event: str
    many: str


SUCCEEDED = Kind(logging.INFO, "←", "task succeeded", "succeeded")
SUCCESS = (SUCCEEDED, "", "")
SNOOZED = Kind(logging.INFO, "↻", "task snoozed", "snoozed")
RETRIED = Kind(logging.WARNING, "↻", "attempt retried", "will be retried")
FAILED = Kind(logging.ERROR, "!", "task failed", "failed")
CANCELLED = Kind(logging.WARNING, "!", "task cancelled", "were cancelled")
LOST = Kind(logging.WARNING, "!", "run lost", "were lost")
RELEASED = Kind(logging.INFO, "→", "run handed back", "were handed back")
RUNNING = Kind(logging.INFO, "→", "task running", "are running")
LAPSED = Kind(logging.WARNING, "!", "lease lapsed", "were not this worker's any more")
UNKNOWN = Kind(logging.WARNING, "!", "task unknown", "are not registered here")


class Report:
    """Says what happens. Beyond 50 lines a second of one kind nobody reads: they are counted instead."""

    def __init__(
        self, *, lines_a_second: int | None = LINES_A_SECOND, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`lines_a_second` None: every event is a line, as machines want it."""
        self._limit = lines_a_second
        self._clock = clock
        self._second = 0.0
        self._said: dict[Kind, int] = {}
        self._unsaid: dict[Kind, int] = {}
        self._unknown: dict[str, tuple[float, int]] = {}  # entrypoint → told at, not told since
        self._running: set[tuple[int, int]] = set()
        self._worker: Worker | None = None
        self.finished = 0

    def started(self, worker: Worker) -> None:
        """The worker takes tasks."""
        self._worker = worker
        queues = ", ".join(sorted(worker.plan.queues))
        fields = {"event": "worker started", "worker_id": str(worker.worker_id), "queues": queues}
        log.info("→ worker %d takes tasks of %s", worker.worker_id, queues, extra=fields)

    def stopping(self, held: int) -> None:
        """The worker takes no more."""
        rest = f"{held} to finish, again to hand them back now" if held else "nothing to finish"
        log.info("→ stopping: %s", rest, extra={"event": "worker draining", "running": held})

    def stopped(self, worker: Worker) -> None:
        """The worker is gone."""
        self._sum_up()
        fields = {"event": "worker stopped", "worker_id": str(worker.worker_id), "finished": self.finished}
        log.info("→ worker %d stopped, %s ended here", worker.worker_id, _runs(self.finished), extra=fields)

    def ended(self, run: Run, outcome: Outcome, ran: float) -> None:
        """A run is over and that is recorded."""
        self.finished += 1
        if METERS.on:
            METERS.ended(run.claimed, outcome, ran)
        if TOLD.tracer is not None:
            TOLD.tracer.completed(run.claimed, outcome)
        kind, error_type, error = SUCCESS if type(outcome) is Succeeded else _told(outcome)
        if not self._may_say(kind):
            return
        fields = _fields(kind, run.claimed, run)
        fields |= {"duration_s": round(ran, 6), "outcome": kind_of(outcome)}
        if error_type:
            fields |= {"error_type": error_type, "error": error}
        text = f"{error_type}: {error}" if error_type and error else error_type or error
        where = ""
        if isinstance(outcome, Failed) and outcome.error.traceback:
            fields["traceback"] = outcome.error.traceback
            where = outcome.error.where
        _say(kind, Line(kind, run, f"ran {span(ran):>8}", text, where), fields)

    def gone(self, run: Run) -> None:
        """The run is not ours any more."""
        if self._may_say(LAPSED):
            fields = _fields(LAPSED, run.claimed, run)
            _say(LAPSED, Line(LAPSED, run, "is not this worker's any more: stopping it"), fields)

    def stale(self, ended: Ended) -> None:
        """An outcome came too late."""
        METERS.add("stale_completions_total")
        if TOLD.tracer is not None:
            TOLD.tracer.gone(ended.task_id, ended.run_epoch)
        if self._may_say(LAPSED):
            fields = {"event": LAPSED.event, "task_id": str(ended.task_id), "run_epoch": ended.run_epoch}
            log.warning(
                "! %s  had lost its lease: nothing of this run was recorded", short(ended.task_id), extra=fields
            )

    def unknown(self, claimed: Claimed) -> None:
        """A task that this worker has no code for: one line a minute and entrypoint, however many there are."""
        told_at, unsaid = self._unknown.get(claimed.entrypoint, (0.0, 0))
        now = self._clock()
        if told_at and now - told_at < UNKNOWN_SECONDS:
            self._unknown[claimed.entrypoint] = (told_at, unsaid + 1)
            return
        if len(self._unknown) >= UNKNOWN_LIMIT:
            del self._unknown[next(iter(self._unknown))]
        self._unknown[claimed.entrypoint] = (now, 0)
        if self._may_say(UNKNOWN):
            log.warning(
                "! %s %s  is not registered here, so it is left to others: -A imports modules%s",
                fitted(claimed.entrypoint, NAME_WIDTH),
                short(claimed.task_id),
                f" ({unsaid:,} more in the last minute)" if unsaid else "",
                extra=_fields(UNKNOWN, claimed) | {"count": unsaid + 1},
            )

    def tick(self) -> None:
        """Time passes: say what was not said."""
        now = self._clock()
        if self._unsaid and now - self._second > 1:
            self._sum_up()
        for entrypoint, (told_at, unsaid) in list(self._unknown.items()):
            if unsaid and now - told_at >= UNKNOWN_SECONDS:
                self._unknown[entrypoint] = (now, 0)
                fields = {"event": UNKNOWN.event, "entrypoint": entrypoint, "count": unsaid}
                log.warning("! %s  %s more are not registered here", one_line(entrypoint), f"{unsaid:,}", extra=fields)
        self._tell_long_runs(now)

    def _tell_long_runs(self, now: float) -> None:
        if self._worker is None or not log.isEnabledFor(RUNNING.level):
            return
        told, self._running = self._running, set()
        for run in list(self._worker.slots.held.values()):
            if run.started and now - run.started > RUNNING_SECONDS:
                key = (run.claimed.task_id, run.claimed.run_epoch)
                self._running.add(key)
                if key not in told and self._may_say(RUNNING):
                    _say(RUNNING, Line(RUNNING, run, "running"), _fields(RUNNING, run.claimed, run))

    def _sum_up(self) -> None:
        unsaid, self._unsaid = self._unsaid, {}
        for kind, count in unsaid.items():
            fields = {"event": kind.event, "count": count}
            log.log(kind.level, "%s … and %s more %s", kind.mark, f"{count:,}", kind.many, extra=fields)

    def _may_say(self, kind: Kind) -> bool:
        if not log.isEnabledFor(kind.level):
            return False
        if self._limit is None:
            return True
        now = self._clock()
        if now - self._second > 1:
            self._sum_up()
            self._second = now
            self._said.clear()
        said = self._said.get(kind, 0)
        if said >= self._limit:
            self._unsaid[kind] = self._unsaid.get(kind, 0) + 1
            return False
        self._said[kind] = said + 1
        return True


def _told(outcome: Outcome) -> tuple[Kind, str, str]:  # noqa: PLR0911 - one an outcome
    match outcome:
        case Succeeded():
            return SUCCESS
        case Later("SNOOZED", error, seconds):
            again = "" if seconds is None else f"again in {span(seconds)}"
            return SNOOZED, "", " ".join(part for part in (again, error.message) if part)
        case Later(_, error, _):
            return RETRIED, error.type, error.message
        case Failed(error):
            return FAILED, error.type, error.message
        case Cancelled(error) | Skipped(error):
            return CANCELLED, error.type, error.message
        case Lost(error):
            return LOST, error.type, error.message
        case Released():
            return RELEASED, "", "handed back"
        case _:
            assert_never(outcome)


class Line(NamedTuple):
    """A line about one run; its text is made when somebody wants to read it."""

    kind: Kind
    run: Run
    what: str
    error: str = ""
    where: str = ""

    def __str__(self) -> str:
        claimed = self.run.claimed
        name = fitted(claimed.name or claimed.entrypoint.rsplit(".", 1)[-1], NAME_WIDTH)
        attempt = f"attempt {claimed.attempt}/{self.run.max_attempts}"
        return (
            f"{self.kind.mark} {name} {short(claimed.task_id)}  {fitted(claimed.queue, 8)}  {attempt:<11}  "
            f"waited {span(claimed.waited):>8}  {self.what}  {one_line(self.error)}  {one_line(self.where)}"
        ).rstrip()


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count:,} runs"


def _say(kind: Kind, line: Line, fields: dict[str, object]) -> None:
    # Not log.log(): looking up the calling line takes longer than all the rest.
    log.handle(log.makeRecord(log.name, kind.level, "report.py", 0, line, (), None, extra=fields))


def _fields(kind: Kind, claimed: Claimed, run: Run | None = None) -> dict[str, object]:
    fields: dict[str, object] = {
        "event": kind.event,
        "task_id": str(claimed.task_id),
        "entrypoint": claimed.entrypoint,
        "queue": claimed.queue,
        "attempt": claimed.attempt,
        "run_epoch": claimed.run_epoch,
        "wait_s": round(claimed.waited, 6),
    }
    if claimed.job_id is not None:
        fields["job_id"] = str(claimed.job_id)
    if run is not None:
        fields["worker_id"] = str(run.worker_id)
    if claimed.metadata is not None and (trace := TRACEPARENT.search(claimed.metadata)):
        fields["trace_id"] = trace[1]
    if claimed.correlation_id is not None:
        fields["correlation_id"] = claimed.correlation_id
    return fields


def short(task_id: int) -> str:
    """The last digits of an id, enough to tell tasks apart on a screen; `task get` takes them too."""
    return f"…{task_id % 10**8:08d}"


def span(seconds: float) -> str:
    """A duration as a person says it."""
    seconds = max(0.0, seconds)
    if seconds < 0.00995:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    for unit, size, most in (("min", 60, 5970), ("h", 3600, 172_000)):
        if seconds < most:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds / 86400:.1f} d"


def one_line(text: str, width: int = ERROR_WIDTH) -> str:
    """The text on one line, without anything that would steer a terminal."""
    if len(text) > width:
        text = text[: width - 1] + "…"
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)


def fitted(text: str, width: int) -> str:
    """The text in exactly this many characters."""
    return f"{one_line(text, width):<{width}}"
