"""No pickle, no import from data, no SQL built from strings: read off the syntax, each exception with its reason."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from aaiclick_queue.errors import SettingsError
from aaiclick_queue.schema import quoted, schema_sql
from aaiclick_queue.settings import Settings

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "aaiclick_queue"

# They make objects or code of whatever bytes they are given.
UNSAFE_MODULES = {
    "_pickle", "cPickle", "cloudpickle", "code", "codeop", "dill", "joblib", "jsonpickle", "marshal", "multiprocessing",
    "pickle", "pty", "runpy", "shelve", "xmlrpc", "yaml",
}  # fmt: skip
UNSAFE_CALLS = {"eval", "exec", "compile", "__import__", "os.system", "os.popen", "tempfile.mktemp"}
# Where modules are imported by a name that is no constant, and whose name that is.
IMPORTERS = {
    ("__init__.py", "__getattr__"): "a public name of ours, from a table in the same file",
    ("testing/__init__.py", "__getattr__"): "a public name of ours, from a table in the same file",
    ("cli/modules.py", "import_modules"): "the operator's -A, or the modules of the fleet file",
    ("child.py", "load"): "what the worker itself has imported, told over a socket pair that it opened",
}

SENDS = {
    "fetch",
    "fetchval",
    "fetchrow",
    "execute",
    "executemany",
    "alone",
    "exec_driver_sql",
    "prepare",
    "copy_to_table",
}
KEYWORDS = re.compile(
    r"\b(SELECT|INSERT|UPDATE|DELETE|ALTER|DROP|CREATE|GRANT|REVOKE|SET|WHERE|FROM|EXISTS|CASE WHEN)\b"
)
_CHOSEN = "one of the constants of its file, by a name of ours"
_CHECKED = "the schema's name, which `quoted` has checked, and names of ours"
# Where a statement is sent that is no constant by its name.
SENDERS = {
    ("callers.py", "fetch"): "what a step was given: the wire itself",
    ("callers.py", "_execute"): "what a step was given: the wire itself",
    ("postgres.py", "fetch"): "what a step was given: the wire itself",
    ("postgres.py", "fetchval"): "what a step was given: the wire itself",
    ("postgres.py", "alone"): "what a step was given: the wire itself",
    ("postgres.py", "transaction"): "BEGIN with session settings of ours",
    ("doctor.py", "_look"): _CHOSEN,
    ("flow/cancel.py", "take_waiting"): _CHOSEN,
    ("flow/cancel.py", "cancel"): _CHOSEN,
    ("flow/clear.py", "_take"): _CHOSEN,
    ("flow/complete.py", "_record"): _CHOSEN,
    ("flow/dedupe.py", "_meet_holder"): _CHOSEN,
    ("flow/move.py", "move_tasks"): _CHOSEN,
    ("flow/operate.py", "_work_page"): _CHOSEN,
    ("flow/plan_rows.py", "in_turn"): _CHOSEN,
    ("flow/prune.py", "_step"): _CHOSEN,
    ("flow/prune_operate.py", "prune_operate"): _CHOSEN,
    ("flow/quarantine.py", "set_aside"): _CHOSEN,
    ("flow/quarantine.py", "singly"): _CHOSEN,
    ("flow/reaper.py", "_take"): _CHOSEN,
    ("flow/scheduler.py", "_step"): _CHOSEN,
    ("flow/wanted.py", "_count"): _CHOSEN,
    ("job_views.py", "count_jobs"): _CHOSEN,
    ("timelines.py", "read_timeline"): _CHOSEN,
    ("searching.py", "look_through"): _CHOSEN,
    ("flow/days.py", "_patiently"): "made by _drop",
    ("flow/days.py", "_concurrently"): "made by _drop",
    ("migrate.py", "_migrate"): _CHECKED,
    ("migrate.py", "_make_roles"): _CHECKED,
    ("migrate.py", "_is_at_head"): _CHECKED,
    ("roles.py", "keep_up"): _CHECKED,
    ("trying.py", "_settings"): "a schema that it has named itself",
}
# Where SQL is put together while the program runs, and of what.
BUILDERS = {
    (
        "flow/days.py",
        "_drop",
    ): "names of tables that Postgres has told, and that its statement has held against a pattern",
    ("flow/days.py", "_patiently"): "a constant of the file",
    ("flow/days.py", "_concurrently"): "a constant of the file",
    ("postgres.py", "_pooled_begin"): "session settings of ours",
    ("migrate.py", "_migrate"): _CHECKED,
    ("roles.py", "create_statements"): _CHECKED,
    ("roles.py", "grant_statements"): _CHECKED,
    ("trying.py", "_settings"): "a schema that it has named itself",
}
# The kit makes and ages databases of tests, on servers that are theirs.
LEFT_OUT = ("testing/",)

Place = tuple[str, str]


@cache
def files() -> list[tuple[str, ast.Module]]:
    paths = sorted(PACKAGE.rglob("*.py"))
    return [(path.relative_to(PACKAGE).as_posix(), ast.parse(path.read_text())) for path in paths]


def walk(tree: ast.AST, function: str = "") -> Iterator[tuple[ast.AST, str]]:
    """Every node and the innermost function that it is in; `` at import. A decorator or default is outside."""
    for node in ast.iter_child_nodes(tree):
        inner = node.name if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else function
        yield node, inner
        yield from walk(node, inner)


def unsafe_imports(tree: ast.Module) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(node.module or "")
    return {name for name in found if name.split(".")[0] in UNSAFE_MODULES}


def unsafe_calls(tree: ast.Module) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in UNSAFE_CALLS:
                found.add(called)
            if any(word.arg == "shell" and ast.unparse(word.value) != "False" for word in node.keywords):
                found.add(f"{called} with a shell")
    return found


def importers(tree: ast.Module) -> set[str]:
    """The functions that import what is named at run time."""
    return {
        function
        for node, function in walk(tree)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).rpartition(".")[2]
        in {"import_module", "exec_module", "load_module", "spec_from_file_location"}
    }


def is_constant(node: ast.expr) -> bool:
    """Whether it is a text in the source, or called as a constant is."""
    match node:
        case ast.Constant():
            return True
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name.strip("_").isupper()
        case ast.Subscript(value=value):
            return is_constant(value)
        case ast.IfExp(body=body, orelse=orelse):
            return is_constant(body) and is_constant(orelse)
    return False


def senders(tree: ast.Module) -> set[str]:
    """The functions that send what is no constant by its name."""
    return {
        function
        for node, function in walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in SENDS
        and node.args
        and not is_constant(node.args[0])
        and ast.unparse(node.func) not in {"middleware.execute", "task.prepare"}  # ours, and no SQL
    }


def is_built_sql(node: ast.AST) -> bool:
    """Whether a text with words of SQL is put together here."""
    match node:
        case ast.JoinedStr(values=values):
            text = "".join(str(value.value) for value in values if isinstance(value, ast.Constant))
            return any(isinstance(value, ast.FormattedValue) for value in values) and bool(KEYWORDS.search(text))
        case ast.BinOp(op=ast.Add() | ast.Mod(), left=left, right=right):
            return any(isinstance(side, ast.Constant) and KEYWORDS.search(str(side.value)) for side in (left, right))
        case ast.Call(func=ast.Attribute(attr="format", value=value)):
            texts = [value.value] if isinstance(value, ast.Constant) else []
            return any(KEYWORDS.search(str(text)) for text in texts) or (
                isinstance(value, ast.Name) and value.id.startswith("_") and is_constant(value)
            )
    return False


def builders(tree: ast.Module) -> set[str]:
    return {function for node, function in walk(tree) if function and is_built_sql(node)}


def calls(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """What is called by its name, and from where."""
    for node, function in walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id, function


def homes(name: str, tree: ast.Module) -> dict[str, str]:
    """The files of ours from which a file has its names."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            folder = Path(name).parents[node.level - 1]
            path = (folder / (node.module or "__init__").replace(".", "/")).as_posix() + ".py"
            found.update({alias.asname or alias.name: path for alias in node.names})
    return found


def test_nothing_makes_objects_or_code_of_data() -> None:
    assert {name: found for name, tree in files() if (found := unsafe_imports(tree))} == {}
    assert {name: found for name, tree in files() if (found := unsafe_calls(tree))} == {}


def test_modules_are_imported_by_the_names_that_an_operator_gave_and_no_others() -> None:
    assert {(name, function) for name, tree in files() for function in importers(tree)} == set(IMPORTERS)


def test_statements_that_are_sent_are_constants() -> None:
    found = {(name, one) for name, tree in files() if not name.startswith(LEFT_OUT) for one in senders(tree)}
    assert found == set(SENDERS)


def test_sql_is_put_together_while_modules_are_imported_and_never_from_values() -> None:
    trees = [(name, tree) for name, tree in files() if not name.startswith(LEFT_OUT)]
    found = {(name, one) for name, tree in trees for one in builders(tree)}
    fragments = found - set(BUILDERS)
    at_run_time = {
        (name, called, caller)
        for name, tree in trees
        for its_homes in [homes(name, tree)]
        for called, caller in calls(tree)
        if (its_homes.get(called, name), called) in fragments and caller and (name, caller) not in fragments
    }
    assert at_run_time == set()
    assert set(BUILDERS) <= found


@pytest.mark.parametrize(
    ("check", "code"),
    [
        (unsafe_imports, "import pickle"),
        (unsafe_imports, "def f():\n    from yaml import load"),
        (unsafe_imports, "import multiprocessing.pool"),
        (unsafe_calls, "eval(text)"),
        (unsafe_calls, "def f(text):\n    __import__(text)"),
        (unsafe_calls, "subprocess.run(text, shell=True)"),
        (importers, "def f(row):\n    importlib.import_module(row['entrypoint'])"),
        (importers, "def f(row):\n    from importlib import import_module as im\n    import_module(row)"),
        (senders, "async def f(tx, name):\n    await tx.fetch(f'SELECT {name}')"),
        (senders, "async def f(tx, sql):\n    await tx.fetch(sql)"),
        (senders, "async def f(tx, name):\n    await tx.fetch(CLAIM + name)"),
        (senders, "async def f(tx, name):\n    await tx.fetch(CLAIM.replace('x', name))"),
        (builders, "def f(name):\n    return f'SELECT id FROM tasks WHERE name = {name}'"),
        (builders, "def f(name):\n    return 'SELECT id FROM tasks WHERE name = ' + name"),
        (builders, "def f(name):\n    return 'SELECT id FROM tasks WHERE name = %s' % name"),
        (builders, "def f(name):\n    return _CLAIM.format(name=name)"),
    ],
)
def test_each_of_these_would_be_found(check: object, code: str) -> None:
    assert callable(check)
    assert check(ast.parse(code))


def test_a_fragment_that_is_built_from_a_value_would_be_found() -> None:
    tree = ast.parse("def of(name):\n    return f'SELECT {name}'\nA = of('x')\ndef run(row):\n    return of(row)")
    assert builders(tree) == {"of"}
    assert set(calls(tree)) == {("of", ""), ("of", "run")}


@pytest.mark.parametrize("name", ['a"; DROP TABLE tasks; --', "A", "", "a b", "1a", "a" * 64, "a\n", "ä", 'a"', "a."])
def test_a_schema_has_a_plain_name_or_none_at_all(name: str) -> None:
    with pytest.raises(SettingsError, match="POSTGRES_SCHEMA"):
        Settings.load({}, postgres_schema=name)
    with pytest.raises(ValueError, match="no name for a schema"):
        quoted(name)
    with pytest.raises(ValueError, match="no name for a schema"):
        schema_sql("SELECT 1 FROM aaiclick_queue.tasks", name)
