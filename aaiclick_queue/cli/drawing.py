"""Draws the graph of a job: rails that lead from node to node, boxes around groups, a mark for each status.

Fits its width and a bounded number of rows: tasks that are alike are folded, and what is left out is counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ..report import span
from .folding import SIDE_BY_SIDE, folded, hidden, worth_a_look
from .lines import Line, columns, counted, fitted, joined, mark
from .rails import Step, draw_rails
from .shapes import Level, Shapes, Unit, base_name, in_layers

if TYPE_CHECKING:
    from ..job_graphs import GraphNode, JobGraph

RAILS_LIMIT = 6  # beyond it nobody can follow a line with the eye
NAME_WIDTH = 12  # the least that is left of a name before notes go
NOTE_WIDTH = 60
NARROWEST = 24  # columns that a row needs
CHOICES = {"?true": "if true", "?false": "if false", "*": "otherwise"}
NO_RAILS = Step((), " ", 0, arrives=True, leaves=True, beside=" ", below=())


def draw_graph(graph: JobGraph, *, now: datetime, width: int, everything: bool = False) -> list[Line]:
    """The rows of the graph."""
    return list(_Drawing(graph, now, everything=everything).level(None, width))


class _Drawing:
    def __init__(self, graph: JobGraph, now: datetime, *, everything: bool) -> None:
        self._shapes = Shapes(graph)
        self._now = now
        self._everything = everything

    def level(self, parent: str | None, width: int) -> Iterator[Line]:
        level = self._shapes.level(parent)
        if not level.units:
            return
        steps = draw_rails([unit.key for unit in level.units], level.nexts)
        across = max(step.width for step in steps)
        if across > 2 * RAILS_LIMIT or width - across < NARROWEST:
            level, steps = in_layers(level), [NO_RAILS] * len(steps)
            self._tell_previous(level)
            if across > 2 * RAILS_LIMIT:
                yield Line(fitted("too many lines to draw: ← names what a task waits for", width), dim=True)
            across = 0
        unseen = set() if self._everything else hidden(level.units)
        skipped: list[Unit] = []
        for unit, step in zip(level.units, steps, strict=True):
            if unit.key in unseen:
                skipped.append(unit)
                continue
            if skipped:
                yield _left_out(skipped, step, across)
                skipped = []
            yield from (Line(row, dim=True) for row in step.above)
            yield from self._unit(unit, step, across, width)
            yield from (Line(row, dim=True) for row in step.below)
        if skipped:
            yield _left_out(skipped, steps[-1], across)

    def _tell_previous(self, level: Level) -> None:
        """Where lines would not help: names of what each waits for."""
        names = {unit.key: _name(unit) for unit in level.units}
        for key, previous in level.previous.items():
            self._shapes.notes[key] += [names[one] for one in previous]

    def _unit(self, unit: Unit, step: Step, across: int, width: int) -> Iterator[Line]:
        room = width - (across + 2 if across else 0)
        if unit.first.kind == "group":
            for number, line in enumerate(self._box(unit.first, room)):
                yield _rail(step.rails if number == 0 else step.beside, across) + line
            return
        rows = self._rows(unit, room)
        for number, row in enumerate(rows):
            rails = step.rails
            if len(rows) > 1:
                rails = _beside_each_other(step, first=number == 0, last=number == len(rows) - 1)
            yield _rail(rails, across) + row

    def _rows(self, unit: Unit, room: int) -> list[Line]:
        """Each task of the unit; many of one name as one, of others those that need a look."""
        nodes = unit.nodes
        if len(nodes) <= SIDE_BY_SIDE or self._everything:
            return [self._task(node, room) for node in nodes]
        if len({base_name(node.name) for node in nodes}) == 1:
            return [self._task(folded(nodes), room)]
        shown = worth_a_look(nodes)
        rest = folded([node for node in nodes if node.id not in shown])
        more = Line(f"… {rest.count:,} more  ", dim=True) + counted(rest.counts)
        return [*(self._task(node, room) for node in nodes if node.id in shown), more]

    def _task(self, node: GraphNode, width: int) -> Line:
        """One row: mark, name, notes, and at its end how long it took, or what it waits for."""
        many = f" ×{node.count:,}" if node.kind in ("map", "tasks") else ""
        state = Line(fitted(self._state(node), width - columns(many) - NAME_WIDTH - 4), **_style(node))
        notes = [Line(note, dim=True) for note in self._notes(node)]
        if node.counts:
            notes.insert(0, counted(node.counts))
        room = width - state.width - columns(many) - 4
        while notes and sum(note.width + 2 for note in notes) + min(NAME_WIDTH, columns(node.name)) > room:
            notes.pop()
        name = fitted(node.name, room - sum(note.width + 2 for note in notes))
        line = mark(node.status) + " " + Line(name, **_style(node)) + Line(many, bold=True)
        for note in notes:
            line = line + "  " + note
        return line.padded(width - state.width) + state

    def _box(self, node: GraphNode, width: int) -> Iterator[Line]:
        """A group: its name and counts in the border, its own level inside."""
        yield self._title(node, width)
        inside = width - 4
        rows: Sequence[Line] = list(self.level(node.id, inside)) if inside >= NARROWEST else ()
        if not rows and node.count:
            rows = [Line(fitted(f"… {node.count:,} deeper down", inside), dim=True)]
        for row in rows:
            yield Line("│ ", dim=True) + row.padded(inside) + Line(" │", dim=True)
        yield Line("╰" + "─" * (width - 2) + "╯", dim=True)

    def _title(self, node: GraphNode, width: int) -> Line:
        """The upper border of a group's box: what fits of its name, its counts, how long it took, notes."""
        end = Line("─╮", dim=True)
        head = Line("╭─ ", dim=True) + mark(node.status) + " "
        name = Line(fitted(node.name, width - head.width - end.width - 1), bold=True)
        state = Line(self._state(node), **_style(node))
        more = [counted(node.counts) if node.counts else Line("empty", dim=True)]
        more += [Line(note, dim=True) for note in self._notes(node)]
        room = width - head.width - end.width - min(name.width, NAME_WIDTH) - 1
        if state.width and state.width + 2 <= room:
            end = Line(" ") + state + " " + end
            room -= state.width + 2
        kept = []
        for note in more:
            if note.width + 2 > room:
                break
            kept.append(note)
            room -= note.width + 2
        name = Line(fitted(node.name, room + min(name.width, NAME_WIDTH)), bold=True)
        line = joined([head + name, *kept], "  ") + " "
        return line.padded(width - end.width, "─", dim=True) + end

    def _notes(self, node: GraphNode) -> list[str]:
        notes = []
        choices = [CHOICES.get(one, f"if {one}") for one in self._shapes.choices.get(node.id, ())]
        if choices:
            notes.append(" or ".join(choices))
        if node.rule:
            notes.append(node.rule)
        if not node.critical:
            notes.append("not critical")
        if node.max_parallel:
            notes.append(f"{node.max_parallel:,} at once")
        if (node.attempt or 0) > 1:
            notes.append(f"attempt {node.attempt}" + (f"/{node.max_attempts}" if node.max_attempts else ""))
        if previous := self._shapes.notes.get(node.id):
            more = f" and {len(previous) - 3:,} more" if len(previous) > 3 else ""
            notes.append(f"← {', '.join(previous[:3])}{more}")
        return [fitted(note, NOTE_WIDTH) for note in notes]

    def _state(self, node: GraphNode) -> str:
        told = ""
        if node.started_at is not None and node.status not in ("QUEUED", "SCHEDULED", "PENDING"):
            took = span(((node.finished_at or self._now) - node.started_at).total_seconds())
            told = f"{_progress(node.progress)}{took}{'' if node.finished_at else ' …'}"
        match node.status:
            case "UPSTREAM_FAILED":
                told = "upstream failed"
            case "SKIPPED" | "CANCELLED":
                told = f"{node.status.lower()}  {told}".rstrip()
            case "QUEUED" if node.ready_at:
                told = f"in line {span((self._now - node.ready_at).total_seconds())}"
            case "SCHEDULED" if node.not_before:
                told = f"{node.reason or 'due'} in {span((node.not_before - self._now).total_seconds())}"
            case "PENDING":
                told = node.reason or ""
        return told


def _rail(rails: str, across: int) -> Line:
    return Line(rails, dim=True).padded(across + 2) if across else Line()


def _beside_each_other(step: Step, *, first: bool, last: bool) -> str:
    """The rail of tasks that stand side by side: they branch off, none of them is on it."""
    sign = "├"
    if first and not step.arrives:
        sign = "╭"
    elif last and not step.leaves:
        sign = "╰"
    return step.rails[: step.at] + sign + step.rails[step.at + 1 :]


def _style(node: GraphNode) -> dict[str, Any]:
    match node.status:
        case "RUNNING":
            return {"bold": True}
        case "FAILED":
            return {"fg": "red"}
        case "PENDING" | "SKIPPED" | "UPSTREAM_FAILED":
            return {"dim": True}
        case _:
            return {}


def _left_out(units: Sequence[Unit], step: Step, across: int) -> Line:
    """A row for the units before this step that are not shown."""
    rest = folded([node for unit in units for node in unit.nodes])
    rails = "".join("⋮" if sign != " " else " " for sign in step.rails)
    return _rail(rails, across) + Line(f"… {rest.count:,} more  ", dim=True) + counted(rest.counts)


def _name(unit: Unit) -> str:
    beside = len(unit.nodes) - 1
    return f"{unit.first.name} and {beside:,} beside it" if beside else unit.first.name


def _progress(progress: object) -> str:
    """How far a running task says it is."""
    match progress:
        case float() | int() if 0 <= progress <= 1 and not isinstance(progress, bool):
            return f"{100 * progress:.0f} %  "
        case {"current": int() | float() as current, "total": int() | float() as total} if total:
            return f"{100 * current / total:.0f} %  "
        case _:
            return ""
