"""The small models of docs/model.md hold as they are, and none does without one of its protections.

MODEL_FAULTS is how many faults a run meets, two by default: three take minutes.
"""

from __future__ import annotations

import importlib
import os
import re
from pathlib import Path
from typing import get_args

import pytest

from tests.models import gates, runs
from tests.models.checker import CounterexampleError, explore

DOCUMENT = (Path(__file__).parents[2] / "docs" / "model.md").read_text()
FAULTS = int(os.environ.get("MODEL_FAULTS") or 2)
TWO_FAULTS = ("losses are forgotten",)  # for the others one is enough, and takes a second
ROW = re.compile(r"^\| (`[a-z].*`) \| `(flow/\w+)\.py` \| (.*) \|$", re.MULTILINE)


def quoted(text: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", text))


@pytest.mark.timeout(0 if FAULTS > 2 else 300)
def test_a_task_ends_once_whatever_its_workers_do_and_none_is_ever_stuck() -> None:
    explored = explore(runs.Runs(faults=FAULTS))
    assert explored.states > 50_000
    assert explored.ends > 1000
    assert explored.names <= steps_in_the_document(), explored.names - steps_in_the_document()


def test_gates_open_in_time_and_jobs_end_once_in_every_scene() -> None:
    names: set[str] = set()
    for scene in gates.SCENES:
        explored = explore(gates.Gates(scene, faults=FAULTS - 1))
        assert explored.ends, scene.name
        names |= explored.names
    assert names <= steps_in_the_document(), names - steps_in_the_document()


@pytest.mark.parametrize("weakness", get_args(runs.Weakness))
def test_without_a_protection_of_runs_something_goes_wrong(weakness: runs.Weakness) -> None:
    with pytest.raises(CounterexampleError) as found:
        explore(runs.Runs(weakness, faults=2 if weakness in TWO_FAULTS else 1))
    print(f"\n{weakness}: {found.value}")  # noqa: T201 - shown with -s


@pytest.mark.parametrize("weakness", get_args(gates.Weakness))
def test_without_a_protection_of_gates_something_goes_wrong_in_a_scene(weakness: gates.Weakness) -> None:
    with pytest.raises(CounterexampleError) as found:
        for scene in gates.SCENES:
            explore(gates.Gates(scene, weakness))
    print(f"\n{weakness}: {found.value}")  # noqa: T201 - shown with -s


def steps_in_the_document() -> set[str]:
    return {step for row in ROW.finditer(DOCUMENT) for step in quoted(row[1])}


def test_every_statement_that_the_document_names_is_there() -> None:
    rows = ROW.findall(DOCUMENT)
    assert len(rows) > 10
    for _, module, names in rows:
        code = importlib.import_module(f"aaiclick_queue.{module.replace('/', '.')}")
        for name in quoted(names):
            assert hasattr(code, name), f"{module}.py has no {name}"
