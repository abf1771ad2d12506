"""Runs that have lost their worker twice are run alone, in a process of their own: the next loss convicts.

A hundred runs share a worker process; when one of them kills it, all are lost. Apart from each other the innocent ones
complete, and the one that kills its process is FAILED with the cause and takes nobody along.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import os
import signal
import sys
import threading
from typing import Any

import msgspec

from .client import settings_here
from .context import Services
from .errors import QueueError, StartupFailed
from .flow.claim import Claimed
from .flow.execute import Run, decide
from .lifespan import Lifespan
from .outcome import Error, Failed, Lost, Outcome
from .postgres import Database
from .settings import Settings
from .tasks import entrypoint_of, registry

ALONE_FROM = 2  # lost runs
STOP_SECONDS = 2.0


class Order(msgspec.Struct):
    """What the child is told to run."""

    claimed: Claimed
    worker_id: int
    modules: list[str]
    path: list[str]
    settings: dict[str, Any]
    dsn: str


class Answer(msgspec.Struct):
    """What it came to; both empty when there is nothing to record."""

    outcome: Outcome | None
    committed: bool = False


async def run_alone(run: Run, services: Services) -> Outcome | None:
    """Execute the run in a child process; its death is a lost run, never more."""
    order = Order(
        run.claimed,
        run.worker_id,
        list(dict.fromkeys([*services.modules, module_of(run)])),
        sys.path,
        services.settings.model_dump(mode="json", exclude={"postgres_url", "redis_url"}),
        services.dsn,
    )
    child: asyncio.subprocess.Process | None = None
    try:
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "aaiclick_queue.alone",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(msgspec.json.encode(order) + b"\n")
        with contextlib.suppress(ConnectionError):
            await child.stdin.drain()
        said = await child.stdout.read()
        code = await child.wait()
    except asyncio.CancelledError:
        if child is not None:
            await _end(child)
        return run.stop.outcome if run.stop else None
    try:
        answer = msgspec.json.decode(said, type=Answer)
    except msgspec.DecodeError:  # nothing, or cut off in the middle
        return _lost(run, services.settings, code)
    run.committed = answer.committed
    return answer.outcome


def module_of(run: Run) -> str:
    """The module that a child imports to know the task."""
    module = run.definition.function.__module__
    if module != "__main__":
        return module
    return entrypoint_of(run.definition.function).removesuffix(f".{run.definition.function.__qualname__}")


def _lost(run: Run, settings: Settings, code: int) -> Outcome:
    names = {int(one): one.name for one in signal.Signals}
    how = f"was killed by {names.get(-code, f'signal {-code}')}" if code < 0 else f"ended with exit code {code}"
    error = Error("WorkerLost", f"its own process {how}")
    return Failed(error) if run.claimed.lost_count + 1 >= settings.lost_limit else Lost(error)


async def _end(child: asyncio.subprocess.Process) -> None:
    assert child.stdin is not None
    child.stdin.close()  # it sees that, whatever the task does with signals
    with contextlib.suppress(ProcessLookupError):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                await child.wait()
                return
        child.kill()
        await child.wait()


async def _child(order: Order) -> Answer:
    from .slots import Slots  # it imports us

    settings = Settings.model_validate(order.settings | {"postgres_url": order.dsn})
    settings_here.set(settings)
    logging.basicConfig(level=settings.log_level, stream=sys.stderr, format="%(asctime)s %(name)s %(message)s")
    for module in order.modules:
        importlib.import_module(module)
    definition = registry.get(order.claimed.entrypoint)
    if definition is None:
        raise QueueError(f"{', '.join(order.modules)} do not register {order.claimed.entrypoint}")
    async with Database(settings, size=1, flow=True, dsn=order.dsn) as db, Lifespan(settings) as lifespan:
        claimed = msgspec.structs.replace(order.claimed, lost_count=0)  # it is alone already
        run = Run(claimed, definition, settings, order.worker_id)
        try:
            await lifespan.begin(definition)
        except StartupFailed as error:
            return Answer(decide(error, run))
        ended: asyncio.Future[Outcome | None] = asyncio.get_running_loop().create_future()
        slots = Slots(size=1, threads=1, ended=lambda _, outcome: ended.set_result(outcome))
        slots.serve(Services(settings, db, order.dsn, slots.rearm, lifespan=lifespan, is_child=True))
        slots.start([run])
        while not ended.done():
            await asyncio.wait([ended], timeout=0.25)
            slots.arm_timers()
        return Answer(ended.result(), run.committed)


def _die_with_parent() -> None:
    while os.read(0, 1):  # ends when the worker does, or when it is done with us
        pass
    os._exit(1)


def main() -> None:
    """Read an order, run it, say what it came to."""
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=Order)
    sys.path[:] = order.path
    answer_to = os.dup(1)
    os.dup2(2, 1)  # what the task prints must not mix with the answer
    threading.Thread(target=_die_with_parent, daemon=True).start()
    for one in (signal.SIGTERM, signal.SIGINT):  # meant for the worker, which ends us in its own time
        signal.signal(one, lambda *_: None)
    try:
        answer = asyncio.run(_child(order))
    except Exception as error:
        answer = Answer(Failed(Error.of(error)))
    with os.fdopen(answer_to, "wb") as pipe:
        pipe.write(msgspec.json.encode(answer))
    os._exit(0)  # a thread that did not stop must not keep us


if __name__ == "__main__":
    main()
