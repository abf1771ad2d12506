"""docs/fleet.md: its commands run as it shows them, on the fleet of the repository."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

from aaiclick_queue.fleet.address import running
from aaiclick_queue.fleet.file import read
from aaiclick_queue.settings import PREFIX, Settings
from tests.cli.running import PROJECT, Program, command, environment
from tests.faults.fleet import wait_for
from tests.fleet.running import LONGEST

PAGE = PROJECT / "docs" / "fleet.md"
VARYING = re.compile(r"\d+(\.\d+)?( (ms|s|m|h)\b)?|\s+")  # numbers, with their units of time


def fences(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)


def shown() -> list[tuple[list[str], list[str]]]:
    """Every command of the page's console blocks with the lines that it shows below it."""
    found: list[tuple[list[str], list[str]]] = []
    for line in "".join(fences("console")).splitlines():
        if line.startswith("$ "):
            found.append((shlex.split(line[2:]), []))
        else:
            found[-1][1].append(line)
    return found


def test_every_command_of_the_page_works_as_it_is_shown(settings: Settings, home: Path) -> None:
    env = environment(settings, HOME=str(home))
    (first, _), *others = shown()
    assert first == ["aaiclick-queue", "fleet", "up", "workers/fleet.toml"]
    fleet = Program(*first[1:], env=env)
    try:
        wait_for(lambda: fleet.stdout.count("takes tasks") == 3, lambda: fleet.stdout + fleet.stderr, LONGEST)
        wait_for(lambda: running(home) == ["examples"])
        for words, told in others:
            line = [sys.executable, *words[1:]] if words[0] == "python" else command(*words[1:])
            ran = subprocess.run(line, env=env, cwd=PROJECT, capture_output=True, text=True, timeout=LONGEST)
            assert ran.returncode == 0, (words, ran.stdout, ran.stderr)
            for expected, got in zip(told, ran.stdout.splitlines(), strict=False):
                assert VARYING.sub("", got) == VARYING.sub("", expected)
            assert len(told) in (0, len(ran.stdout.splitlines()))
        assert fleet.process.wait(LONGEST) == 0
    finally:
        if fleet.process.poll() is None:
            fleet.process.send_signal(signal.SIGKILL)
        fleet.close()


def test_the_file_that_the_page_shows_is_a_fleet(tmp_path: Path) -> None:
    [text] = fences("toml")
    tomllib.loads(text)
    (tmp_path / "workers").mkdir()
    (tmp_path / "workers" / "fleet.toml").write_text(text)
    fleet = read(tmp_path / "workers" / "fleet.toml", {})
    assert (fleet.name, fleet.folder) == ("shop", tmp_path)
    assert fleet.groups["mail"].environment == {PREFIX + "GRACE_SECONDS": "60"}
