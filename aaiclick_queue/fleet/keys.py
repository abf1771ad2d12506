"""The keys of a fleet file: what each takes, and the sentence for whatever is wrong. After: file.py."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

NAME = r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}"
COUNT_LIMIT = 1000
LIKENESS = 0.6


# A description is what is allowed, in words; an example is a line that works.


def _queues(value: Any) -> Any:
    names: Sequence[Any] = list(value) if isinstance(value, list | dict) else []
    for name in names:
        if not isinstance(name, str) or not 1 <= len(name) <= 200 or "," in name or name != name.strip():
            raise ValueError(f"{name!r} is no queue")
        if isinstance(value, list) and re.search(r":\d+$", name):
            raise ValueError(f"{name!r} has a weight, which a list cannot")
    if "*" in names and len(names) > 1:
        raise ValueError("'*' serves every queue already")
    return dict.fromkeys(names, 1) if isinstance(value, list) else value


def _texts(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    for name, one in value.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise ValueError(f"{name!r} is no name of a variable")
        if not isinstance(one, str | int | float) or "\0" in str(one):
            raise ValueError(f"{name} is neither text nor number")
    return {name: str(one).lower() if isinstance(one, bool) else str(one) for name, one in value.items()}


def _module(text: str) -> str:
    if not text or "," in text or text.startswith("-") or text != text.strip():
        raise ValueError(f"{text!r} is no module")
    return text


Modules = Annotated[list[Annotated[str, AfterValidator(_module)]], Field(min_length=1)]
Queues = Annotated[dict[str, Annotated[int, Field(ge=1, le=1000)]], BeforeValidator(_queues), Field(min_length=1)]
Limits = Annotated[dict[str, Annotated[int, Field(ge=1, le=10_000)]], BeforeValidator(_queues)]
Environment = Annotated[dict[str, str], BeforeValidator(_texts)]
FORBID = ConfigDict(extra="forbid", strict=True, frozen=True)


def _number(least: int, most: int, example: str) -> Any:
    words = f"a whole number from {least:,} to {most:,}"
    return Field(None, ge=least, le=most, description=words, examples=[example])


class Keys(BaseModel):
    """The keys of a group, and at the top of the file of every group that does not have them."""

    model_config = FORBID

    modules: Modules | None = Field(
        None, description="a list of modules or files with tasks", examples=['modules = ["shop.mail"]']
    )
    queues: Queues | None = Field(
        None,
        description="a list of names, or a table of names and weights from 1 to 1,000",
        examples=["queues = { mail = 3, default = 1 }"],
    )
    slots: int | None = _number(1, 10_000, "slots = 100")
    threads: int | None = _number(1, 10_000, "threads = 8")
    children: int | None = _number(1, 1000, "children = 2")
    limits: Limits | None = Field(
        None, description="a table of queues and numbers from 1 to 10,000", examples=["limits = { reports = 2 }"]
    )
    max_tasks: int | None = _number(1, 1_000_000_000, "max_tasks = 10_000")
    max_memory: int | None = _number(1, 1_000_000_000, "max_memory = 500")
    max_tasks_per_child: int | None = _number(1, 1_000_000_000, "max_tasks_per_child = 1_000")
    max_memory_per_child: int | None = _number(1, 1_000_000_000, "max_memory_per_child = 300")
    background: bool | None = Field(None, description="true or false", examples=["background = false"])
    count: int | None = _number(0, COUNT_LIMIT, "count = 2")
    probe_port: int | None = _number(1, 65_535, "probe_port = 8081")
    probe_host: str | None = Field(
        None, min_length=1, description="an address to listen on", examples=['probe_host = "0.0.0.0"']
    )
    environment: Environment | None = Field(
        None, description="a table of variables", examples=['environment = { TZ = "UTC" }']
    )


class FileKeys(Keys):
    """The whole file."""

    name: str | None = Field(
        None,
        pattern=f"^{NAME}$",
        description="up to 32 letters, digits, - and _",
        examples=['name = "shop"'],
    )
    folder: str | None = Field(
        None, min_length=1, description="a folder as seen from this file", examples=['folder = ".."']
    )
    groups: dict[Annotated[str, Field(pattern=f"^{NAME}$")], Keys] = Field(
        min_length=1, description="tables of groups, their names up to 32 letters, digits, - and _",
        examples=["[groups.mail]"],
    )  # fmt: skip


def example(key: str) -> str:
    """A line with that key that works."""
    return str((FileKeys.model_fields[key].examples or [""])[0])


# What is wrong, in words.


class Mistake(msgspec.Struct, frozen=True):
    """Something wrong at some key."""

    path: tuple[str, ...]
    what: str

    @classmethod
    def of(cls, detail: Mapping[str, Any]) -> Mistake:
        """A sentence for an error of pydantic."""
        path = tuple(str(part) for part in detail["loc"] if part != "[key]")
        depth = 2 if path[0] == "groups" and len(path) > 2 else 0
        table, key = f"[groups.{path[1]}]" if depth else "", path[depth]
        inside = f" in {table}" if table else ""
        if detail["type"] == "extra_forbidden":
            return cls(path, f"{key} is no key{inside or ' of a fleet'}: {_hint(key, detail['input'], depth)}")
        if detail["type"] == "missing":
            return cls((), f"there is no group in it: add one, as {example('groups')} with {example('queues')}")
        field = FileKeys.model_fields[key]
        message = str(detail["msg"]).removeprefix("Value error, ") if detail["type"] == "value_error" else ""
        shown = "" if key == "environment" else f" = {detail['input']!r}"  # may be a secret
        where = ".".join(path[depth:])
        why = f" ({message})" if message else ""
        return cls(path, f"{where}{shown}{inside}{why}: give {field.description}, as {example(key)}")


def _hint(key: str, value: Any, depth: int) -> str:
    known = list(Keys.model_fields if depth else FileKeys.model_fields)
    near = difflib.get_close_matches(key.lower(), known, n=1, cutoff=LIKENESS)
    if near:
        return f"did you mean {near[0]}?"
    if isinstance(value, dict) and not depth:
        return f"did you mean [groups.{key}]?"
    return f"there are {', '.join(known)}"


def told(file: Path, text: str, found: Sequence[Mistake]) -> str:
    """All of it, each with its line."""
    at = {mistake: _line_of(text, mistake.path) for mistake in found if mistake.path or len(found) == 1}
    lines = [f"line {number}: {mistake.what}" for mistake, number in sorted(at.items(), key=lambda pair: pair[1])]
    if len(lines) == 1:
        return f"{file} {lines[0]}"
    return "\n".join([f"{file} has {len(lines)} mistakes", *(f"  {line}" for line in lines)])


def _line_of(text: str, path: Sequence[str]) -> int:
    """Where the nearest thing to that key stands; TOML's own reader does not say."""
    table: list[str] = []
    best, found = 0, 1
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[([^\[\]]+)\]", line):
            here = table = _parts(header[1])
        elif key := re.match(r"\s*([\w.\"'-]+)\s*=", line):
            here = [*table, *_parts(key[1])]
        else:
            continue
        if len(here) > best and here == list(path[: len(here)]):
            best, found = len(here), number
    return found


def _parts(dotted: str) -> list[str]:
    return [part.strip().strip("\"'") for part in dotted.split(".")]
