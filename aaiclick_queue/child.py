"""The child process: imports the worker's modules once and executes one run after another. Before: children.

It ends with its worker, however that ends; the worker ends it to time out, to cancel, and to start afresh.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import importlib
import logging
import os
import resource
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from contextvars import copy_context
from functools import partial
from pathlib import Path
from typing import Any

from . import orders
from .around import Call, execute_through
from .client import settings_here
from .context import Services, enter
from .each import definition_of
from .errors import QueueError
from .flow.execute import Run, Stop, as_exception, call_plainly, decide, execute
from .growing import growing
from .lifespan import Lifespan
from .log_capture import capturing
from .log_recorder import Recorder
from .logs import set_up_as
from .middleware import around_execute, installed
from .orders import (
    HEAD,
    Asked,
    Began,
    Begin,
    Committing,
    Done,
    Halt,
    Load,
    Loaded,
    MadeReady,
    Opening,
    Order,
    Refused,
    Said,
    SignOfLife,
    asked,
    frame,
)
from .outcome import Error, Outcome
from .postgres import Database
from .settings import Settings
from .stacks import Shown, draw, stacks_on_signal
from .tasks import registry
from .tracing import trace_if_wanted

LEAVE_SECONDS = 2.0
PR_SET_PDEATHSIG = 1


class Child:
    """This process: one run at a time, in its own time."""

    def __init__(self, begin: Begin, settings: Settings) -> None:
        self._begin = begin
        self._settings = settings
        self._run: Run | None = None
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="aaiclick-queue task")

    async def serve(self, link: socket.socket) -> None:
        """Do what is asked until nobody is there to ask."""
        self._loop = asyncio.get_running_loop()
        with stacks_on_signal(self._stacks):
            await self._serve(link)

    async def _serve(self, link: socket.socket) -> None:
        reader, self._writer = await asyncio.open_unix_connection(sock=link)
        threading.Thread(target=self._leave_with_worker, args=[link.fileno()], daemon=True).start()
        async with (
            Database(self._settings, size=2, flow=True, dsn=self._begin.dsn) as db,
            Lifespan(self._settings) as self._lifespan,
        ):
            services = Services(
                self._settings,
                db,
                self._begin.dsn,
                self._rearm,
                made_ready=lambda: self._say(MadeReady()),
                committing=lambda run: self._say(Committing(run.committing, run.committed)),
            )
            if self._settings.log_capture:
                services.recorder = Recorder(self._settings, writes_through=True)
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    length = HEAD.unpack(await reader.readexactly(HEAD.size))[0]
                    self._do(asked(await reader.readexactly(length)), services)
            if transaction := sys.modules.get("aaiclick_queue.transaction"):
                await transaction.close_engines()

    def _do(self, what: Asked, services: Services) -> None:
        match what:
            case Load(modules):
                self._say(load(modules))
            case Order():
                self._start(what, services)
            case Halt():
                self._halt()

    def _start(self, order: Order, services: Services) -> None:
        definition = registry.get(order.claimed.entrypoint)
        if definition is None:
            error = QueueError(f"no task is registered as {order.claimed.entrypoint!r} in a child: import it with -A")
            self._say(Refused(Error.of(error)))
            return
        definition = definition_of(definition, order.claimed.kwargs)
        self._run = run = Run(order.claimed, definition, self._settings, order.worker_id)
        run.asyncio_task = self._loop.create_task(self._execute(run, services))

    def _halt(self) -> None:
        if (run := self._run) is not None and run.stop is None:
            run.stop = Stop(None)
            # A thread has to look at current().stopping; and not before the first step, which says that it is over.
            if run.definition.is_async and run.started and run.asyncio_task is not None:
                run.asyncio_task.cancel()

    async def _execute(self, run: Run, services: Services) -> None:
        enter(run, services)
        run.started = time.monotonic()
        self._say(Began())
        outcome: Outcome | None = None
        try:
            if run.stop is None:
                await self._open_for(run)
                outcome = await self._outcome_of(run, services)
        except BaseException as error:  # one that no task should raise: it ends this run, never the process
            outcome = None if run.stop else decide(as_exception(error), run)
        self._run = None
        if run.log is not None:
            run.log.end()
        _flush()
        self._say(Done(outcome, run.committed, megabytes()))

    async def _open_for(self, run: Run) -> None:
        # Not in the run's own time: a model that takes longer to load than a task may run would never be loaded.
        is_slow = self._lifespan.must_open_for(run.definition)
        if is_slow:
            self._say(Opening())
        await self._lifespan.begin(run.definition)
        if is_slow:
            run.started = time.monotonic()
            self._say(Began())

    async def _outcome_of(self, run: Run, services: Services) -> Outcome | None:
        call: Call = _call if run.definition.is_async else self._call_in_thread
        if run.definition.signature.injects:
            call = self._lifespan.injecting(run.definition, call)
        call = growing(run, services, call)
        if not installed:
            return await execute(run, call)
        return await execute_through(around_execute((), "child"), run, lambda watched: execute(run, watched(call)))

    async def _call_in_thread(self, function: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
        assert self._run is not None
        call = partial(copy_context().run, _in_thread, self._run, function, kwargs)
        return await self._loop.run_in_executor(self._executor, call)

    def _stacks(self) -> str:
        runs = [self._run] if self._run else []
        worker_id = runs[0].worker_id if runs else 0
        return draw(Shown(worker_id, runs, self._loop, threading.main_thread().ident or 0, time.monotonic(), True))

    def _rearm(self, run: Run) -> None:
        # The worker keeps the time; extend() has just moved ours, and tells it by what is left.
        self._say(SignOfLife(run.started + run.timeout - time.monotonic()))

    def _say(self, what: Said) -> None:
        if threading.current_thread() is threading.main_thread():
            self._writer.write(frame(what))
        else:
            self._loop.call_soon_threadsafe(self._writer.write, frame(what))

    def _leave_with_worker(self, link: int) -> None:
        # A thread, because a task may keep the event loop; no events wanted: only the other side's end is reported.
        poll = select.poll()
        poll.register(link, 0)
        while not poll.poll(1000):  # not for ever: a poll keeps a socket open that a task has closed
            pass
        if self._run is None:
            time.sleep(LEAVE_SECONDS)  # serve() has seen it too, and closes what is open
        os._exit(1)


def _in_thread(run: Run, function: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
    run.thread_id = threading.get_ident()
    return call_plainly(function, kwargs)


async def _call(function: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
    return await function(**kwargs)


def load(modules: Sequence[str]) -> Loaded | Refused:
    """Import the modules."""
    for name in modules:
        try:
            importlib.import_module(name)
        except (Exception, SystemExit) as error:
            return Refused(Error.of(error))
    return Loaded(megabytes())


def megabytes() -> float:
    """Memory of this process that is in use now; where the system does not tell, the most it ever was."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)  # bytes on macOS
    return pages * resource.getpagesize() / (1 << 20)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()


def _die_with(worker: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != worker:  # it died before we could ask for that
        os._exit(1)


def _first(link: socket.socket) -> Asked:
    """One frame, before there is an event loop: modules are imported as by any program."""
    with link.makefile("rb", buffering=0) as file:
        head = _exactly(file.read, HEAD.size)
        return asked(_exactly(file.read, HEAD.unpack(head)[0]))


def _exactly(read: Callable[[int], bytes | None], length: int) -> bytes:
    got = b""
    while len(got) < length:
        part = read(length - len(got))
        if not part:
            os._exit(1)  # nobody is there any more
        got += part
    return got


def _set_up(begin: Begin) -> Settings:
    sys.path[:] = begin.path
    os.environ.pop("PYTHONPATH", None)
    if begin.python_path is not None:
        os.environ["PYTHONPATH"] = begin.python_path
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # what is printed is out when we are killed
    settings = Settings.model_validate(begin.settings | {"postgres_url": begin.dsn})
    settings_here.set(settings)
    trace_if_wanted(settings)
    if begin.logs is not None:
        set_up_as(begin.logs)
    else:
        logging.basicConfig(level=settings.log_level, stream=sys.stderr, format="%(asctime)s %(name)s %(message)s")
    return settings


def main() -> None:
    """Serve the worker at the other end of the descriptor in argv."""
    for one in (
        signal.SIGTERM,
        signal.SIGINT,
        signal.SIGHUP,
        signal.SIGUSR1,
    ):  # meant for the worker, which ends us in its own time
        signal.signal(one, lambda *_: None)
    descriptor, worker = int(sys.argv[1]), int(sys.argv[2])
    _die_with(worker)
    os.set_inheritable(descriptor, False)
    link = socket.socket(fileno=descriptor)
    begin, first = _first(link), _first(link)
    assert isinstance(begin, Begin)
    assert isinstance(first, Load)
    settings = _set_up(begin)
    orders.is_child = True
    answer = load(first.modules)
    link.sendall(frame(answer))
    code = 1
    try:
        if isinstance(answer, Loaded):
            gc.freeze()
            with capturing(settings.log_level) if settings.log_capture else nullcontext():
                asyncio.run(Child(begin, settings).serve(link))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        _flush()
        os._exit(code)  # a thread that did not stop must not keep us


if __name__ == "__main__":
    main()
