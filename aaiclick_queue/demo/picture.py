"""How the demo is shown: a picture that moves on a terminal, plain lines anywhere else."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol, Self

import msgspec

if TYPE_CHECKING:
    from rich.console import RenderableType

LINES = 10
WIDTH = 28


class State(msgspec.Struct, frozen=True):
    """What there is to see at one moment."""

    queued: int = 0
    running: int = 0
    scheduled: int = 0
    completed: int = 0
    failed: int = 0
    workers: tuple[tuple[int, str, int, int], ...] = ()  # pid, status, running, completed

    @property
    def total(self) -> int:
        """All tasks."""
        return self.queued + self.running + self.scheduled + self.completed + self.failed


class Picture(Protocol):
    """Something to look at."""

    def say(self, text: str) -> None:
        """One line of the story."""

    def draw(self, state: State) -> None:
        """The state of things, as often as one likes."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class Lines:
    """A line an event, and the state once a second when it has changed."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._drawn_at = 0.0
        self._drawn = State()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def say(self, text: str) -> None:
        """One line of the story."""
        print(f"{time.monotonic() - self._began:5.1f} s  {text}", flush=True)  # noqa: T201 - it is what the demo is for

    def draw(self, state: State) -> None:
        """The state on a line."""
        now = time.monotonic()
        if now - self._drawn_at < 1 or counts(state) == counts(self._drawn):
            return
        self._drawn_at, self._drawn = now, state
        self.say("  ".join(f"{name} {number:,}" for name, number in counts(state).items()))


class Moving:
    """A picture that is drawn over itself; what was said stays above it."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._began = time.monotonic()
        self._state = State()
        self._said: list[str] = []
        self._live = Live(console=Console(), get_renderable=self._render, refresh_per_second=10, transient=True)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.__exit__(None, None, None)
        for line in self._said:
            self._live.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def say(self, text: str) -> None:
        """One line of the story."""
        self._said.append(f"{time.monotonic() - self._began:5.1f} s  {text}")

    def draw(self, state: State) -> None:
        """The state, shown with the next refresh."""
        self._state = state

    def _render(self) -> RenderableType:
        from rich.console import Group
        from rich.panel import Panel
        from rich.text import Text

        state, said = self._state, Text("\n".join(self._said[-LINES:]), no_wrap=True, overflow="ellipsis")
        parts: list[RenderableType] = [_bar(state), Text()]
        for pid, status, running, done in state.workers:
            style = "green" if status == "ACTIVE" else "bold red" if status == "LOST" else "yellow"
            line = Text(f"worker {pid:<8}")
            line.append(f"{status:<9}", style=style)
            parts.append(line.append(f"runs {running:<5} has done {done:,}"))
        title = f"aaiclick-queue demo, {time.monotonic() - self._began:.1f} s"
        return Panel(Group(*parts, Text(), said), title=title, title_align="left", border_style="dim")


def counts(state: State) -> dict[str, int]:
    """Tasks by status."""
    return {name: getattr(state, name) for name in ("queued", "running", "scheduled", "completed", "failed")}


def _bar(state: State) -> RenderableType:
    from rich.text import Text

    done = round(WIDTH * (state.completed + state.failed) / max(1, state.total))
    bar = Text("━" * done, style="green").append("━" * (WIDTH - done), style="dim")
    colours = {"queued": "blue", "running": "cyan", "scheduled": "yellow", "completed": "green", "failed": "red"}
    for name, number in counts(state).items():
        bar.append(f"  {name} ").append(f"{number:,}", style=f"bold {colours[name]}")
    return bar
