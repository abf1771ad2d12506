"""Middleware of one's own: who asked for a task travels with it, and slow runs are told.

Run it: python examples/own_middleware.py
"""

from __future__ import annotations

import asyncio
import time
from contextvars import ContextVar

from aaiclick_queue import Enqueuing, Middleware, Proceed, Running, Settings, Worker, current, task, use
from aaiclick_queue.outcome import Failed, Outcome

user: ContextVar[str] = ContextVar("user", default="nobody")
slow: list[str] = []


class AsUser(Middleware):
    """A task runs as the user in whose request it was enqueued, and so does what it enqueues."""

    in_child = True  # sets a variable that the task reads: has to be where the task runs

    async def enqueue(self, call: Enqueuing, proceed: Proceed[list[int]]) -> list[int]:
        if user.get() == "mallory":
            raise PermissionError(f"mallory may not enqueue {call.entrypoint}")
        call.headers["user"] = user.get()
        return await proceed()

    async def execute(self, run: Running, proceed: Proceed[Outcome]) -> Outcome:
        token = user.set(run.headers.get("user", "nobody"))
        try:
            return await proceed()
        finally:
            user.reset(token)


class TellSlow(Middleware):
    """Keeps the names of runs that took long or failed."""

    async def execute(self, run: Running, proceed: Proceed[Outcome]) -> Outcome:
        began = time.monotonic()
        outcome = await proceed()
        if isinstance(outcome, Failed) or time.monotonic() - began > 0.1:
            slow.append(f"{run.entrypoint} attempt {run.attempt}")
        return outcome


# For every client and worker of this process, the first one outermost. With `-A` a worker imports it with its tasks.
use(TellSlow(), AsUser())


@task
async def greet() -> str:
    follow_up = await current().enqueue(sign)
    return f"hello {user.get()}, {await follow_up.result(timeout=30)}"


@task
async def sign() -> str:
    await asyncio.sleep(0.2)
    return f"signed {user.get()}"


async def main() -> None:
    async with asyncio.TaskGroup() as group:
        worker = Worker(Settings.load())
        group.create_task(worker.run())

        user.set("ada")
        greeting = await (await greet.enqueue()).result(timeout=30)
        print(greeting)
        assert greeting == "hello ada, signed ada"

        user.set("mallory")
        try:
            await greet.enqueue()
        except PermissionError as error:
            print(error)
        worker.stop()
    print("slow:", ", ".join(slow))
    assert len(slow) == 2


if __name__ == "__main__":
    asyncio.run(main())
