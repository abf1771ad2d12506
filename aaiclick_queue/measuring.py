"""Measuring: has this process count what it does, and tells the gauges where to look."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from .meters import METERS, Labels
from .plan import EVERY_QUEUE
from .tasks import registry

if TYPE_CHECKING:
    from .flow.background import Background
    from .worker import Worker


def measure_worker(worker: Worker) -> None:
    """Count what this worker does from now on."""
    queues = [queue for queue in worker.plan.queues if queue != EVERY_QUEUE]
    first = queues[0] if queues else "default"
    METERS.turn_on(registered={name: task.defaults.queue or first for name, task in registry.items()}, queues=queues)

    def running() -> Mapping[Labels, float]:
        runs = Counter(METERS.bounded("queue", run.claimed.queue) for run in list(worker.slots.held.values()))
        return {(queue,): float(runs[queue]) for queue in {*queues, *runs}}

    METERS.gauge("running_tasks", running)
    METERS.gauge("leader", lambda: {("background",): float(worker.leads)})


def measure_background(background: Background) -> None:
    """Count what these loops do from now on."""
    METERS.turn_on()
    METERS.gauge("leader", lambda: {("background",): float(background.holder.holds)})
