"""`aaiclick-queue health live|ready` for exec probes: reads what processes wrote into the home's run folder.

No application, no settings, no Postgres and no Redis: a probe takes a twentieth of a second.
"""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path

from .homes import default_home
from .vitals import folder_of, live, read_all, ready

MAX_AGE = 30.0
UNITS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600}


def answered(words: list[str]) -> int | None:
    """Answer a plain question and give the exit code; None for what the command line is to tell of."""
    match words:
        case [("live" | "ready") as what]:
            return look(what, MAX_AGE)
        case [("live" | "ready") as what, "--max-age", text] if (seconds := seconds_of(text)) is not None:
            return look(what, seconds)
    return None


def seconds_of(text: str) -> float | None:
    """`30`, `30s` or `2m` in seconds."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(|s|m|min|h)", text)
    return float(found[1]) * UNITS[found[2]] if found else None


def look(what: str, max_age: float, home: Path | None = None) -> int:
    """Say how the processes of this home are: 0 when all of them are well, 1 when not, or when there is none."""
    # The one place beside the settings that reads a variable of ours: their import would take longer than the probe.
    home = home or Path(os.environ.get("AAICLICK_QUEUE_HOME") or default_home())
    found = read_all(home)
    if not found:
        _say(f"no worker of this home has written into {folder_of(home)}")
        return 1
    wrong = 0
    now = time.monotonic()
    for pid, age, vitals in found:
        told = [f"silent for {age:.0f} s"] if age > max_age else []
        verdict = live(vitals, now - age) if what == "live" else ready(vitals, now - age)
        told += [f"{name} {text}" for name, text in verdict.checks.items() if text]
        wrong += bool(told)
        _say(f"pid {pid}: {', '.join(told) or 'ok'}{' (degraded: redis)' if verdict.degraded else ''}")
    return 1 if wrong else 0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
