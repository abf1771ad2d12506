"""Parameters that a worker fills in: `engine: Inject[AsyncEngine]`, to type checkers a plain AsyncEngine.

`codec` leaves them out of a task's arguments, `lifespan` opens what they ask for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, NoReturn, TypeVar, get_args, get_origin

from .errors import BadTask, WrongContext

T = TypeVar("T")


class Mark:
    """Says of an annotation that a worker fills the parameter in."""

    def __repr__(self) -> str:
        return "Inject"


MARK = Mark()
Inject = Annotated[T, MARK]


class NotInjected:
    """Stands in the place of a resource where no worker has filled it in; using it says so."""

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise WrongContext(
            f"nothing is injected here (.{name} was asked for): only a worker fills such parameters in, "
            "so give the value by name where you call the function yourself"
        )

    def __repr__(self) -> str:
        return "injected"


# A default for such parameters, so that type checkers let `report.delay(day)` pass.
injected: Any = NotInjected()


def injected_types(hints: Mapping[str, Any], owner: str) -> dict[str, Any]:
    """The marked parameters, each with the type that it asks for; raises BadTask for a mark that says nothing."""
    found: dict[str, Any] = {}
    for name, annotation in hints.items():
        about = f"parameter {name!r} of {owner}"
        if name == "return" or not _is_marked(annotation):
            continue
        if not _is_marked(annotation, inside=False):
            raise BadTask(f"{about} has Inject inside of another annotation: write Inject[…] around the whole of it")
        wanted = without_mark(annotation)
        if isinstance(wanted, TypeVar):
            raise BadTask(f"{about} is annotated Inject without a type: write Inject[AsyncEngine], say")
        found[name] = wanted
    return found


def without_mark(annotation: Any) -> Any:
    """The annotation without the mark."""
    if get_origin(annotation) is not Annotated:
        return annotation
    rest = tuple(one for one in annotation.__metadata__ if one is not MARK)
    return Annotated[(annotation.__origin__, *rest)] if rest else annotation.__origin__


def _is_marked(annotation: Any, *, inside: bool = True) -> bool:
    """Whether the mark is on it, or anywhere inside of it."""
    if get_origin(annotation) is Annotated:
        return any(one is MARK for one in annotation.__metadata__) or (inside and _is_marked(annotation.__origin__))
    return inside and any(_is_marked(part) for part in get_args(annotation))
