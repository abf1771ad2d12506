"""Twenty things that one does with Celery, each as it is written here. docs/from-celery.md has the tables.

Run it: python examples/celery_idioms.py
The worker is a program of its own; without AAICLICK_QUEUE_POSTGRES_URL both use a Postgres of their own.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aaiclick_queue import (
    DuplicateTask,
    EndedTask,
    Retry,
    Status,
    TaskCancelled,
    TaskFailed,
    chain,
    chord,
    current,
    group,
    job,
    signature,
    sync,
    task,
)
from aaiclick_queue.errors import JobFailed

idioms: list[Callable[[], None]] = []


def idiom(function: Callable[[], None]) -> Callable[[], None]:
    """One of the twenty; its first line says what it is."""
    idioms.append(function)
    return function


def show(what: str, value: Any, expected: Any) -> None:
    assert value == expected, f"{what}: {value!r} instead of {expected!r}"
    print(f"     {what}  →  {value!r}")


# @app.task
@task
def add(x: int, y: int) -> int:
    return x + y


@task
def mul(x: int, y: int) -> int:
    return x * y


@task
def total(numbers: list[int]) -> int:
    return sum(numbers)


@idiom
def calls() -> None:
    """delay() and get()"""
    show("add.delay(2, 2).get()", add.delay(2, 2).get(timeout=30), 4)


@idiom
def options() -> None:
    """apply_async() with options"""
    handle = add.apply_async((2, 3), queue="sums", priority=9, countdown=0.2, expires=60)
    show("add.apply_async((2, 3), queue='sums', …)", handle.get(timeout=30), 5)


@idiom
def by_name() -> None:
    """app.send_task(): the name is enough"""
    handle = sync.enqueue("celery_idioms.add", {"x": 20, "y": 22})
    show("sync.enqueue('celery_idioms.add', {…})", handle.get(timeout=30), 42)


@idiom
def partials() -> None:
    """signatures and partial arguments"""
    partial = add.s(2)
    show("add.s(2).delay(4)", partial.delay(4).get(timeout=30), 6)
    named = signature("celery_idioms.mul", (5,), queue="sums")
    show("signature('celery_idioms.mul', (5,)).delay(4)", named.delay(4).get(timeout=30), 20)


@idiom
def chains() -> None:
    """a chain: each step gets the result before it"""
    run = (add.s(2, 2) | mul.s(8) | mul.s(10)).delay()
    show("(add.s(2, 2) | mul.s(8) | mul.s(10)).delay()", run.get(timeout=30), 320)
    partial = chain(add.s(4), mul.s(8))
    show("chain(add.s(4), mul.s(8))(16)", partial(16).get(timeout=30), 160)


@idiom
def immutables() -> None:
    """immutable signatures: one after the other, nothing passed on"""
    run = (add.si(2, 2) | add.si(4, 4)).delay()
    show("(add.si(2, 2) | add.si(4, 4)).delay()", run.get(timeout=30), 8)


@idiom
def groups() -> None:
    """a group: side by side, results in a list"""
    run = group(add.s(i, i) for i in range(5))()
    show("group(add.s(i, i) for i in range(5))()", run.get(timeout=30), [0, 2, 4, 6, 8])


@idiom
def chords() -> None:
    """a chord: a group, and a task that gets all results"""
    run = chord(add.s(i, i) for i in range(10))(total.s())
    show("chord(add.s(i, i) for i in range(10))(total.s())", run.get(timeout=30), 90)
    run = (group(add.s(i, i) for i in range(10)) | total.s()).delay()
    show("(group(…) | total.s()).delay()", run.get(timeout=30), 90)


@idiom
def nested() -> None:
    """chains of groups, groups of chains"""
    run = chain(add.s(1, 1), group(mul.s(10), mul.s(100) | add.s(1)), total.s()).delay()
    show("chain(add.s(1, 1), group(mul.s(10), mul.s(100) | add.s(1)), total.s())", run.get(timeout=30), 221)


@idiom
def starmaps() -> None:
    """starmap and chunks: few tasks for many calls"""
    show("add.starmap([(1, 2), (3, 4)])", add.starmap([(1, 2), (3, 4)]).delay().get(timeout=30), [3, 7])
    chunks = add.chunks(zip(range(6), range(6), strict=True), 2)
    show("add.chunks(zip(range(6), range(6)), 2)", chunks().get(timeout=30), [[0, 2], [4, 6], [8, 10]])


@task
def note(value: int, file: str) -> None:
    Path(file).write_text(f"{value}")


# def on_error(request, exc, traceback)
@task
def on_error(ended: EndedTask, file: str) -> None:
    assert ended.error is not None
    Path(file).write_text(f"{ended.error.type}: {ended.error.message}")


@task(max_attempts=1)
def divide(x: int, y: int) -> float:
    return x / y


@idiom
def links() -> None:
    """link: a callback with the result"""
    file = Path(folder, "linked")
    run = add.apply_async((2, 2), link=note.s(str(file)))
    show("add.apply_async((2, 2), link=note.s(…))", run.get(timeout=30), 4)
    show("the callback was given", file.read_text(), "4")


@idiom
def error_links() -> None:
    """link_error: a callback with the error"""
    file = Path(folder, "failed")
    run = (add.s(1, 1) | divide.s(0) | add.s(1)).on_error(on_error.s(str(file))).delay()
    try:
        run.get(timeout=30)
    except JobFailed as failed:
        print(f"     {failed.failed[0][0]} failed, the step behind it never started")
    while not file.exists():
        time.sleep(0.05)
    show("the callback was given", file.read_text(), "ZeroDivisionError: division by zero")


# @app.task(bind=True, max_retries=3): raise self.retry(countdown=0.1)
@task(max_retries=3)
def poll() -> str:
    if current().attempt < 3:
        raise Retry(in_=0.1)
    return f"there in attempt {current().attempt}"


# @app.task(autoretry_for=(ConnectionError,), retry_backoff=True): every exception is tried again without a word
@task(autoretry_for=(ConnectionError,), dont_autoretry_for=(ValueError,), retry_backoff=0.05, max_retries=5)
def flaky(kind: str) -> str:
    if kind == "value":
        raise ValueError("no attempt would change that")
    if current().attempt == 1:
        raise ConnectionError("not now")
    return "connected"


@idiom
def retries() -> None:
    """self.retry() and self.request.retries"""
    show("poll.delay()", poll.delay().get(timeout=30), "there in attempt 3")


@idiom
def autoretries() -> None:
    """autoretry_for, dont_autoretry_for, retry_backoff"""
    show("flaky.delay('connection')", flaky.delay("connection").get(timeout=30), "connected")
    try:
        flaky.delay("value").get(timeout=30)
    except TaskFailed as failed:
        show(
            "flaky.delay('value')", f"{failed.error_type} after {failed.attempts} attempt", "ValueError after 1 attempt"
        )


@idiom
def revokes() -> None:
    """AsyncResult.revoke()"""
    handle = add.apply_async((1, 1), countdown=3600)
    show("sync.cancel(handle.id)", sync.cancel(handle.id), {handle.id})
    try:
        handle.get(timeout=30)
    except TaskCancelled:
        show("its status", sync.status(handle.id), Status.CANCELLED)


@idiom
def unique() -> None:
    """task_id='mine', celery-once: one at a time for a key"""
    first = add.apply_async((1, 1), dedupe_key="report-7", countdown=0.5)
    try:
        add.apply_async((1, 1), dedupe_key="report-7")
    except DuplicateTask as duplicate:
        show("the second is refused and knows the first", duplicate.task_id, first.id)
    again = add.apply_async((1, 1), dedupe_key="report-7", dedupe="skip")
    show("dedupe='skip' gives the one that is there", again.id, first.id)
    first.get(timeout=30)


@idiom
def result_sets() -> None:
    """ResultSet.join()"""
    handles = [add.delay(i, i) for i in range(4)]
    show("sync.gather(*handles)", sync.gather(*handles, timeout=30), [0, 2, 4, 6])


# @app.task(ignore_result=True)
@task(keep="failed")
def ping() -> str:
    return "pong"


@idiom
def ignored() -> None:
    """ignore_result: a success leaves no row"""
    first, second = ping.delay(), add.delay(1, 1)
    show("the others are not touched", second.get(timeout=30), 2)
    print(f"     task {first.id} leaves nothing to look up")


@task
def fan_out(numbers: list[int]) -> int:
    """`return` of a node goes on with it, as self.replace(…) does."""
    doubled: int = chord([mul.s(n, 2) for n in numbers])(total.s())
    return doubled


@idiom
def replaces() -> None:
    """self.replace(): a task that goes on as a canvas"""
    run = (fan_out.s([1, 2, 3]) | add.s(100)).delay()
    show("(fan_out.s([1, 2, 3]) | add.s(100)).delay()", run.get(timeout=30), 112)


@job
def invoice(customer: int) -> Any:
    """What a canvas cannot say: two tasks before one, and a dict of results."""
    net = add(customer, 100)
    tax = mul(net, 19)
    return {"net": net, "both": total([net, tax])}


@idiom
def beyond() -> None:
    """what a canvas cannot say: a job"""
    show("invoice.delay(7)", invoice.delay(7).get(timeout=30), {"net": 107, "both": 2140})


folder = ""


def main() -> None:
    global folder
    command = [
        sys.executable,
        "-m",
        "aaiclick_queue",
        "worker",
        "-A",
        "celery_idioms",
        "-Q",
        "*",
        "--log-level",
        "error",
    ]
    worker = subprocess.Popen(command, cwd=Path(__file__).parent)  # celery -A celery_idioms worker
    try:
        with tempfile.TemporaryDirectory() as folder:
            for number, one in enumerate(idioms, start=1):
                print(f"{number:>2} · {one.__doc__}")
                one()
    finally:
        worker.terminate()
        code = worker.wait(timeout=60)
    assert len(idioms) == 20
    assert code == 0


if __name__ == "__main__":
    main()
