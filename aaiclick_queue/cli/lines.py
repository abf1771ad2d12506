"""Lines of styled text whose width is known: what is drawn fits its columns, coloured or not."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from typing import Any

import click

MARKS = {
    "COMPLETED": ("✔", "green"), "FAILED": ("✘", "red"), "UPSTREAM_FAILED": ("⊘", "red"), "RUNNING": ("▶", "cyan"),
    "QUEUED": ("○", "yellow"), "SCHEDULED": ("◷", "yellow"), "PENDING": ("·", None), "OPEN": ("○", "yellow"),
    "CANCELLED": ("⊗", "magenta"), "SKIPPED": ("↷", "blue"),
}  # fmt: skip
WORDS = {
    "COMPLETED": "completed", "RUNNING": "running", "QUEUED": "in line", "SCHEDULED": "later", "PENDING": "waits",
    "OPEN": "not started", "FAILED": "failed", "UPSTREAM_FAILED": "upstream failed", "CANCELLED": "cancelled",
    "SKIPPED": "skipped",
}  # fmt: skip
# For terminals that know no more than ASCII.
PLAIN = str.maketrans({
    "✔": "+", "✘": "x", "⊘": "!", "▶": ">", "○": "o", "◷": "~", "·": ".", "⊗": "c", "↷": "s", "●": "*", "│": "|",
    "─": "-", "├": "|", "┤": "|", "┼": "+", "╭": "+", "╮": "+", "╰": "+", "╯": "+", "┬": "+", "┴": "+", "…": "~",
    "×": "x", "█": "#", "░": "-", "←": "<", "⋮": ":", "–": "-", "→": ">",
})  # fmt: skip


class Line:
    """Text with its styles and its width in columns."""

    def __init__(self, text: str = "", **style: Any) -> None:
        self._parts: list[tuple[str, dict[str, Any]]] = [(text, style)] if text else []
        self.width = columns(text)

    def __add__(self, other: Line | str) -> Line:
        joined = Line()
        more = other if isinstance(other, Line) else Line(other)
        joined._parts = [*self._parts, *more._parts]
        joined.width = self.width + more.width
        return joined

    def __str__(self) -> str:
        return "".join(click.style(text, **style) if style else text for text, style in self._parts).rstrip()

    def padded(self, width: int, fill: str = " ", **style: Any) -> Line:
        """As wide as that, if it is not wider."""
        return self + Line(fill * max(0, width - self.width), **style)


def joined(parts: Iterable[Line], between: str = " ") -> Line:
    """One behind the other."""
    line = Line()
    for part in parts:
        line = (line + between if line.width else line) + part
    return line


def columns(text: str) -> int:
    """How many columns a terminal needs for it."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def fitted(text: str, width: int) -> str:
    """The text on one line, in at most so many columns, its end left out if need be."""
    from ..report import one_line

    text = one_line(text, 2000)
    if columns(text) <= width:
        return text
    kept = ""
    for character in text:
        if columns(kept + character) > max(0, width - 1):
            break
        kept += character
    return kept + "…" if width > 0 else ""


def mark(status: str) -> Line:
    """The sign of a status."""
    sign, colour = MARKS.get(status, ("?", None))
    return Line(sign, fg=colour) if colour else Line(sign)


def counted(counts: dict[str, int]) -> Line:
    """How many are in which status: ✔ 9,990 ✘ 10."""
    order = [status for status in MARKS if counts.get(status)]
    return joined((mark(status) + Line(f" {counts[status]:,}") for status in order), "  ")
