"""Every test that guarantees, models and threat model name is there; every promise and every attack names one."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def names_in(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def missing(text: str) -> list[str]:
    found = NAMED.findall(text)
    return [
        f"{file}::{name}" for file, name in found if not (ROOT / file).exists() or name not in names_in(ROOT / file)
    ]


@pytest.mark.parametrize("page", ["guarantees.md", "model.md", "threat-model.md"])
def test_every_test_that_the_page_names_is_there(page: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    assert missing(text) == []
    assert text.count("::test_") == len(NAMED.findall(text)), "a test is named in another form"


def test_every_promise_names_its_fault_and_its_proof() -> None:
    text = (ROOT / "docs" / "guarantees.md").read_text()
    promised = re.findall(r"^\*\*(.+?)\.\*\*", text.partition("## Not promised")[0], re.MULTILINE)
    rows = [line.split("|")[1:-1] for line in text.partition("## Proofs")[2].splitlines() if line.startswith("| ")]
    proofs = {row[0].strip(): row for row in rows[1:]}
    assert set(promised) <= set(proofs), set(promised) - set(proofs)
    for name, (_, scope, fault, proof) in proofs.items():
        assert scope.strip(), name
        assert fault.strip(), name
        assert NAMED.search(proof), name


def test_every_line_of_an_attacker_names_a_test_or_says_that_it_is_a_rest() -> None:
    text = (ROOT / "docs" / "threat-model.md").read_text()
    for line in text.partition("## What each attacker can do")[2].partition("## What is left")[0].splitlines():
        if line.startswith("| ") and not line.startswith(("| who", "|---")):
            assert NAMED.search(line), line


def test_a_name_that_is_not_there_would_be_found() -> None:
    assert missing("`tests/project/test_named_proofs.py::test_nobody_wrote_this`")
    assert missing("`tests/nowhere.py::test_every_test_that_the_page_names_is_there`")
