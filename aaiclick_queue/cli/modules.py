"""`-A`: imports the modules whose tasks a worker may run, and says well what went wrong."""

from __future__ import annotations

import difflib
import importlib
import sys
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path

from .program import TERMINATED, USAGE, echo, fail


def names(given: Iterable[str]) -> list[str]:
    """The modules of all `-A`, in order and once each."""
    parts = [part.strip() for text in given for part in text.split(",")]
    return list(dict.fromkeys(part for part in parts if part))


def import_modules(given: Sequence[str], *, verbose: bool) -> tuple[str, ...]:
    """Import each, as `python -m` would from the current folder; ends the command with exit code 2 when one fails."""
    sys.path.insert(0, str(Path.cwd()))
    modules = tuple(_module_name(text) for text in given)
    for name in modules:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
                _broken(name, error, verbose=verbose)
            near = difflib.get_close_matches(name, _modules_here(), n=1)
            fix = (
                f"did you mean -A {near[0]}?"
                if near
                else f"start the worker in the folder that holds it, not in {Path.cwd()}"
            )
            fail(f"there is no module {name!r}", fix, code=USAGE)
        except (Exception, SystemExit) as error:
            if isinstance(error, SystemExit) and error.code == TERMINATED:
                raise  # told to end while importing
            _broken(name, error, verbose=verbose)
    _require_tasks(given)
    return modules


def _module_name(text: str) -> str:
    """The module's name; for a file its folder goes on the path, the topmost one without `__init__.py`."""
    if ":" in text:
        fail(f"-A {text}: give the module alone", f"-A {text.split(':', 1)[0]}", code=USAGE)
    if not text.endswith(".py") and "/" not in text:
        return text
    file = Path(text)
    if not file.is_file():
        fail(f"-A {text}: there is no such file in {Path.cwd()}", "give a module or a file of Python", code=USAGE)
    name, folder = file.stem, file.resolve().parent
    while (folder / "__init__.py").exists():
        name, folder = f"{folder.name}.{name}", folder.parent
    sys.path.insert(0, str(folder))
    return name


def _broken(name: str, error: BaseException, *, verbose: bool) -> None:
    if verbose:
        echo("".join(traceback.format_exception(error)).rstrip(), err=True)
    ours = str(Path(__file__).parents[1])
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "importlib" not in frame.filename and not frame.filename.startswith(ours)
    ]
    where = f" ({frames[-1].filename} line {frames[-1].lineno})" if frames else ""
    if isinstance(error, SyntaxError):
        where = f" ({error.filename} line {error.lineno})"
    what = f"{type(error).__name__}: {error.msg if isinstance(error, SyntaxError) else error}"
    fail(
        f"importing {name!r} raised {what}{where}",
        "mend the module" if verbose else "mend the module; -v shows the traceback",
        code=USAGE,
    )


def _modules_here() -> list[str]:
    files = [*Path.cwd().glob("*.py"), *Path.cwd().glob("*/*.py")]
    return [".".join(file.relative_to(Path.cwd()).with_suffix("").parts) for file in files[:1000]]


def _require_tasks(given: Sequence[str]) -> None:
    from ..tasks import registry

    if not registry:
        fail(
            f"{', '.join(given)} registers no task, so this worker could run nothing",
            "decorate functions with @task, or name the modules that do: packages are not walked",
            code=USAGE,
        )
