"""How `top` goes on: one task looks, keys change what is shown, the screen is drawn when either has something new."""

from __future__ import annotations

import asyncio
import io
import logging
import shutil
import signal
import time
from contextlib import suppress
from typing import Any

from rich.console import Console
from rich.live import Live

from ..glance import Glance, History, take_glance
from ..limits import whoami
from ..postgres import Database
from .frame import SORTS, Seen, draw_frame, sorted_queues
from .keys import pressed_keys
from .output import one_json_line, to_json
from .program import echo

LOOK_SECONDS = 20.0  # a look that takes longer is given up
PLAIN_WIDTH = 140
PLAIN_HEIGHT = 200


class Top:
    """What is known and what is asked for."""

    def __init__(self, db: Database, where: str, interval: float) -> None:
        self._db = db
        self._interval = interval
        self._history = History()
        self._away_since: str | None = None
        self._asked: str | None = None  # the queue that `p` is about
        self.seen = Seen(None, self._history, where=where, interval=interval)
        self.changed = asyncio.Event()
        self.over = asyncio.Event()

    async def look_once(self) -> bool:
        """Look at the database; trouble becomes the note at the bottom."""
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                glance = await take_glance(self._db, self.seen.glance)
        except Exception as error:  # whatever it is, it may be over with the next look
            self._away_since = self._away_since or time.strftime("%H:%M:%S")
            why = f"no answer within {LOOK_SECONDS:g} s" if isinstance(error, TimeoutError) else str(error)
            self._show(note=f"nothing new since {self._away_since}, trying again: {why or type(error).__name__}")
            return False
        self._away_since = None
        self._history.add(glance)
        self._show(glance=glance, note="", selected=self._still_there(glance))
        return True

    async def look_for_ever(self) -> None:
        """Again and again, until the end."""
        while True:
            began = time.monotonic()
            await self.look_once()
            await asyncio.sleep(max(self._interval / 4, self._interval - (time.monotonic() - began)))

    def press(self, key: str) -> None:
        """A key of the user's."""
        if self.seen.help:
            self._show(help=False)
        elif self._asked is not None:
            self._answer(key)
        elif key in ("q", "Q", "\x03"):
            self.over.set()
        elif key == "?":
            self._show(help=True)
        elif key == "s":
            names = list(SORTS)
            self._show(sort=names[(names.index(self.seen.sort) + 1) % len(names)])
        elif key in ("up", "down"):
            self._select(-1 if key == "up" else 1)
        elif key == "p":
            self._ask()

    def _select(self, step: int) -> None:
        names = [queue.name for queue in sorted_queues(self.seen)]
        if not names:
            return
        at = names.index(self.seen.selected) + step if self.seen.selected in names else 0
        self._show(selected=names[max(0, min(at, len(names) - 1))])

    def _still_there(self, glance: Glance) -> str | None:
        return self.seen.selected if any(queue.name == self.seen.selected for queue in glance.queues) else None

    def _ask(self) -> None:
        if self.seen.selected is None:
            self._show(note="select a queue with ↑ ↓ first")
            return
        self._asked = self.seen.selected
        what = "resume" if self._paused(self._asked) else "pause"
        self._show(question=f"{what} {self._asked}? y / n")

    def _answer(self, key: str) -> None:
        queue, self._asked = self._asked, None
        self._show(question="")
        if key in ("y", "Y") and queue is not None:
            self._turning = asyncio.create_task(self._turn(queue, paused=self._paused(queue)))

    async def _turn(self, queue: str, *, paused: bool) -> None:
        from ..flow.pause import pause_queue, resume_queue
        from ..flow.reaper import ensure_partitions

        try:
            await ensure_partitions(self._db)
            if paused:
                await resume_queue(self._db, queue, by=whoami())
            else:
                await pause_queue(self._db, queue, by=whoami(), reason="by top")
        except Exception as error:
            self._show(note=f"could not {'resume' if paused else 'pause'} {queue}: {error}")
        else:
            await self.look_once()

    def _paused(self, name: str) -> bool:
        queues = self.seen.glance.queues if self.seen.glance else []
        return any(queue.name == name and queue.paused_at for queue in queues)

    def _show(self, **new: Any) -> None:
        self.seen = self.seen._replace(**new)
        self.changed.set()


async def stay_on_screen(db: Database, where: str, interval: float) -> None:
    """Until q or Ctrl-C; the terminal is then as it was."""
    logging.getLogger().addHandler(logging.NullHandler())  # else warnings of a lost connection tear the screen
    top = Top(db, where, interval)
    console = Console(highlight=False)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGWINCH, top.changed.set)
    with pressed_keys(top.press), Live(console=console, screen=True, auto_refresh=False) as live:
        looking = asyncio.create_task(top.look_for_ever())
        ended = asyncio.create_task(top.over.wait())
        try:
            while not top.over.is_set():
                top.changed.clear()
                live.update(draw_frame(top.seen, console.width, console.height), refresh=True)
                changed = asyncio.create_task(top.changed.wait())
                await asyncio.wait([changed, ended, looking], return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
                if looking.done():
                    looking.result()  # raises what stopped it
        finally:
            for task in (looking, ended):
                task.cancel()
            with suppress(asyncio.CancelledError):
                await looking
            loop.remove_signal_handler(signal.SIGWINCH)


async def print_frames(db: Database, where: str, interval: float, *, once: bool, as_json: bool) -> None:
    """One frame after the other, as text or as a line of JSON; the first after two looks, for there are rates."""
    top = Top(db, where, interval)
    top.seen = top.seen._replace(glance=await take_glance(db, None))
    assert top.seen.glance is not None
    top.seen.history.add(top.seen.glance)
    while True:
        await asyncio.sleep(interval)
        if not await top.look_once():
            echo(top.seen.note, err=True)
        elif as_json:
            shown = frame_data(top.seen)
            echo(to_json(shown) if once else one_json_line(shown))
        else:
            echo(plain_frame(top.seen) + ("" if once else "\n"))
        if once:
            return


def plain_frame(seen: Seen) -> str:
    """A frame as text, as wide as the terminal and as long as it needs to be."""
    width = shutil.get_terminal_size((PLAIN_WIDTH, 0)).columns
    console = Console(file=io.StringIO(), width=width, color_system=None, highlight=False)
    console.print(draw_frame(seen, width, PLAIN_HEIGHT))
    assert isinstance(console.file, io.StringIO)
    lines = [line.rstrip() for line in console.file.getvalue().splitlines()]
    return "\n".join(lines[:-1])  # the last names keys


def frame_data(seen: Seen) -> dict[str, Any]:
    """A frame for machines."""
    glance, history = seen.glance, seen.history
    assert glance is not None
    alive = [worker for worker in glance.workers if worker.status in ("ACTIVE", "STOPPING")]
    total = history.total()
    return {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "totals": {
            "ready": sum(queue.ready for queue in glance.queues),
            "ready_is_more": any(queue.ready_is_more for queue in glance.queues),
            "delayed": sum(queue.delayed for queue in glance.queues),
            "held": sum(queue.held for queue in glance.queues),
            "waiting": sum(queue.waiting for queue in glance.queues),
            "waiting_is_more": any(queue.waiting_is_more for queue in glance.queues),
            "running": sum(queue.running for queue in glance.queues),
            "slots": sum(worker.slots for worker in alive),
            "workers": len(alive),
            "in_per_second": total.enqueued,
            "done_per_second": total.done,
        },
        "queues": [
            {
                **{name: getattr(queue, name) for name in queue.__struct_fields__},
                "in_per_second": history.of_queue(queue.name).enqueued,
                "done_per_second": history.of_queue(queue.name).done,
            }
            for queue in sorted_queues(seen)
        ],
        "workers": [
            {
                **{name: getattr(worker, name) for name in worker.__struct_fields__},
                "done_per_second": history.of_worker(worker.id),
            }
            for worker in glance.workers
        ],
    }
