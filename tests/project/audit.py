"""`make audit`: the lock files, the licences, and what is known of the locked versions, where somebody answers."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .locks import BUILD, EVERYTHING, EXCEPTIONS, IMAGE, Pin, loose, not_allowed, pins, unmet, wishes

AUDITOR = "pip-audit==2.10.1"
SECONDS = 50  # for a run, of which there are two while one package is locked twice; CI ends the whole after 120
# Advisories that do not touch us: their id, and why.
ACCEPTED: dict[str, str] = {}


class NoAnswer(Exception):
    """Nobody could be asked: the tool or its service is not to be had here."""


@dataclass
class Told:
    """What the service said: of how many it knew, of whom it knew nothing, and what is wrong."""

    known: int = 0
    unknown: list[str] = field(default_factory=list)
    vulnerable: list[str] = field(default_factory=list)


def told(packages: Iterable[dict[str, Any]]) -> Told:
    """Read what pip-audit reports: a package that it skipped is no package without a fault."""
    read = Told()
    for package in packages:
        if "skip_reason" in package:
            read.unknown.append(package["name"])
            continue
        read.known += 1
        for fault in package["vulns"]:
            if not {fault["id"], *fault.get("aliases", ())} & ACCEPTED.keys():
                mended = ", ".join(fault.get("fix_versions", ())) or "no version yet"
                read.vulnerable.append(f"{package['name']} {package['version']}: {fault['id']}, mended by {mended}")
    return read


def rounds(locked: Iterable[Pin]) -> list[list[Pin]]:
    """Pins in lists that name no package twice, which pip-audit refuses; for all platforms at once."""
    lists: list[list[Pin]] = []
    for pin in sorted(locked):
        place = next((taken for taken in lists if all(pin.name != other.name for other in taken)), None)
        if place is None:
            lists.append(place := [])
        place.append(pin)
    return lists


def ask(locked: Iterable[Pin], program: Sequence[str]) -> Told:
    """What is known of these versions. Raises NoAnswer where that is nothing, also for a service that knows none."""
    packages: list[dict[str, Any]] = []
    reason = "the service knows none of the packages: an index without advisories"
    with tempfile.TemporaryDirectory() as folder:
        for number, some in enumerate(rounds(locked)):
            asked = Path(folder, f"{number}.txt")
            asked.write_text("".join(f"{name}=={version}\n" for name, version in some))
            try:
                packages += report(program, asked)["dependencies"]
            except NoAnswer as error:  # what another round has found still counts
                reason = str(error)
                packages += [{"name": name, "skip_reason": reason} for name, _ in some]
    answer = told(packages)
    if not answer.known:
        raise NoAnswer(reason)
    return answer


def report(program: Sequence[str], asked: Path) -> dict[str, Any]:
    """One run of pip-audit. Its exit code is 1 for a fault and for a failure alike, so only its words count."""
    options = ["--no-deps", "--disable-pip", "--format", "json", "--progress-spinner", "off", "-r", str(asked)]
    try:
        ran = subprocess.run([*program, *options], capture_output=True, text=True, timeout=SECONDS)
        found: dict[str, Any] = json.loads(ran.stdout)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoAnswer(str(error)) from error
    except ValueError as error:
        raise NoAnswer((ran.stderr.strip().splitlines() or ["it said nothing"])[-1]) from error
    return found


def auditor(folder: str) -> list[str]:
    """How pip-audit is started: by uv, or in a venv of its own. It is never among our own packages."""
    if shutil.which("uv"):
        return ["uv", "tool", "run", "--quiet", "--from", AUDITOR, "pip-audit"]
    steps = ([sys.executable, "-m", "venv", folder], [f"{folder}/bin/pip", "install", "--quiet", AUDITOR])
    try:
        for step in steps:
            subprocess.run(step, check=True, capture_output=True, timeout=SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        raise NoAnswer(f"pip-audit cannot be installed: {error}") from error
    return [f"{folder}/bin/pip-audit"]


def faults() -> list[str]:
    """What is wrong with the lock files and the licences: it needs no network."""
    everything = pins(EVERYTHING.read_text())
    found = [
        f"{path.name}: not hashed: {entry}" for path in (EVERYTHING, IMAGE, BUILD) for entry in loose(path.read_text())
    ]
    for path, asked in (
        (EVERYTHING, wishes()),
        (IMAGE, wishes(extras={"psycopg"}, groups=set())),
        (BUILD, wishes(extras=set(), groups={"build"}, project=False)),
    ):
        locked = pins(path.read_text())
        found += [f"{path.name}: nothing locked for {wish}: make lock" for wish in unmet(asked, locked)]
        found += [
            f"{path.name}: {name} {version} is not in {EVERYTHING.name}"
            for name, version in sorted(locked - everything)
        ]
    return found + [
        f"licence of {name}: {said or 'none told'}" for name, said in not_allowed() if name not in EXCEPTIONS
    ]


def main(words: Sequence[str]) -> int:
    """Print what is known. 1 for anything wrong, and with --strict also for what could not be checked."""
    out = sys.stdout.write
    wrong = faults()
    out("".join(f"wrong: {line}\n" for line in wrong) or "lock files and licences: nothing wrong\n")
    locked = pins(EVERYTHING.read_text())
    try:
        with tempfile.TemporaryDirectory() as folder:
            answer = ask(locked, auditor(folder))
    except NoAnswer as reason:
        out(f"known vulnerabilities: NOT CHECKED, no answer ({reason})\n")
        return 1 if wrong or "--strict" in words else 0
    out("".join(f"vulnerable: {line}\n" for line in answer.vulnerable))
    out(f"known vulnerabilities: {len(answer.vulnerable)} in {answer.known} of {len(locked)} locked versions\n")
    if answer.unknown:
        out(f"NOT CHECKED, no answer: {', '.join(answer.unknown)}\n")
    return 1 if wrong or answer.vulnerable or (answer.unknown and "--strict" in words) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
