"""Vitals: how a process that runs tasks or loops is, and what a probe makes of it. Imports next to nothing.

The probe port judges them as they are; `aaiclick-queue health` judges what the process last wrote into its file.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import NamedTuple

LOOP_SECONDS = 5.0
WRITE_SECONDS = 2.0
FOLDER = ("run", "health")


class Vitals(NamedTuple):
    """Moments are by the monotonic clock, 0 for never."""

    started: bool = False
    stopping: bool = False
    beat: float = 0.0  # Postgres' last answer to a heartbeat
    beat_patience: float = 20.0
    turned: float = 0.0  # the main loop's last turn
    turn_patience: float = 60.0
    loop_seen: float = 0.0  # the event loop's last sign of life
    redis: bool | None = None  # None: none is used, or it is not known yet


class Verdict(NamedTuple):
    """What a probe says: every check by name with what is wrong, `` for nothing."""

    checks: dict[str, str]
    degraded: list[str] = []  # noqa: RUF012 - a tuple's default is never changed

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not any(self.checks.values())


def live(vitals: Vitals, now: float) -> Verdict:
    """Whether the process works at all; neither Postgres nor Redis has a say."""
    lag = now - vitals.loop_seen
    turned = now - vitals.turned
    stuck = vitals.turned > 0 and not vitals.stopping and turned > vitals.turn_patience
    return Verdict(
        {
            "event_loop": f"blocked for {lag:.0f} s" if lag > LOOP_SECONDS else "",
            "main_loop": f"has not turned for {turned:.0f} s" if stuck else "",
        }
    )


def started(vitals: Vitals) -> Verdict:
    """Whether modules are imported, the schema is the right one, and the first look for work was made."""
    return Verdict({"started": "" if vitals.started else "not yet"})


def ready(vitals: Vitals, now: float) -> Verdict:
    """Whether it takes work; without Redis it does."""
    age = now - vitals.beat
    away = "" if vitals.beat and age <= vitals.beat_patience else _away(vitals.beat, age)
    checks = started(vitals).checks | {"postgres": away, "draining": "told to stop" if vitals.stopping else ""}
    return Verdict(checks, ["redis"] if vitals.redis is False else [])


def _away(beat: float, age: float) -> str:
    return f"did not answer a heartbeat for {age:.0f} s" if beat else "has not answered a heartbeat"


def folder_of(home: Path) -> Path:
    """Where processes write how they are."""
    return home.joinpath(*FOLDER)


class Pen:
    """Writes the vitals of this process into its file, not more often than it is of use."""

    def __init__(self, home: Path) -> None:
        self.file = folder_of(home) / f"{os.getpid()}.json"
        self._next = 0.0
        self._last: Vitals | None = None

    def write(self, vitals: Vitals) -> None:
        """Write, unless it was done a moment ago; a folder that cannot be written is nobody's trouble here."""
        now = time.monotonic()
        told = vitals._replace(beat=0, turned=0, loop_seen=0)
        if now < self._next and told == self._last:
            return
        self._next, self._last = now + WRITE_SECONDS, told
        ages = {name: getattr(vitals, name) and now - getattr(vitals, name) for name in ("beat", "turned", "loop_seen")}
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            draft = self.file.with_suffix(".new")
            draft.write_text(json.dumps({**vitals._asdict(), **ages, "at": time.time()}))
            draft.replace(self.file)
        except OSError:
            self._next = now + 60

    def erase(self) -> None:
        """The process ends in order."""
        try:
            self.file.unlink(missing_ok=True)
        except OSError:
            return


class Read(NamedTuple):
    """The file of one process."""

    pid: int
    age: float
    vitals: Vitals


def read_all(home: Path) -> list[Read]:
    """How the processes of this home were when they last wrote; files of dead ones are removed."""
    found = []
    for file in sorted(folder_of(home).glob("*.json")):
        pid = int(file.stem) if file.stem.isdecimal() else 0
        if not _lives(pid):
            file.unlink(missing_ok=True)
            continue
        try:
            told = json.loads(file.read_text())
        except (OSError, ValueError):
            continue
        now, at = time.monotonic(), told.pop("at")
        moments = {name: told[name] and now - told[name] for name in ("beat", "turned", "loop_seen")}
        found.append(Read(pid, time.time() - at, Vitals(**{**told, **moments})))
    return found


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return pid > 0
