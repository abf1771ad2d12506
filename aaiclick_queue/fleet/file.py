"""fleet.toml: read and checked before anything is started. Before: cli/fleet.py. After: supervisor.py."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from pydantic import BaseModel, ValidationError

from ..errors import BadFleet, SettingsError
from ..settings import Settings
from .keys import FileKeys, Mistake, example, told


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """What the file asks of one group of processes; None is left to the worker's own default."""

    name: str
    modules: tuple[str, ...]
    queues: Mapping[str, int] | None = None
    slots: int | None = None
    threads: int | None = None
    children: int | None = None
    limits: Mapping[str, int] = {}
    max_tasks: int | None = None
    max_memory: int | None = None
    max_tasks_per_child: int | None = None
    max_memory_per_child: int | None = None
    background: bool = True
    count: int = 1
    probe_port: int | None = None
    probe_host: str | None = None
    environment: Mapping[str, str] = {}

    def arguments(self) -> list[str]:
        """The options of `aaiclick-queue worker` that say the same."""
        queues = ",".join(f"{name}:{weight}" for name, weight in (self.queues or {}).items())
        given = {
            "-A": ",".join(self.modules),
            "-Q": queues or None,
            "-c": self.slots,
            "--threads": self.threads,
            "--children": self.children,
            "--max-tasks": self.max_tasks,
            "--probe-host": self.probe_host,
            "--max-memory": self.max_memory,
            "--max-tasks-per-child": self.max_tasks_per_child,
            "--max-memory-per-child": self.max_memory_per_child,
        }
        options = [text for flag, value in given.items() if value is not None for text in (flag, str(value))]
        limits = [f"--limit={name}={most}" for name, most in self.limits.items()]
        return [*options, *limits, *([] if self.background else ["--no-background"])]


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """A fleet file, read."""

    name: str
    file: Path
    folder: Path
    groups: Mapping[str, Group]


def read(file: Path, environ: Mapping[str, str] | None = None) -> Fleet:
    """The fleet of that file; BadFleet says what is wrong with it, and in which line."""
    try:
        text = file.read_text(encoding="utf-8")
        given = tomllib.loads(text)
    except OSError as error:
        raise BadFleet(
            f"{file} cannot be read ({error.strerror}): name the fleet file, as workers/fleet.toml"
        ) from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadFleet(f"{file} is no TOML ({error}): mend that line") from None
    try:
        asked = FileKeys.model_validate(given)
    except ValidationError as error:
        raise BadFleet(told(file, text, [Mistake.of(detail) for detail in error.errors()])) from None
    fleet = _fleet(file, text, asked)
    _check_settings(file, fleet, text, os.environ if environ is None else environ)
    return fleet


def _fleet(file: Path, text: str, asked: FileKeys) -> Fleet:
    defaults = _given(asked, but={"name", "folder", "groups"})
    groups = {}
    for name, table in asked.groups.items():
        own = _given(table)
        environment = {**defaults.get("environment", {}), **own.get("environment", {})}
        keys = {**defaults, **own, "environment": environment, "name": name}
        if "modules" not in keys:
            what = f"[groups.{name}] has no modules, so it could run nothing: add {example('modules')}"
            raise BadFleet(told(file, text, [Mistake(("groups", name), what)]))
        groups[name] = msgspec.convert(keys, Group)
        if strange := [queue for queue in groups[name].limits or {} if not _serves(groups[name], queue)]:
            where = ("groups", name, "limits") if "limits" in own else ("limits",)
            what = f"limits.{strange[0]} in [groups.{name}], which does not serve that queue: add it to queues"
            raise BadFleet(told(file, text, [Mistake(where, what)]))
    folder = Path.cwd() if asked.folder is None else (file.parent / asked.folder).resolve()
    if not folder.is_dir():
        what = f"folder = {asked.folder!r}: there is no folder {folder}; give one as seen from this file"
        raise BadFleet(told(file, text, [Mistake(("folder",), what)]))
    return Fleet(name=asked.name or _stem(file), file=file.resolve(), folder=folder, groups=groups)


def _serves(group: Group, queue: str) -> bool:
    queues = group.queues or ["default"]
    return "*" in queues or queue in queues


def _given(keys: BaseModel, *, but: set[str] | None = None) -> dict[str, Any]:
    return {name: value for name, value in keys.model_dump(exclude=but).items() if value is not None}


def _stem(file: Path) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "-", file.stem)[:32].lstrip("_-") or "fleet"


def _check_settings(file: Path, fleet: Fleet, text: str, environ: Mapping[str, str]) -> None:
    for group in fleet.groups.values():
        try:
            Settings.load({**environ, **group.environment})
        except SettingsError as error:
            mistake = Mistake(("groups", group.name, "environment"), f"the settings of group {group.name!r}: {error}")
            raise BadFleet(told(file, text, [mistake])) from None
