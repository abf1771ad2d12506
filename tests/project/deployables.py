"""What an operator deploys, read: the files of workers/ and the compose file, their commands and settings."""

from __future__ import annotations

import copy
import itertools
import json
import re
import shlex
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from aaiclick_queue.settings import Settings
from tests.project.commands import PROGRAM

PROJECT = Path(__file__).parents[2]
WORKERS = PROJECT / "workers"
FILES = sorted(file for file in WORKERS.rglob("*") if file.is_file())
COMPOSE = PROJECT / "docker-compose.yml"
DOCKERFILE = WORKERS / "Dockerfile"
FLEET = WORKERS / "fleet.toml"
SETTINGS = WORKERS / "tasks.env.example"
LOCKS = sorted(WORKERS.glob("*.lock"))
UNITS = sorted(WORKERS.glob("systemd/*.service"))
MANIFESTS = sorted(WORKERS.glob("kubernetes/*.yaml"))
MONITORING = sorted(WORKERS.glob("monitoring/*"))
APART = {"server.yaml", "keda.yaml"}
Document = dict[str, Any]


def shown(file: Path) -> str:
    return str(file.relative_to(PROJECT))


def compose() -> Document:
    found: Document = yaml.safe_load(COMPOSE.read_text())
    return found


def documents(file: Path) -> list[Document]:
    return copy.deepcopy(_documents(file))


@cache
def _documents(file: Path) -> list[Document]:
    return list(yaml.safe_load_all(file.read_text()))


def the(kind: str, file: str | None = None) -> Document:
    """The one document of that kind in that file; unless it is named, of the fleet and its scaling by Postgres."""
    files = [one for one in MANIFESTS if (one.name not in APART if file is None else one.name == file)]
    [found] = [document for one in files for document in documents(one) if document["kind"] == kind]
    return found


class Instruction(NamedTuple):
    """One of a Dockerfile."""

    name: str
    text: str

    @property
    def words(self) -> list[str]:
        """Of the exec form; a JSONDecodeError for the shell form."""
        words: list[str] = json.loads(self.text)
        return words


def stages() -> list[list[Instruction]]:
    """The Dockerfile's instructions; each FROM begins a stage, what comes before stands first."""
    lines = [line for line in DOCKERFILE.read_text().splitlines() if line.strip() and not line.lstrip().startswith("#")]
    found: list[list[Instruction]] = [[]]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        name, text = line.split(maxsplit=1)
        if name == "FROM":
            found.append([])
        found[-1].append(Instruction(name, text))
    return found


def the_last(name: str) -> Instruction:
    """The instruction that is in force when the image runs."""
    [*_, found] = [instruction for instruction in stages()[-1] if instruction.name == name]
    return found


def healthcheck() -> list[str]:
    flags, command = the_last("HEALTHCHECK").text.split("CMD", 1)
    assert flags
    return Instruction("CMD", command).words


def unit(file: Path) -> dict[str, dict[str, str]]:
    """The sections of a systemd unit; what a key says several times stands on lines of its own."""
    sections: dict[str, dict[str, str]] = {}
    for line in file.read_text().splitlines():
        if line.startswith("["):
            section = sections.setdefault(line.strip("[]"), {})
        elif line and not line.startswith("#"):
            key, text = line.split("=", 1)
            section[key] = f"{section[key]}\n{text}" if key in section else text
    return sections


def seconds(text: str) -> float:
    """A duration as compose and systemd write it."""
    units = {"s": 1, "min": 60, "m": 60, "h": 3600}
    parts = re.findall(r"(\d+)([a-z]+)", text)
    assert "".join(itertools.chain.from_iterable(parts)) == text
    return float(sum(int(number) * units[unit] for number, unit in parts))


def calls() -> Iterator[tuple[str, list[str]]]:
    """Every call of our program in any file: where, and its words."""
    entrypoint = the_last("ENTRYPOINT").words
    image = [("CMD", [*entrypoint, *the_last("CMD").words]), ("HEALTHCHECK", healthcheck())]
    found = [(f"{shown(DOCKERFILE)} {name}", words) for name, words in image]
    for name, service in compose()["services"].items():
        if "build" in service:
            found.append((f"{shown(COMPOSE)} {name}", [*entrypoint, *service["command"]]))
    for file in UNITS:
        text = (
            unit(file)["Service"]["ExecStart"].replace("%I", "mail").replace("$WORKER_OPTIONS", "-A shop.mail -c 200")
        )
        found.append((shown(file), shlex.split(text)))
    for file in MANIFESTS:
        for document in documents(file):
            for container in containers(document):
                found.append((shown(file), [*entrypoint, *container["args"]]))
                probes = [container[name] for name in container if name.endswith("Probe")]
                found += [(shown(file), probe["exec"]["command"]) for probe in probes if "exec" in probe]
    for where, words in found:
        assert Path(words[0]).name == PROGRAM, f"{where}: {words}"
        yield where, words[1:]


def containers(document: Mapping[str, Any]) -> list[Document]:
    pod = document.get("spec", {}).get("template", {}).get("spec", {})
    found: list[Document] = [*pod.get("initContainers", []), *pod.get("containers", [])]
    return found


def environments() -> dict[str, dict[str, str]]:
    """The settings that each deployment gives to our program, with compose's own defaults."""
    services = compose()["services"].items()
    found = {f"{shown(COMPOSE)} {name}": service["environment"] for name, service in services if "build" in service}
    shared = the("ConfigMap")["data"]
    secret = {name: text for name, text in the("Secret")["stringData"].items() if name in _read_by_name()}
    found["workers/kubernetes"] = shared | secret
    lines = [line.lstrip("#") for line in SETTINGS.read_text().splitlines() if "=" in line and line[:2] != "# "]
    found[shown(SETTINGS)] = dict(line.split("=", 1) for line in lines)
    return {
        where: {name: re.sub(r"\$\{\w+:-(\w+)\}", r"\1", text) for name, text in given.items()}
        for where, given in found.items()
    }


def _read_by_name() -> set[str]:
    return {one["name"] for kind in ("Deployment", "Job") for c in containers(the(kind)) for one in c["env"]}


def grace_seconds(where: str) -> float:
    """How long running tasks may go on in that deployment."""
    return Settings.load(environments()[where]).grace_seconds
