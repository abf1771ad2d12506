"""One frame of `top`: totals with sparklines, queues, workers, a line of keys or of trouble; fitted to the terminal."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..glance import Glance, History, Rates
from ..queue_views import QueueView, WorkerView
from ..report import one_line, span
from .output import STATUS_COLOURS

BARS = "▁▂▃▄▅▆▇█"
SPARK_WIDTH = 30
SPARK_SAMPLES = 120
WIDE = 110  # columns from which on there is room for more of ours
OLD_SECONDS = 60.0
KEYS = "q quit  ↑↓ select  p pause/resume  s sort  ? help"
HELP = """
  q, Ctrl-C     leave
  ↑ ↓, k j      select a queue
  p             pause the selected queue, or resume it; asks first
  s             sort queues by the next column
  ?             this page; any key leaves it

  READY and HELD are exact up to 10,000, and ~ says how long ago a longer line
  was counted; DELAYED and RUNNING up to 100,000 of
  all queues together. What waits for other tasks of its job is counted up to
  10,000 and shown where there is such work.
  IN/S and DONE/S are of the last 5 s: what was enqueued, and what left the
  queue for good. DONE/S of a queue that is too long to be counted is not known;
  the total is then what the workers say.
  DONE/S of a worker is of the last 30 s and comes with its heartbeats."""


class Seen(NamedTuple):
    """What a frame is drawn from."""

    glance: Glance | None
    history: History
    where: str = ""
    sort: str = "name"
    selected: str | None = None
    note: str = ""
    question: str = ""
    interval: float = 1.0
    help: bool = False


SORTS: dict[str, Callable[[QueueView, Rates], float]] = {
    "name": lambda queue, rates: 0.0,  # noqa: ARG005 - they are by name already
    "ready": lambda queue, rates: -queue.ready,  # noqa: ARG005
    "oldest": lambda queue, rates: -(queue.oldest_seconds or 0.0),  # noqa: ARG005
    "running": lambda queue, rates: -queue.running,  # noqa: ARG005
    "in/s": lambda queue, rates: -(rates.enqueued or 0.0),  # noqa: ARG005
    "done/s": lambda queue, rates: -(rates.done or 0.0),  # noqa: ARG005
}


def draw_frame(seen: Seen, width: int, height: int) -> RenderableType:
    """The whole screen."""
    head = Text(f"aaiclick-queue top  {time.strftime('%H:%M:%S')}  every {seen.interval:g} s  {seen.where}", "bold")
    head.truncate(width, overflow="ellipsis")
    if seen.help:
        return Group(head, Text(HELP))
    if seen.glance is None:
        return Group(head, Text(seen.note or "reading …"))
    top = [head, *_totals(seen.glance, seen.history, width, seen.interval)]
    room = height - len(top) - 5  # two headers, two blank lines, the last line
    queues, workers = sorted_queues(seen), seen.glance.workers
    for_workers = max(1, min(len(workers), max(3, room - len(queues))))
    shown = _around(queues, seen.selected, max(1, room - for_workers))
    wide, hidden = width >= WIDE, len(queues) - len(shown)
    no_queue = Text("no queue has any work, pause or worker", "dim")
    no_worker = Text("no worker has been here in the last hour", "dim")
    return Group(
        *top,
        Text(),
        _queues(shown, seen, wide=wide, hidden=hidden) if queues else no_queue,
        Text(),
        _workers(workers[:for_workers], seen, wide=wide) if workers else no_worker,
        _last_line(seen, width),
    )


def sorted_queues(seen: Seen) -> list[QueueView]:
    """The queues in the order that is asked for."""
    if seen.glance is None:
        return []
    key = SORTS[seen.sort]
    return sorted(seen.glance.queues, key=lambda queue: (key(queue, seen.history.of_queue(queue.name)), queue.name))


def sparkline(values: Sequence[float], width: int, *, samples: int = SPARK_SAMPLES) -> str:
    """The last values as bars, each the mean of as many samples as fit into the width."""
    per = max(1, math.ceil(samples / width))
    groups = [values[max(0, end - per) : end] for end in range(len(values), 0, -per)][:width]
    means = [sum(group) / len(group) for group in reversed(groups)]
    highest = max(means, default=0.0)
    if highest <= 0:
        return (BARS[0] * len(means)).rjust(width)
    bars = [BARS[min(len(BARS) - 1, int(mean / highest * len(BARS)))] for mean in means]
    return "".join(bars).rjust(width)


def _totals(glance: Glance, history: History, width: int, interval: float) -> list[Text]:
    alive = [worker for worker in glance.workers if worker.status in ("ACTIVE", "STOPPING")]
    total, rates = glance.queues, history.total()
    ready = f"{sum(q.ready for q in total):,}{'+' if any(q.ready_is_more for q in total) else ''}"
    ready = f"~{ready}" if any(q.ready_at_seconds is not None for q in total) else ready
    line = Text.assemble(
        ("ready ", "dim"), (ready, "bold"), ("   held ", "dim"), f"{sum(q.held for q in total):,}",
        *_at_gates(total), ("   delayed ", "dim"), f"{sum(q.delayed for q in total):,}", ("   running ", "dim"),
        (f"{sum(q.running for q in total):,}", "bold"), f"/{sum(w.slots for w in alive):,}",
        ("   workers ", "dim"), (str(len(alive)), "bold" if alive else "bold red"),
    )  # fmt: skip
    line.truncate(width, overflow="ellipsis")
    spark = max(10, min(SPARK_WIDTH * 2, (width - 40) // 2))
    more = "+" if glance.new_is_more else ""
    rows = [
        ("in/s", f"{_rate(rates.enqueued)}{more}", "enqueued", "cyan"),
        ("done/s", _rate(rates.done), "done", "green"),
    ]
    lines = Text()
    for name, value, what, style in rows:
        lines.append(f"{name:<6} {value:>8} ", "dim" if value == "–" else "")
        lines.append(sparkline(history.series(what), spark), style)
        lines.append("   ")
    lines.truncate(width, overflow="crop")
    waits = Text.assemble(
        (f"{'ready':<6} {ready:>8} ", ""),
        (sparkline(history.series("ready"), spark), "yellow"),
        (f"   {span(SPARK_SAMPLES * interval)}", "dim"),
    )
    waits.truncate(width, overflow="crop")
    return [line, lines, waits]


def _at_gates(queues: Sequence[QueueView]) -> list[str | tuple[str, str]]:
    """What waits for other tasks of its job, where there is such work."""
    waiting = sum(queue.waiting for queue in queues)
    more = any(queue.waiting_is_more for queue in queues)
    return [("   waiting ", "dim"), _many(waiting, more=more)] if waiting else []


def _table(headers: Sequence[str], *, left: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold reverse", expand=True, padding=(0, 2, 0, 0))
    for header in headers:
        to_left = header.rstrip("▾") in left
        last = header == headers[-1]
        table.add_column(
            header, justify="left" if to_left else "right", no_wrap=True, overflow="ellipsis", ratio=1 if last else None
        )
    return table


def _ready(queue: QueueView) -> str:
    said = _many(queue.ready, more=queue.ready_is_more)
    return said if queue.ready_at_seconds is None else f"~{said} {span(queue.ready_at_seconds)}"


def _queues(queues: Sequence[QueueView], seen: Seen, *, wide: bool, hidden: int) -> Table:
    names = ["QUEUE", "READY", "OLDEST", "HELD", "DELAYED", "RUNNING", "IN/S", "DONE/S"]
    of_jobs = wide and any(queue.waiting for queue in queues)
    names += ["WAITING"] if of_jobs else []
    names += ["WORKERS", "READY, LATELY"] if wide else []
    headers = [f"{name}▾" if name.lower() == seen.sort or (name, seen.sort) == ("QUEUE", "name") else name
               for name in [*names, "STATE"]]  # fmt: skip
    table = _table(headers, left=("QUEUE", "STATE", "READY, LATELY"))
    for queue in queues:
        rates = seen.history.of_queue(queue.name)
        cells = [
            Text(one_line(queue.name, 24 if not wide else 40)),
            Text(_ready(queue), "bold" if queue.ready else "dim"),
            _age(queue.oldest_seconds),
            _count(queue.held, more=queue.held_is_more),
            _count(queue.delayed, more=queue.delayed_is_more),
            _count(queue.running),
            Text(_rate(rates.enqueued)),
            Text(_rate(rates.done)),
        ]
        if of_jobs:
            cells.append(_count(queue.waiting, more=queue.waiting_is_more))
        if wide:
            spark = sparkline(seen.history.series("ready", queue.name), SPARK_WIDTH)
            cells += [_count(queue.workers), Text(spark, "yellow")]
        table.add_row(*cells, _state(queue), style="reverse" if queue.name == seen.selected else "")
    if hidden > 0:
        table.add_row(Text(f"… {hidden} more", "dim"))
    return table


def _workers(workers: Sequence[WorkerView], seen: Seen, *, wide: bool) -> Table:
    headers = ["WORKER", "STATUS", "RUNNING", "DONE/S", "HEARTBEAT", "GROUP"]
    headers += ["DONE", "FAILED", "HOST", "PID"] if wide else []
    table = _table([*headers, "QUEUES"], left=("WORKER", "STATUS", "GROUP", "HOST", "QUEUES"))
    for worker in workers:
        alive = worker.status in ("ACTIVE", "STOPPING")
        cells = [
            Text(f"…{worker.id[-8:]}"),
            Text(worker.status, STATUS_COLOURS.get(worker.status, "")),
            Text(f"{worker.running}/{worker.slots}"),
            Text(_rate(seen.history.of_worker(worker.id)) if alive else "–"),
            Text(span(worker.heartbeat_seconds), "" if alive else "dim"),
            Text(one_line(worker.fleet or "–", 16)),
        ]
        if wide:
            cells += [Text(f"{worker.completed:,}"), Text(f"{worker.failed:,}"), Text(one_line(worker.hostname, 20))]
            cells += [Text(str(worker.pid))]
        table.add_row(*cells, Text(one_line(",".join(worker.queues), 60)), style="" if alive else "dim")
    return table


def _last_line(seen: Seen, width: int) -> Text:
    line = Text(seen.question, "bold yellow") if seen.question else Text(KEYS, "dim")
    if seen.note and not seen.question:
        line = Text(one_line(seen.note, 500), "bold red")
    line.truncate(width, overflow="ellipsis")
    return line


def _around(queues: Sequence[QueueView], selected: str | None, room: int) -> Sequence[QueueView]:
    """As many as there is room for, the selected one among them; one line less when some are left out."""
    if len(queues) <= room:
        return queues
    room = max(1, room - 1)
    at = next((n for n, queue in enumerate(queues) if queue.name == selected), 0)
    start = max(0, min(at - room + 1, len(queues) - room))
    return queues[start : start + room]


def _state(queue: QueueView) -> Text:
    if queue.paused_at:
        return Text("PAUSED" + (f": {one_line(queue.reason, 60)}" if queue.reason else ""), "yellow")
    if not queue.workers and (queue.ready or queue.delayed):
        return Text("no worker", "bold red")
    return Text()


def _age(seconds: float | None) -> Text:
    if seconds is None:
        return Text("–", "dim")
    return Text(span(seconds), "yellow" if seconds > OLD_SECONDS else "")


def _count(number: int, *, more: bool = False) -> Text:
    return Text(_many(number, more=more), "" if number else "dim")


def _many(number: int, *, more: bool) -> str:
    return f"{number:,}{'+' if more else ''}"


def _rate(rate: float | None) -> str:
    if rate is None:
        return "–"
    return f"{rate:,.0f}" if rate >= 99.5 or rate == 0 else f"{rate:.1f}"
