"""The audit of what is installed: locks are whole, licences are known, and silence is never taken for good news."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from . import audit
from .audit import AUDITOR, NoAnswer, Told, ask, faults, main, rounds
from .locks import BUILD, EVERYTHING, EXCEPTIONS, IMAGE, Pin, is_allowed, loose, not_allowed, pins, unmet

DIGEST = "--hash=sha256:" + "0" * 64
OLD, NEW = Pin("numpy", "2.4.6"), Pin("numpy", "2.5.4")
RICH = Pin("rich", "15.0.0")
ADVISORY = {"id": "PYSEC-1", "aliases": ["CVE-1"], "fix_versions": ["16.0"]}


def program(tmp_path: Path, said: dict[str, Any]) -> list[str]:
    """A program in the place of pip-audit: it answers for packages by their pin, and breaks down at any other."""
    script = tmp_path / "auditor.py"
    script.write_text(
        "import json, sys\n"
        f"said = json.loads({json.dumps(said)!r})\n"
        "asked = open(sys.argv[-1]).read().split()\n"
        "print(json.dumps({'dependencies': [said[pin] for pin in asked]}))\n"
        "sys.exit(any(said[pin].get('vulns') for pin in asked))\n"
    )
    return [sys.executable, str(script)]


def known(pin: Pin, *vulns: dict[str, Any]) -> dict[str, Any]:
    return {f"{pin.name}=={pin.version}": {**pin._asdict(), "vulns": vulns}}


def skipped(pin: Pin) -> dict[str, Any]:
    return {f"{pin.name}=={pin.version}": {"name": pin.name, "skip_reason": "not found"}}


def test_every_lock_is_hashed_names_no_address_and_holds_what_pyproject_asks_for_under_licences_that_we_may_use() -> (
    None
):
    for path in (EVERYTHING, IMAGE, BUILD):
        assert "://" not in path.read_text(), path
        assert pins(path.read_text()), path
    assert faults() == []


def test_no_exception_of_a_licence_is_left_over_and_the_image_has_those_of_psycopg_alone() -> None:
    assert {name for name, _ in not_allowed()} == EXCEPTIONS.keys()
    in_image = {pin.name for pin in pins(IMAGE.read_text())}
    assert in_image & EXCEPTIONS.keys() == {"psycopg", "psycopg-binary"}


@pytest.mark.parametrize(
    "entry",
    [
        "rich==15.0.0",
        f"rich>=15 {DIGEST}",
        f"rich {DIGEST}",
        f"rich @ https://example.com/rich.whl {DIGEST}",
        "rich==15.0.0 --hash=md5:00",
        "--extra-index-url https://example.com",
        "-e .",
        "-r more.txt",
    ],
)
def test_an_entry_that_could_install_something_else_is_found(entry: str) -> None:
    whole = f"click==8.5.1 ; sys_platform != 'win32' \\\n    {DIGEST} \\\n    {DIGEST}\n"
    assert loose(f"# a remark\n{whole}") == []
    assert loose(f"{whole}{entry}\n") == [entry]


@pytest.mark.parametrize(("asked", "is_met"), [("numpy>=2.4", True), ("numpy>=2.5", False), ("rich", False)])
def test_a_wish_is_met_by_every_version_that_is_locked_for_it(asked: str, is_met: bool) -> None:
    assert (unmet([Requirement(asked)], {OLD, NEW}) == []) is is_met


@pytest.mark.parametrize(
    ("expression", "fine"),
    [
        ("MIT", True),
        ("MIT AND PSF-2.0", True),
        ("GPL-3.0-only OR MIT", True),
        ("MIT AND GPL-3.0-only", False),
        ("Apache-2.0 OR (MIT AND GPL-3.0-only)", True),
        ("GPL-3.0-only", False),
        ("", False),
    ],
)
def test_a_licence_is_allowed_by_all_parts_of_one_choice(expression: str, fine: bool) -> None:
    assert is_allowed(expression) is fine


def test_a_vulnerability_is_named_and_fails_the_audit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said: dict[str, Any] = {}
    for pin in pins(EVERYTHING.read_text()):
        said |= known(pin, ADVISORY) if pin.name == "rich" else known(pin)
    monkeypatch.setattr(audit, "auditor", lambda folder: program(tmp_path, said))
    assert main([]) == 1
    assert "PYSEC-1, mended by 16.0" in capsys.readouterr().out
    monkeypatch.setitem(audit.ACCEPTED, "CVE-1", "we never call it")
    assert main(["--strict"]) == 0


@pytest.mark.parametrize("said", [skipped(RICH), {}], ids=["a service that knows nothing", "a tool that breaks down"])
def test_silence_is_told_and_is_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], said: dict[str, Any]
) -> None:
    monkeypatch.setattr(audit, "auditor", lambda folder: program(tmp_path, said))
    monkeypatch.setattr(audit, "pins", lambda text: {RICH})
    monkeypatch.setattr(audit, "faults", list)
    assert main([]) == 0
    assert "NOT CHECKED" in capsys.readouterr().out
    assert main(["--strict"]) == 1


def test_a_tool_that_is_not_there_is_no_answer(tmp_path: Path) -> None:
    with pytest.raises(NoAnswer):
        ask([RICH], [str(tmp_path / "nowhere")])


def test_a_round_without_an_answer_takes_nothing_from_the_other(tmp_path: Path) -> None:
    assert rounds([NEW, RICH, OLD]) == [[OLD, RICH], [NEW]]
    answer = ask([OLD, NEW, RICH], program(tmp_path, known(OLD) | known(RICH, ADVISORY)))
    assert answer == Told(known=2, unknown=["numpy"], vulnerable=["rich 15.0.0: PYSEC-1, mended by 16.0"])


def test_the_auditor_is_pinned() -> None:
    assert [one.operator for one in Requirement(AUDITOR).specifier] == ["=="]
