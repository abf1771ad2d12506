"""Stacks: where every run, thread and asyncio task of a worker is, asked for by a signal or through its row.

Drawn in the signal's handler or in the heartbeat's thread, so that a blocked event loop is no obstacle; takes no lock.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

from .schema import Transaction

if TYPE_CHECKING:
    from .flow.execute import Run

# The answer to an earlier question is not the answer to this one.
ASK_FOR_STACKS = """
UPDATE aaiclick_queue.workers SET asked = 'stacks', stacks = NULL, stacks_at = NULL
WHERE id = $1 AND status IN ('ACTIVE', 'STOPPING') RETURNING id
"""
TELL_STACKS = "UPDATE aaiclick_queue.workers SET asked = NULL, stacks = $2, stacks_at = now() WHERE id = $1"
READ_STACKS = """
SELECT status, stacks, stacks_at, extract(epoch FROM now() - last_heartbeat)::float8 AS heartbeat_seconds,
       extract(epoch FROM lease_expires_at - last_heartbeat)::float8 AS lease_seconds
FROM aaiclick_queue.workers WHERE id = $1
"""
ASKED = "stacks"
LONGEST = 64 * 1024  # bytes
FRAMES = 40  # a stack, innermost ones
ALIKE = 20  # heads above one stack
REST_SECONDS = 0.2  # after a print: a thousand signals a second would leave the event loop no time
GATHER_SECONDS = 0.05  # what the main thread has to come to its handlers

Frames = list[traceback.FrameSummary]
_OURS = (str(Path(__file__).parent), sysconfig.get_path("stdlib"), "<frozen")


class Shown(NamedTuple):
    """What is to be drawn; `loop` and `thread_id` are the event loop of the worker and the thread it turns in."""

    worker_id: int
    runs: list[Run]
    loop: asyncio.AbstractEventLoop
    thread_id: int
    loop_seen: float  # monotonic, when the event loop last turned
    is_child: bool = False


class Stack(NamedTuple):
    """One stack and what it belongs to."""

    head: str
    text: str


def draw(shown: Shown) -> str:
    """Everything that goes on in this process, the longest run first; 64 KB at most."""
    now = time.monotonic()
    frames = sys._current_frames()  # noqa: SLF001 - the only way to see another thread
    runs = sorted(shown.runs, key=lambda run: run.started or now)
    drawn = [_run(run, shown, frames, now) for run in runs]
    threads = {run.thread_id for run in runs if run.thread_id}
    drawn += _threads({ident: frame for ident, frame in frames.items() if ident not in threads})
    drawn += _tasks(shown.loop, {run.asyncio_task for run in runs})
    silent = now - shown.loop_seen
    blocked = f", event loop BLOCKED for {silent:.1f} s" if silent > 1 else ""
    who = f"worker {shown.worker_id}" if shown.worker_id else "a worker" if shown.is_child else "background loops"
    who = f"child of {who}" if shown.is_child else who
    head = f"{who} (pid {os.getpid()}) at {time.strftime('%H:%M:%S')}: {_many(len(runs))}{blocked}"
    return _bounded("\n\n".join([head, *_grouped(drawn)]))


def _many(runs: int) -> str:
    return "1 run" if runs == 1 else f"{runs:,} runs"


def _run(run: Run, shown: Shown, frames: Mapping[int, FrameType], now: float) -> Stack:
    claimed = run.claimed
    task, where, stack = run.asyncio_task, "", ""
    with suppress(Exception):  # it may end while we look
        if not run.started:
            where = "waits for a slot"
        elif run.child_pid:
            where = f"in child process {run.child_pid}, which prints its own stacks to stderr"
        elif run.thread_id in frames:
            where, stack = f"in thread {_name(run.thread_id)}", _text(_of_frame(frames[run.thread_id]))
        elif task is not None and task is asyncio.current_task(shown.loop) and shown.thread_id in frames:
            where, stack = "ON THE EVENT LOOP NOW", _text(_of_frame(frames[shown.thread_id]))
        elif task is not None:
            where, stack = "waits", _text(_of_coroutine(run.coroutine or task.get_coro()))
    age = f"{now - run.started:.1f} s" if run.started else "–"
    name = f"{claimed.entrypoint}  task {claimed.task_id}  attempt {claimed.attempt}"
    return Stack(f"run of {age}: {name}  {where}", stack)


def _threads(frames: Mapping[int, FrameType]) -> list[Stack]:
    return [
        Stack(f"thread {_name(ident)}", _text(_of_frame(frame), whole=True))
        for ident, frame in frames.items()
        if ident != threading.get_ident() or threading.current_thread() is threading.main_thread()
    ]


def _tasks(loop: asyncio.AbstractEventLoop, known: set[asyncio.Task[None] | None]) -> list[Stack]:
    try:
        tasks = asyncio.all_tasks(loop)
    except RuntimeError:  # the set kept changing while another thread copied it
        return [Stack("asyncio tasks: too many come and go to be listed", "")]
    stacks = []
    for task in tasks - known:
        with suppress(Exception):
            name = getattr(task.get_coro(), "__qualname__", "?")
            stacks.append(Stack(f"asyncio task {name}", _text(_of_coroutine(task.get_coro()), whole=True)))
    return sorted(stacks)


def _of_frame(frame: FrameType) -> Frames:
    # Without the frames of a handler that draws in the thread that it interrupted.
    frames = [(one, line) for one, line in traceback.walk_stack(frame) if one.f_code.co_filename != __file__]
    return list(traceback.StackSummary.extract(reversed(frames)))


def _of_coroutine(coroutine: Any) -> Frames:
    """From the outermost await to the innermost; a task's own get_stack() stops at the first."""
    found: list[tuple[FrameType, int]] = []
    while coroutine is not None and len(found) < 1000:
        kinds = (("cr_frame", "cr_await"), ("gi_frame", "gi_yieldfrom"), ("ag_frame", "ag_await"))
        frame_of, next_of = next((kind for kind in kinds if hasattr(coroutine, kind[0])), ("", ""))
        frame = getattr(coroutine, frame_of, None)
        if frame is None:
            break
        found.append((frame, frame.f_lineno))
        coroutine = getattr(coroutine, next_of, None)
    return list(traceback.StackSummary.extract(iter(found)))


def _text(frames: Frames, *, whole: bool = False) -> str:
    """The frames as a traceback shows them; those before the first that is neither ours nor Python's are left out."""
    ours = 0 if whole else next((at for at, one in enumerate(frames) if not one.filename.startswith(_OURS)), 0)
    left_out = max(0, len(frames) - ours - FRAMES)
    note = f"  … {left_out} frames\n" if left_out else ""
    return note + "".join(traceback.format_list(frames[ours + left_out :])).rstrip("\n")


def _grouped(stacks: list[Stack]) -> Iterator[str]:
    """Those that are at the same place together."""
    groups: dict[str, list[str]] = {}
    for stack in stacks:
        groups.setdefault(stack.text, []).append(stack.head)
    for text, heads in groups.items():
        more = [f"… and {len(heads) - ALIKE:,} more at the same place"] if len(heads) > ALIKE else []
        yield "\n".join([*heads[:ALIKE], *more, *([text] if text else [])])


def _name(ident: int) -> str:
    # Not threading.enumerate(): its lock may be held by the very code that the signal has interrupted.
    thread = threading._active.get(ident)  # type: ignore[attr-defined]  # noqa: SLF001
    return thread.name if thread is not None else str(ident)


def _bounded(text: str) -> str:
    raw = text.encode(errors="replace")
    if len(raw) <= LONGEST:
        return text
    end = "\n… cut at 64 KB"
    return raw[: LONGEST - len(end.encode())].decode(errors="ignore") + end


# Asked for by a signal.


@contextmanager
def stacks_on_signal(text: Callable[[], str]) -> Iterator[None]:
    """SIGUSR1 prints `text()` to stderr, whatever the event loop does; entered on the main thread, in its loop.

    Two may print it. The main thread, when it comes to its handlers: also while `re` keeps the interpreter to itself.
    Else a thread that hears of signals where C writes them: also while a database driver sleeps through them.
    """
    # Not faulthandler, which needs no thread: in a signal it reads frames that change, and crashed within a minute.
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    turns = Turns(text)
    signal.signal(signal.SIGUSR1, lambda *_: turns.main_thread())
    loops = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    watcher = threading.Thread(target=_watch, args=(reading, loops, turns), name="aaiclick-queue signals", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(loops)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # Python gives its own handlers up before it ends
        os.close(writing)
        watcher.join(1)


class Turns:
    """Whose turn it is to print: the main thread's, or after a moment the other's."""

    def __init__(self, text: Callable[[], str]) -> None:
        self._text = text
        self._main_at = 0.0
        self._main_is_late = False
        self._printed_at = 0.0

    def main_thread(self) -> None:
        """The main thread has come to its handlers."""
        if self._main_is_late:
            self._main_is_late = False
            return
        self._main_at = time.monotonic()
        self._print()

    def other_thread(self, asked_at: float) -> None:
        """The main thread has had its moment."""
        if self._main_at < asked_at:
            self._main_is_late = True
            self._print()

    def _print(self) -> None:
        if time.monotonic() - self._printed_at > REST_SECONDS:
            print_stacks(self._text)
            self._printed_at = time.monotonic()


def _watch(reading: int, loops: int, turns: Turns) -> None:
    """Hear of every signal first, and pass it on to the event loop, which wakes by them."""
    while numbers := os.read(reading, 4096):
        asked_at = time.monotonic()
        if loops >= 0:
            with suppress(OSError):  # full, so that it wakes anyway
                os.write(loops, numbers)
        if signal.SIGUSR1 in numbers:
            time.sleep(GATHER_SECONDS)
            turns.other_thread(asked_at)
    os.close(reading)


def print_stacks(text: Callable[[], str]) -> None:
    """Write it to stderr past Python's buffers: the interrupted code may be in the middle of using them."""
    try:
        drawn = text()
    except Exception as error:
        drawn = f"the stacks could not be drawn: {error!r}"
    raw = f"\n{drawn}\n\n".encode(errors="replace")
    with suppress(OSError):
        while raw:
            raw = raw[os.write(2, raw) :]


# Asked for through the worker's row.


async def ask_for_stacks(tx: Transaction, worker_id: int) -> bool:
    """Ask a worker for its stacks; it answers with its next heartbeat. False: it is not alive."""
    return bool(await tx.fetch(ASK_FOR_STACKS, worker_id))


async def tell_stacks(tx: Transaction, worker_id: int, text: str) -> None:
    """The worker's answer."""
    await tx.fetch(TELL_STACKS, worker_id, text.replace("\x00", "�"))
