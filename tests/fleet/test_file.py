"""fleet.toml: what it says is what is started; a mistake is told with its line and what would be right."""

from __future__ import annotations

from pathlib import Path

import pytest

from aaiclick_queue.cli import main
from aaiclick_queue.errors import BadFleet
from aaiclick_queue.fleet.file import Fleet, Group, read
from aaiclick_queue.fleet.keys import FileKeys, Keys

PROJECT = Path(__file__).parents[2]
ONE = '[groups.a]\nmodules = ["shop"]\n'


def read_text(folder: Path, text: str) -> Fleet:
    file = folder / "my.fleet.toml"
    file.write_text(text)
    return read(file, {})


def test_the_file_of_the_repository_is_a_fleet() -> None:
    fleet = read(PROJECT / "workers" / "fleet.toml", {})
    assert (fleet.name, fleet.folder) == ("examples", PROJECT)
    assert {name: group.count for name, group in fleet.groups.items()} == {"mail": 2, "reports": 1}
    assert all((fleet.folder / module).is_file() for group in fleet.groups.values() for module in group.modules)


def test_a_group_has_what_it_names_and_else_what_the_top_names(tmp_path: Path) -> None:
    top = 'modules = ["shop"]\nslots = 7\ncount = 3\nbackground = false\n[environment]\nA = "top"\nB = 2\nC = true\n'
    fleet = read_text(tmp_path, f'{top}[groups.x]\n[groups.y]\nslots = 9\nenvironment = {{ A = "own", D = 0.5 }}\n')
    x, y = fleet.groups["x"], fleet.groups["y"]
    assert (fleet.name, fleet.folder) == ("my-fleet", Path.cwd())
    assert (x.slots, x.count, x.environment) == (7, 3, {"A": "top", "B": "2", "C": "true"})
    assert (y.slots, y.count, y.environment) == (9, 3, {"A": "own", "B": "2", "C": "true", "D": "0.5"})
    assert x.arguments() == ["-A", "shop", "-c", "7", "--no-background"]


def test_every_key_of_a_group_is_an_option_of_the_worker() -> None:
    group = Group(name="a", modules=("shop", "x.py"), queues={"mail": 3, "tenant:acme": 1}, slots=1, threads=2)
    assert group.arguments() == ["-A", "shop,x.py", "-Q", "mail:3,tenant:acme:1", "-c", "1", "--threads", "2"]
    assert Group(name="a", modules=("shop",)).arguments() == ["-A", "shop"]
    ends = Group(name="a", modules=("shop",), max_tasks=3, max_memory=4, limits={"mail": 5}).arguments()
    assert ends == ["-A", "shop", "--max-tasks", "3", "--max-memory", "4", "--limit=mail=5"]
    kids = Group(name="a", modules=("x",), children=2, max_tasks_per_child=3, max_memory_per_child=4).arguments()
    assert kids == ["-A", "x", "--children", "2", "--max-tasks-per-child", "3", "--max-memory-per-child", "4"]
    known = {name for parameter in main.commands["worker"].params for name in parameter.opts}
    assert {word.split("=")[0] for word in [*group.arguments(), *ends] if word.startswith("-")} <= known


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "line 1: there is no group in it: add one, as [groups.mail]"),
        ("slots = 0\n" + ONE, "line 1: slots = 0: give a whole number from 1 to 10,000, as slots = 100"),
        (ONE + 'count = "2"', "line 3: count = '2' in [groups.a]: give a whole number from 0 to 1,000, as count = 2"),
        (ONE + "count = true", "line 3: count = True in [groups.a]: give a whole number"),
        (ONE + "\n# a comment\nslot = 3", "line 5: slot is no key in [groups.a]: did you mean slots?"),
        (ONE + "nosuchthing = 3", "line 3: nosuchthing is no key in [groups.a]: there are modules, queues, slots"),
        ("modlues = []\n" + ONE, "line 1: modlues is no key of a fleet: did you mean modules?"),
        ('[mail]\nmodules = ["shop"]', "line 1: mail is no key of a fleet: did you mean [groups.mail]?"),
        (ONE + 'queues = ["mail:3"]', "line 3: queues = ['mail:3'] in [groups.a] ('mail:3' has a weight"),
        (ONE + "queues = { mail = 0 }", "line 3: queues.mail = 0 in [groups.a]: give a list of names, or a table"),
        (ONE + '[groups.a.queues]\nmail = "x"', "line 4: queues.mail = 'x' in [groups.a]: give a list of names, or"),
        (ONE + "queues = []", "line 3: queues = [] in [groups.a]: give a list of names"),
        (ONE + 'queues = ["a,b"]', "('a,b' is no queue)"),
        (ONE + 'queues = ["*", "b"]', "('*' serves every queue already)"),
        (ONE + "limits = { mail = 0 }", "line 3: limits.mail = 0 in [groups.a]: give a table of queues and numbers"),
        (
            ONE + "limits = { mail = 2 }",
            "line 3: limits.mail in [groups.a], which does not serve that queue: add it to",
        ),
        ("limits = { mial = 2 }\n" + ONE + 'queues = ["mail"]', "line 1: limits.mial in [groups.a], which does not"),
        (ONE + 'queues = "mail"', "line 3: queues = 'mail' in [groups.a]: give a list of names"),
        ('[groups.a]\nmodules = ["a,b"]', "('a,b' is no module)"),
        ('[groups.a]\nmodules = ["--evil"]', "('--evil' is no module)"),
        ("[groups.a]\nmodules = []", "line 2: modules = [] in [groups.a]: give a list of modules"),
        ("[groups.a]\n", "line 1: [groups.a] has no modules, so it could run nothing: add modules = "),
        ('[groups."a b"]\nmodules = ["shop"]', "their names up to 32 letters, digits, - and _"),
        ('name = "../x"\n' + ONE, "line 1: name = '../x': give up to 32 letters, digits, - and _"),
        ("groups = 3", "line 1: groups = 3: give tables of groups"),
        ('folder = "nowhere"\n' + ONE, "line 1: folder = 'nowhere': there is no folder "),
        (ONE + "environment = { A = [1] }", "line 3: environment in [groups.a] (A is neither text nor number)"),
        (ONE + '[groups.a.environment]\n"A B" = 1', "environment in [groups.a] ('A B' is no name of a variable)"),
        ("x = = 1", "is no TOML (Invalid value (at line 1, column 5)): mend that line"),
        (
            ONE + 'environment = { AAICLICK_QUEUE_LEASE_SECONDS = "soon" }',
            "line 3: the settings of group 'a': AAICLICK_QUEUE_LEASE_SECONDS = 'soon': give a number",
        ),
        (
            "environment = { AAICLICK_QUEUE_LEASE = 3 }\n" + ONE,
            "AAICLICK_QUEUE_LEASE is no setting of aaiclick-queue (did you mean AAICLICK_QUEUE_LEASE_SECONDS?)",
        ),
    ],
)
def test_a_mistake_is_told_with_its_line_and_what_would_be_right(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(BadFleet) as refused:
        read_text(tmp_path, text)
    assert told in str(refused.value)
    assert str(refused.value).startswith(str(tmp_path / "my.fleet.toml"))


def test_all_mistakes_are_told_in_their_order(tmp_path: Path) -> None:
    with pytest.raises(BadFleet) as refused:
        read_text(tmp_path, ONE + "slot = 3\ncount = -1\nthread = 3\n")
    first, *rest = str(refused.value).splitlines()
    assert first == f"{tmp_path / 'my.fleet.toml'} has 3 mistakes"
    assert [line.split(":")[0] for line in rest] == ["  line 3", "  line 4", "  line 5"]


def test_no_secret_of_an_environment_is_repeated(tmp_path: Path) -> None:
    with pytest.raises(BadFleet) as refused:
        read_text(tmp_path, ONE + 'environment = { PASSWORD = ["hunter2"] }')
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("given", ["nosuch.toml", "."])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, given: str) -> None:
    with pytest.raises(BadFleet, match="cannot be read"):
        read(tmp_path / given, {})


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "fleet.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadFleet, match="is no TOML"):
        read(tmp_path / "fleet.toml", {})


def test_the_documentation_shows_every_key() -> None:
    page = (PROJECT / "docs" / "fleet.md").read_text()
    assert [key for key in {**Keys.model_fields, **FileKeys.model_fields} if f"`{key}`" not in page] == []
