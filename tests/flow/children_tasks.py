"""Tasks that run in child processes, imported there as users' modules are. Each start leaves a line in a file."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from aaiclick_queue import Cancel, Fail, Retry, Snooze, current, task

ballast: list[bytearray] = []
seen: list[int] = []


def note(file: str, *words: object) -> None:
    """Write a line that outlives this process."""
    with Path(file).open("a") as notes:
        notes.write(" ".join(map(str, [*words, os.getpid()])) + "\n")


@task(isolation="process")
def pid() -> int:
    return os.getpid()


@task(isolation="process")
async def pid_async() -> int:
    return os.getpid()


@task(isolation="process")
def count_here() -> tuple[int, int]:
    """How many runs this process has had, this one included."""
    seen.append(1)
    return os.getpid(), len(seen)


@task(isolation="process")
def wait(file: str, seconds: float = 60) -> int:
    note(file, "wait")
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.01)
    return os.getpid()


@task(isolation="process")
async def wait_async(file: str, seconds: float = 60) -> int:
    note(file, "wait")
    try:
        await asyncio.sleep(seconds)
    finally:
        note(file, "over")
    return os.getpid()


@task(isolation="process")
def look_and_leave(file: str) -> str:
    """As a task does that wants to be stopped well."""
    note(file, "wait")
    while not current().stopping:
        time.sleep(0.01)
    note(file, "over")
    return "left early"


@task(isolation="process", max_attempts=2, retry_delay=0)
def spin(file: str) -> None:
    note(file, "spin")
    while True:
        pass


@task(isolation="process", max_attempts=1)
async def spin_async(file: str) -> None:
    note(file, "spin")
    while True:
        pass


@task(isolation="process", max_attempts=1, heartbeat_timeout=2)
def silent(file: str, beats: int) -> int:
    for _ in range(beats):
        current().sync.progress({})
        time.sleep(0.5)
    if beats:
        return beats
    note(file, "silent")
    while True:
        pass


@task(isolation="process", timeout=2, max_attempts=1)
def extended() -> str:
    current().sync.extend(60)
    time.sleep(2.5)
    return f"{current().time_left() > 30}"


def _leave_somebody_with_the_socket(file: str) -> None:
    if os.fork() == 0:
        os.setsid()
        note(file, "left")
        time.sleep(90)
        os._exit(0)
    while "left" not in Path(file).read_text():
        time.sleep(0.01)
    os._exit(5)


def _close_what_is_not_its_own() -> None:
    os.closerange(3, 256)
    time.sleep(60)


def _write_where_it_should_not() -> None:
    for number in range(3, 256):
        with suppress(OSError):
            if str(Path(f"/proc/self/fd/{number}").readlink()).startswith("socket:"):
                os.write(number, b"\xff" * 64)
    time.sleep(60)


WAYS: dict[str, Callable[[str], object]] = {
    "SIGKILL": lambda _: os.kill(os.getpid(), signal.SIGKILL),
    "SIGABRT": lambda _: os.abort(),
    "SIGSEGV": lambda _: ctypes.string_at(0),
    "exit code 7": lambda _: os._exit(7),
    "exit code 0": lambda _: os._exit(0),
    "exit code 5": _leave_somebody_with_the_socket,
    "exit code 1": lambda _: _close_what_is_not_its_own(),
    "wrote into the descriptor": lambda _: _write_where_it_should_not(),
}


@task(isolation="process")
def die(how: str, file: str) -> None:
    note(file, how)
    WAYS[how](file)


@task(isolation="process")
def noise(words: str) -> str:
    print(words, "printed")  # noqa: T201 - on purpose
    print(words, "to stderr", file=sys.stderr)  # noqa: T201
    os.write(1, f"{words} raw\n".encode())
    subprocess.run(["echo", words, "by a program"], check=True)
    return words


@task(isolation="process")
def echo(data: str) -> str:
    return data


@task(isolation="process")
def grow(megabytes: int) -> int:
    ballast.append(bytearray(b"x") * (megabytes << 20))
    return os.getpid()


class Picky(Exception):
    pass


@task(isolation="process", retry_delay=0, retry_on=(Picky,))
def choosy(kind: str) -> int:
    if current().attempt == 1:
        raise {"Picky": Picky, "KeyError": KeyError}[kind]("no luck")
    return current().attempt


@task(isolation="process")
async def steer(how: str) -> int:
    if current().run_epoch < 2:
        words: dict[str, Exception] = {
            "retry": Retry(in_=0),
            "snooze": Snooze(in_=0),
            "fail": Fail("no"),
            "cancel": Cancel("no"),
        }
        raise words[how]
    return current().attempt


@task(isolation="process", max_attempts=1)
def leave(how: str) -> None:
    if how == "exit":
        sys.exit(3)
    raise KeyboardInterrupt


@task(isolation="process", retry_delay=0)
async def ask(n: int) -> dict[str, Any]:
    me = current()
    before = await me.load_checkpoint()
    assert await me.checkpoint({"n": n})
    assert await me.progress(0.5)
    assert await me.extend(100)
    child = await me.enqueue(pid)
    if before is None:
        raise RuntimeError("once more")
    return {"id": str(me.id), "attempt": me.attempt, "before": before, "child": str(child.id), "left": me.time_left()}


@task(isolation="process", retry_delay=0)
def ask_sync(n: int) -> dict[str, Any]:
    me = current()
    before = me.sync.load_checkpoint()
    assert me.sync.checkpoint({"n": n})
    assert me.sync.progress(0.5)
    child = me.sync.enqueue(pid)
    if before is None:
        raise RuntimeError("once more")
    return {"id": str(me.id), "attempt": me.attempt, "before": before, "child": str(child.id)}


@task(isolation="process")
async def spawn() -> str:
    return str((await current().enqueue(pid)).id)


@task(isolation="process")
async def pay(order: int, go_on: str = "/") -> str:
    from sqlalchemy import text

    async with current().transaction() as session:
        await session.execute(text("INSERT INTO payments (order_id) VALUES (:id)"), {"id": order})
        current().result(f"order {order} is paid")
    while not Path(go_on).exists():  # noqa: ASYNC110, ASYNC240 - a file is all it can look at
        await asyncio.sleep(0.01)
    await (await asyncio.to_thread(lambda: pid)).enqueue()  # the client of this process knows the queue
    return "dropped"


@task(isolation="process")
def pay_sync(order: int) -> None:
    from sqlalchemy import text

    with current().transaction() as session:
        session.execute(text("INSERT INTO payments (order_id) VALUES (:id)"), {"id": order})
        current().result(f"order {order} is paid")


@task(isolation="process")
def start_program(file: str) -> None:
    program = subprocess.Popen(["sleep", "600"])
    note(file, program.pid)
    time.sleep(60)


@task
def in_thread(n: int) -> int:
    assert threading.current_thread() is not threading.main_thread()
    return n


@task
async def on_loop(n: int) -> int:
    return n
