"""How long it took: from the witness's lease history, against the bound that the settings give."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tests.chaos.faults import Hurt
from tests.chaos.journal import Line
from tests.chaos.workload import Probe
from tests.faults.fleet import Console

OF_VICTIMS = """
SELECT extract(epoch FROM max(gone.at))::float8 AS at FROM chaos.leases taken
JOIN aaiclick_queue.workers w ON w.id = taken.worker_id
JOIN chaos.leases gone ON gone.task_id = taken.task_id AND gone.run_epoch = taken.run_epoch AND gone.what = 'gone'
WHERE taken.what = 'taken' AND w.pid = ANY(%s) AND taken.at <= to_timestamp(%s) AND gone.at > to_timestamp(%s)
"""
OF_RUN = """
SELECT extract(epoch FROM at)::float8 AS at FROM chaos.leases WHERE task_id = %s AND run_epoch = %s AND what = 'gone'
"""
NEXT_CLAIM = (
    "SELECT extract(epoch FROM min(at))::float8 AS at FROM chaos.leases WHERE what = 'taken' AND at > to_timestamp(%s)"
)
FIRST_CLAIMS = """
SELECT task_id, extract(epoch FROM min(at))::float8 AS at FROM chaos.leases
WHERE what = 'taken' AND task_id = ANY(%s) GROUP BY task_id
"""
CLAIMS_OF = """
SELECT taken.task_id, taken.run_epoch, extract(epoch FROM gone.at - taken.at)::float8 AS seconds FROM chaos.leases taken
JOIN aaiclick_queue.workers w ON w.id = taken.worker_id
JOIN chaos.leases gone ON gone.task_id = taken.task_id AND gone.run_epoch = taken.run_epoch AND gone.what = 'gone'
WHERE taken.what = 'taken' AND w.pid = ANY(%s) AND taken.at BETWEEN to_timestamp(%s) AND to_timestamp(%s)
"""


def measure(look: Console, hurts: Iterable[Hurt], probes: Sequence[Probe], lines: Sequence[Line]) -> None:
    """Fill in the recovery of each fault; None where nothing was hit that could be measured."""
    started = {(line.task_id, line.run_epoch) for line in lines if line.kind == "start"}
    for hurt in hurts:
        match hurt.measure:
            case "leases":
                hurt.recovery = _taken_back(look, hurt)
            case "probes":
                hurt.recovery = _longest_wait(look, hurt, probes)
            case "postgres":
                at = look.value(NEXT_CLAIM, hurt.answered)
                hurt.recovery = None if at is None else at - hurt.answered
            case "claims":
                rows = look.rows(CLAIMS_OF, hurt.pids, hurt.began, hurt.ended)
                lost = [row["seconds"] for row in rows if (row["task_id"], row["run_epoch"]) not in started]
                hurt.recovery = max(lost, default=None)


def _taken_back(look: Console, hurt: Hurt) -> float | None:
    if hurt.run is not None:
        rows = look.rows(OF_RUN, *hurt.run)
        return rows[0]["at"] - hurt.began if rows else None
    at = look.value(OF_VICTIMS, hurt.pids, hurt.began, hurt.began)
    return None if at is None else at - hurt.began


def _longest_wait(look: Console, hurt: Hurt, probes: Sequence[Probe]) -> float | None:
    sent = {
        probe.task_id: probe.sent for probe in probes if hurt.began <= probe.sent <= max(hurt.ended, hurt.began + 1)
    }
    rows = look.rows(FIRST_CLAIMS, list(sent))
    return max((row["at"] - sent[row["task_id"]] for row in rows), default=None)
