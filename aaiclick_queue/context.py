"""What a running task can ask and do: `current()`."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Coroutine, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec

from .around import enqueue_through
from .codec import encode_json
from .errors import LeaseLost, WrongContext
from .flow.enqueue import NewTask, Spec, id_source
from .flow.execute import Run
from .flow.fenced import KEY, Fence, extend, hold_lease, keep_checkpoint, keep_progress, load_checkpoint, spawn
from .flow.graph import PlannedTask
from .flow.kick import kick_claimers
from .ids import IdSource
from .joining import Joining, Wish
from .lifespan import Lifespan
from .middleware import Enqueuing, Middleware, around_enqueue, headers_of, installed, metadata_of
from .postgres import Database
from .redaction import hidden, hidden_in
from .settings import Settings

if TYPE_CHECKING:
    from .handles import Handle
    from .log_recorder import Recorder
    from .tasks import Task
    from .transaction import TaskTransaction

T = TypeVar("T")
R = TypeVar("R")
_NOT_GIVEN = object()


class Services:
    """What the runs of one worker share."""

    lifespan: Lifespan | None = None
    middleware: Sequence[Middleware] = ()
    recorder: Recorder | None = None  # of what runs say

    def __init__(  # noqa: PLR0913 - one value a service
        self,
        settings: Settings,
        db: Database,
        dsn: str,
        rearm: Callable[[Run], None],
        *,
        made_ready: Callable[[], None] = kick_claimers,
        arrived: Callable[[], None] = lambda: None,
        committing: Callable[[Run], None] = lambda _: None,
        adding_db: Database | None = None,
        modules: Sequence[str] = (),
        lifespan: Lifespan | None = None,
        middleware: Sequence[Middleware] = (),
        recorder: Recorder | None = None,
    ) -> None:
        self.settings = settings
        self.db = db
        self.dsn = dsn
        self.rearm = rearm
        self.made_ready = made_ready
        self.arrived = arrived
        self.committing = committing
        self.adding_db = adding_db or db  # for what may wait for others: those who complete must not wait with it
        self.modules = modules
        self.lifespan = lifespan
        self.middleware = middleware
        self.recorder = recorder
        self.loop = asyncio.get_running_loop()
        self._ids: IdSource | None = None

    async def ids(self) -> IdSource:
        """Ids for children."""
        if self._ids is None:
            self._ids = await id_source(self.db)
        return self._ids


class Current:
    """The run that this code is part of. Writes return False when the run has lost its lease; then stop."""

    def __init__(self, run: Run, services: Services) -> None:
        claimed = run.claimed
        self.id = claimed.task_id
        self.attempt = claimed.attempt
        self.max_attempts = run.max_attempts
        self.run_epoch = claimed.run_epoch
        self.queue = claimed.queue
        self.entrypoint = claimed.entrypoint
        self.correlation_id = claimed.correlation_id
        self.job_id = claimed.job_id
        self.group_id = claimed.group_id
        self._run = run
        self._services = services
        self._rearm = services.rearm
        self._spawned: dict[str, int] = {}
        self._value: Any = _NOT_GIVEN
        self._block: TaskTransaction | None = None
        self._joining: Joining | None = None
        self.fence = Fence(claimed.task_id, claimed.run_epoch, run.worker_id)

    @property
    def idempotency_key(self) -> str:
        """The same text in every attempt of this task: for calls to services that know such keys."""
        return f"aaiclick-queue-{self.id}"

    @property
    def metadata(self) -> dict[str, Any]:
        """What was kept with the task at its enqueue: `options(metadata=…)` and what middleware added."""
        return metadata_of(self._run.claimed.metadata)

    @property
    def headers(self) -> dict[str, str]:
        """What middleware sent along at the enqueue, as a trace context."""
        return headers_of(self._run.claimed.metadata)

    @property
    def stopping(self) -> bool:
        """Whether this run was told to stop; a task in a thread has to look, it cannot be stopped from outside."""
        return self._run.stop is not None

    def time_left(self) -> float:
        """Seconds until the run's timeout."""
        return self._run.started + self._run.timeout - time.monotonic()

    async def progress(
        self, done: float | dict[str, Any], total: float | None = None, message: str | None = None
    ) -> bool:
        """Keep how far the task is: `progress(30, 100, "reading")`, a number from 0 to 1, or any JSON object."""
        self._rearm(self._run)
        kept = hidden_in(how_far(done, total, message), self._run.secrets)
        return await keep_progress(self._services.db, self.fence, encode_json(kept))

    async def checkpoint(self, *kept: Any) -> bool:
        """Keep a JSON value from which the next attempt can go on: `checkpoint(data)`, or `checkpoint(phase, data)`."""
        self._rearm(self._run)
        data, phase = where(kept)
        return await keep_checkpoint(self._services.db, self.fence, encode_json(data), job_id=self.job_id, phase=phase)

    async def load_checkpoint(self) -> Any:
        """What was kept last, by this attempt or an earlier one, or None; with a phase {"phase": …, "data": …}."""
        return await load_checkpoint(self._services.db, self.id)

    async def extend(self, timeout: float) -> bool:  # noqa: ASYNC109 - the run's, not the call's
        """Give this run `timeout` seconds from now."""
        if not 0 < timeout <= 366 * 86400:
            raise ValueError(f"extend(timeout={timeout!r}): give seconds, more than 0 and at most a year")
        run = self._run
        run.timeout = time.monotonic() - run.started + timeout
        self._rearm(run)
        seconds = timeout + self._services.settings.grace_seconds + 5
        return await extend(self._services.db, self.fence, seconds)

    async def enqueue(self, task: Task[Any, R], *args: Any, **kwargs: Any) -> Handle[R]:
        """Enqueue a child of this task, written only while this run holds its lease and once over all attempts.

        It inherits priority and correlation id, and the queue of this run unless the child's task names one. In a job
        it joins the job: in this task's group, or `group=`, and behind the tasks in `after=`. `key=` says which child
        it is, instead of its arguments and its turn. All three are ours unless the function has such a parameter.
        """
        from .handles import Handle

        wish = Wish.of(kwargs, task.signature.parameters)
        spec, child, key = task.prepare(args, kwargs, self._services.settings)
        if key is not None:
            raise WrongContext("a child is written once by its place in the run: leave dedupe_key away")
        if self.job_id is None and (wish.after or wish.group is not None):
            raise WrongContext("after= and group= place a child in the job of its parent, and this task has none")
        given = task.defaults
        spec = msgspec.structs.replace(
            spec,
            parent_id=self.id,
            queue=given.queue or self.queue,
            priority=self._run.claimed.priority if given.priority is None else given.priority,
        )
        child.correlation_id = child.correlation_id or self.correlation_id
        child.spawn_key = f"{KEY}{wish.key}" if wish.key else self._spawn_key(spec.entrypoint, child.kwargs)
        wish.options, wish.name = given, task.node_name
        try:
            write = self._write_through if installed or self._services.middleware else self._write
            task_id = await write(spec, child, wish)
        except BaseException:
            # The same call again is the same child: its number must not move on.
            if not wish.key:
                self._spawned[child.spawn_key.rsplit(":", 1)[0]] -= 1
            raise
        return Handle(task_id, decode=task.signature.decode_result)

    async def _write_through(self, spec: Spec, child: NewTask, wish: Wish) -> int:
        async def write(spec: Spec, tasks: Sequence[NewTask]) -> list[int]:
            return [await self._write(spec, tasks[0], wish)]

        chain = around_enqueue(self._services.middleware)
        [task_id] = await enqueue_through(chain, Enqueuing(spec, [child], connection=self._block), write)
        return task_id

    async def _write(self, spec: Spec, child: NewTask, wish: Wish) -> int:
        if self.job_id is None:
            return await self._write_child(spec, child)
        if self._joining is None:
            self._joining = Joining(self)
        return await self._joining.join(wish, spec, child, in_block=self._block is not None)

    def kept(self) -> list[PlannedTask]:
        """Children for the job that the end of the transaction block is to write."""
        return list(self._joining.kept.values()) if self._joining is not None else []

    def drop_kept(self) -> None:
        """The block was rolled back, or has written them."""
        if self._joining is not None:
            self._joining.kept.clear()

    async def _write_child(self, spec: Spec, child: NewTask) -> int:
        take = (await self._services.ids()).take
        if self._block is not None:
            return (await spawn(self._block.tx(), spec, child, take)).ids[0]
        async with self._services.db.transaction() as tx:
            if not await hold_lease(tx, self.fence):
                raise LeaseLost(f"task {self.id} is not this run's any more: its child was not written")
            written = await spawn(tx, spec, child, take)
        self._services.made_ready()
        return written.ids[0]

    def transaction(self, driver: Literal["sqlalchemy", "asyncpg"] = "sqlalchemy") -> TaskTransaction:
        """A transaction whose commit holds your writes and the completion of this task: exactly-once effects.

        `async with` gives an AsyncSession (or an asyncpg connection), `with` in a `def` task a Session.
        """
        from .transaction import TaskTransaction

        return TaskTransaction(self, driver)

    def result(self, value: Any) -> None:
        """The result that the commit of `transaction()` records."""
        self._value = value

    def take_result(self) -> Any:
        """What `result()` was given, None when it was not called."""
        return None if self._value is _NOT_GIVEN else self._value

    @property
    def sync(self) -> SyncCurrent:
        """The same for `def` tasks: each call waits for its answer in the task's thread."""
        return SyncCurrent(self)

    def _spawn_key(self, entrypoint: str, kwargs: str) -> str:
        kind = f"{entrypoint}:{hashlib.blake2b(kwargs.encode(), digest_size=8).hexdigest()}"
        self._spawned[kind] = self._spawned.get(kind, 0) + 1
        return f"{kind}:{self._spawned[kind]}"


class SyncCurrent:
    """`current()` for code in a thread."""

    def __init__(self, current: Current) -> None:
        self._current = current

    def progress(self, done: float | dict[str, Any], total: float | None = None, message: str | None = None) -> bool:
        """Keep how far the task is; False when the run has lost its lease."""
        return self._wait(self._current.progress(done, total, message))

    def checkpoint(self, *kept: Any) -> bool:
        """Keep a JSON value from which the next attempt can go on; False when the run has lost its lease."""
        return self._wait(self._current.checkpoint(*kept))

    def load_checkpoint(self) -> Any:
        """What an earlier attempt kept, or None."""
        return self._wait(self._current.load_checkpoint())

    def extend(self, timeout: float) -> bool:
        """Give this run `timeout` seconds from now; False when it has lost its lease."""
        return self._wait(self._current.extend(timeout))

    def enqueue(self, task: Task[Any, R], *args: Any, **kwargs: Any) -> Handle[R]:
        """Enqueue a child of this task."""
        return self._wait(self._current.enqueue(task, *args, **kwargs))

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        loop = self._current._services.loop  # noqa: SLF001 - our own other half
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is loop:
            coroutine.close()
            raise WrongContext("current().sync blocks: in an async task await current().… instead")
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result()


def how_far(done: float | dict[str, Any], total: float | None, message: str | None) -> Any:
    """What is kept of `progress(…)`."""
    if total is None and message is None:
        return done
    given = {"current": done, "total": total, "message": message}
    return {name: value for name, value in given.items() if value is not None}


def where(kept: tuple[Any, ...]) -> tuple[Any, str | None]:
    """What is kept of `checkpoint(…)`, and its phase."""
    match kept:
        case (data,):
            return data, None
        case (str() as phase, data):
            return {"phase": phase, "data": data}, phase
    raise TypeError(f"checkpoint{kept!r}: write checkpoint(data), or checkpoint(phase, data) with the phase's name")


_run: ContextVar[tuple[Run, Services]] = ContextVar("aaiclick_queue_run")


def current() -> Current:
    """The run that this code is part of."""
    try:
        run, services = _run.get()
    except LookupError:
        raise WrongContext("current() is for code inside a running task; here none is running") from None
    if run.context is None:
        run.context = Current(run, services)
    context: Current = run.context
    return context


def running() -> tuple[Run, Services]:
    """The run of this asyncio task and what it shares with others."""
    return _run.get()


def here() -> tuple[Run, Services] | None:
    """The same, None where no run is."""
    return _run.get(None)


def hidden_here(text: str) -> str:
    """The text without the secrets of the run that this is part of."""
    found = here()
    return text if found is None else hidden(text, found[0].secrets)


def enter(run: Run, services: Services) -> None:
    """Make this run what `current()` gives in this asyncio task and the threads it starts."""
    _run.set((run, services))
