"""Looks: colours that can be read in both themes, and scripts that stay small."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import aaiclick_queue.server
from tests.project.commands import PROGRAM, refusal

STATIC = Path(aaiclick_queue.server.__file__).parent / "static"
CSS = (STATIC / "look.css").read_text()
PAGES = STATIC.parent / "pages"
TEMPLATES = STATIC.parent / "templates"
COLOURS = {
    name: (light, dark)
    for name, light, dark in re.findall(r"--([\w-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\);", CSS)
}
INKS = (
    *("ink", "soft", "accent", "pending", "scheduled", "queued", "running", "completed", "failed", "cancelled"),
    *("retrying", "upstream_failed", "skipped"),
)
GROUNDS = ("page", "card", "sunk", "accent-wash", "warn-wash", "fail-wash", "done-wash")


def luminance(colour: str) -> float:
    parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_every_ink_can_be_read_on_every_ground(theme: int) -> None:
    weak = {
        f"{ink} on {ground}": round(found, 2)
        for ink in INKS
        for ground in GROUNDS
        if (found := contrast(COLOURS[ink][theme], COLOURS[ground][theme])) < 4.5
    }
    assert weak == {}


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_words_on_coloured_buttons_and_bars_can_be_read(theme: int) -> None:
    assert contrast(COLOURS["accent-ink"][theme], COLOURS["accent"][theme]) >= 4.5
    assert contrast(COLOURS["page"][theme], COLOURS["failed"][theme]) >= 4.5
    bars = re.findall(r"\.env\.\w+ \{ background: light-dark\((#\w{6}), (#\w{6})\)", CSS)
    assert len(bars) == 4
    assert all(contrast(bar[theme], COLOURS["page"][theme]) >= 4.5 for bar in bars)


def test_edges_of_fields_are_seen() -> None:
    for theme in (0, 1):
        assert contrast(COLOURS["line-strong"][theme], COLOURS["card"][theme]) >= 3


def test_sizes_and_spaces_come_from_the_scales() -> None:
    sizes = set(re.findall(r"font-size: ([^;}]+)", CSS.partition("/* The frame")[2]))
    assert {one.strip() for one in sizes} <= {
        *(f"var(--t{n})" for n in range(1, 7)),
        "11px",
        "11.5px",
        "12.5px",
        "13px",
    }


def test_nothing_is_loaded_from_elsewhere_and_scripts_are_small() -> None:
    lines = 0
    for file in STATIC.iterdir():
        text = file.read_text().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|//[a-z]+\.[a-z]+/|eval\(|new Function|innerHTML|\.style\.", text), file
        lines += len(text.splitlines()) if file.suffix == ".js" else 0
    assert lines <= 650


def test_every_part_of_a_bar_has_its_colour() -> None:
    """A shape without a rule is black, in both themes."""
    bars = re.findall(
        r"(?:state_bar\(|counts = )\[(.*?)\]", "".join(map(Path.read_text, PAGES.glob("*.py"))), re.DOTALL
    )
    kinds = {kind for bar in bars for kind in re.findall(r'\("(\w+)"', bar)}
    assert kinds >= {"running", "free", "held", "completed"}
    assert {kind for kind in kinds if not re.search(rf"\.s-{kind}\b[^{{}}]*\{{ fill", CSS)} == set()


def test_every_command_that_a_page_shows_is_one() -> None:
    text = "".join(map(Path.read_text, TEMPLATES.glob("*.html")))
    ends = re.findall(rf'{PROGRAM} ((?:\\.|[^"<\\])+)', text)  # up to where the string ends, or a name is put in
    shown = [(end + "NAME" if end.endswith(" ") else end).replace('\\"', '"') for end in ends]
    assert len(shown) >= 15
    assert [wrong for command in shown if (wrong := refusal(shlex.split(command))) is not None] == []
