"""How registered jobs, their fires and their ticks are shown to a person."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import click
import msgspec

from ..errors import BadSchedule
from ..registered import RegisteredJob, TickView
from ..report import one_line, span
from ..ticking import LATE
from ..zones import check_zone
from .output import STATUS_COLOURS, Right, one_json_line, table, terminal_width, when

WIDE = 110  # a terminal with fewer columns shows fewer of ours
TICKS_SHOWN = 5
FIRES_SHOWN = 3


def as_data(one: RegisteredJob, fires: int = FIRES_SHOWN) -> dict[str, Any]:
    """A registered job for machines: ids are strings, and its next fires are with it."""
    data: dict[str, Any] = msgspec.structs.asdict(one)
    try:
        return data | {"id": str(one.id), "next_runs": one.next_runs(fires)}
    except BadSchedule:
        return data | {"id": str(one.id), "next_runs": []}


def state(one: RegisteredJob) -> str:
    """One word on whether it runs by itself."""
    if one.is_gone:
        return "GONE"
    if not one.enabled:
        return "DISABLED"
    if not one.is_scheduled:
        return "–"
    return "ENABLED" if one.next_run_at is not None else "OVER"


def draw_list(found: Sequence[RegisteredJob]) -> str:
    """A row a registered job."""
    headers = ["NAME", "STATE", "SCHEDULE", "NEXT RUN", "SOURCE", "ENTRYPOINT", "WHAT"]
    rows = [
        [one.name, state(one), schedule(one), _next(one), one.source, one.entrypoint, one.description or ""]
        for one in found
    ]
    if 0 < terminal_width() < WIDE:
        headers, rows = [*headers[:4], headers[5]], [[*row[:4], row[5]] for row in rows]
    return table(headers, rows)


def draw_one(one: RegisteredJob, ticks: Sequence[TickView]) -> str:
    """Everything about one, a paragraph a concern."""
    word = state(one)
    head = click.style(one_line(one.name), bold=True)
    if word != "–":
        head += f"  {click.style(word, fg=STATUS_COLOURS.get(word))}"
    parts = [
        head,
        _facts(one),
        f"{click.style('Next', bold=True)}\n{fires(one)}",
        draw_ticks(one, ticks) if ticks else "",
    ]
    return "\n\n".join(part for part in parts if part)


def fires(one: RegisteredJob, count: int = FIRES_SHOWN) -> str:
    """The next fires, in its own zone and in UTC."""
    try:
        found = one.next_runs(count)
    except BadSchedule as error:
        return f"the schedule cannot be read here: {error}"
    if not one.is_scheduled:
        return f"no schedule: `aaiclick-queue run-job {one.name}` runs it"
    if not found:
        return "it never fires again"
    lines = draw_fires(found, one.timezone)
    return "\n".join([*lines, *([] if one.enabled else ["disabled: until it is enabled none of these fires"])])


def draw_fires(found: Sequence[datetime], timezone: str) -> list[str]:
    """A line a fire: in the zone of the schedule, with its offset, and in UTC."""
    return [f"  {_moments(one, timezone)}" for one in found]


def draw_ticks(one: RegisteredJob, ticks: Sequence[TickView]) -> str:
    """A row a tick, by the clock of the schedule's zone."""
    zone = _zone(one.timezone)
    headers = [f"FIRE AT ({one.timezone})", "OUTCOME", "JOB", "STATUS", "LATE", "TOOK", "WHAT"]
    return table(headers, [_row(tick, zone) for tick in ticks])


def lasting(seconds: float) -> str:
    """A duration as --every takes it: 1h30m."""
    text = ""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        many, seconds = divmod(seconds, size)
        text += f"{many:g}{unit}" if many else ""
    return text + (f"{seconds:g}s" if seconds or not text else "")


def _moments(moment: datetime, timezone: str) -> str:
    utc = f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S}{_part(moment)} UTC"
    if timezone == "UTC":
        return f"{moment.astimezone(UTC):%a} {utc}"
    local = moment.astimezone(_zone(timezone))
    offset = f"{local:%z}"
    return f"{local:%a %Y-%m-%d %H:%M:%S}{_part(moment)} {offset[:3]}:{offset[3:5]}   {utc}"


def schedule(one: RegisteredJob) -> str:
    """When it runs, in one line."""
    if one.interval is not None:
        return f"every {lasting(one.interval)}"
    if not one.schedule:
        return "–"
    return " | ".join(one.schedule) + ("" if one.timezone == "UTC" else f" {one.timezone}")


def _row(tick: TickView, zone: ZoneInfo) -> list[object]:
    took = "–"
    if tick.started_at and tick.finished_at:
        took = span((tick.finished_at - tick.started_at).total_seconds())
    late = "–" if tick.late is None else span(tick.late)
    what = [] if tick.run_type == "SCHEDULED" else [tick.run_type.lower()]
    what += [f"stands for {tick.missed:,} missed"] if tick.missed and tick.outcome == "FIRED" else []
    what += [f"{tick.missed:,} missed"] if tick.missed and tick.outcome == "MISSED" else []
    what += [tick.reason] if tick.reason else []
    status = tick.status or ("pruned" if tick.job_id else "–")
    moment = f"{tick.fire_at.astimezone(zone):%Y-%m-%d %H:%M:%S}{_part(tick.fire_at)}"
    return [moment, tick.outcome, tick.job_id or "–", status, Right(late), Right(took), ", ".join(what)]


def _facts(one: RegisteredJob) -> str:
    facts: dict[str, Any] = {
        "entrypoint": one.entrypoint,
        "what": one.description,
        "schedule": None if one.interval is None and not one.schedule else schedule(one),
        "next run": _next(one) if one.next_run_at is not None else None,
        "arguments": one_json_line(one.default_kwargs) if one.default_kwargs else None,
        "misfire": f"{one.misfire}, at most {one.misfire_limit:,}" if one.misfire == "catch_up" else one.misfire,
        "overlap": one.overlap,
        "jitter": f"up to {lasting(one.jitter)}" if one.jitter else None,
        "starts": when(one.starts_at) if one.starts_at else None,
        "ends": when(one.ends_at) if one.ends_at else None,
        "queue": one.queue,
        "priority": one.priority,
        "timeout": lasting(one.timeout) if one.timeout else None,
        "attempts": one.max_attempts,
        "at once": one.max_parallel,
        "kept for": f"{one.retention:g} days" if one.retention else None,
        "source": _source(one),
        "changed": when(one.updated_at),
    }
    scheduled = one.is_scheduled
    left_out = set() if scheduled else {"misfire", "overlap"}
    shown = {name: value for name, value in facts.items() if value is not None and name not in left_out}
    return "\n".join(f"  {name:<12} {one_line(str(value), 2000)}" for name, value in shown.items())


def _source(one: RegisteredJob) -> str:
    if one.is_gone:
        return "code, which does not declare it any more"
    if one.source == "edited":
        return "edited: what its code says is not used until `registered-job reset`"
    return one.source


def _next(one: RegisteredJob) -> str:
    if one.next_run_at is None:
        return "–"
    behind = datetime.now(UTC) - one.next_run_at
    late = f", late by {span(behind.total_seconds())}" if behind > LATE else ""
    return when(one.next_run_at) + late


def _zone(name: str) -> ZoneInfo:
    """The zone; UTC for one that is not known here."""
    try:
        return ZoneInfo(check_zone(name))
    except BadSchedule:
        return ZoneInfo("UTC")


def _part(moment: datetime) -> str:
    """The part of a second that an interval may begin in."""
    return f".{moment.microsecond // 1000:03d}" if moment.microsecond else ""
