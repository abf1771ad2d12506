"""What a user's module declares for the life of a worker: `@resource`, `@on_startup`, `@on_shutdown`.

`lifespan` opens and closes what is declared here.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any, Protocol, TypeVar, get_args, get_origin

from .codec import Signature, resolved, signature_of
from .errors import BadResource
from .injection import without_mark
from .settings import Settings

F = TypeVar("F", bound=Callable[..., Any])

CONTEXTS = (AbstractAsyncContextManager, AbstractContextManager)
NAMED_LIMIT = 5


class Asking(Protocol):
    """Something with parameters that a worker fills in: a task."""

    @property
    def entrypoint(self) -> str:
        """Its name."""

    @property
    def signature(self) -> Signature:
        """Its parameters."""


class Declared:
    """A function that asks for resources: a resource itself, or a function of startup or shutdown."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.name = f"{function.__module__}.{function.__qualname__}"

    @functools.cached_property
    def asks(self) -> dict[str, Any]:
        """Its parameters with the type that each asks for; `Inject[…]` and the bare type say the same here."""
        asked: dict[str, Any] = {}
        for parameter in signature_of(self.function).parameters.values():
            if parameter.name in self._hints:
                asked[parameter.name] = without_mark(self._hints[parameter.name])
            elif parameter.default is parameter.empty:
                raise BadResource(
                    f"parameter {parameter.name!r} of {self.name} has no annotation, so nobody knows what it asks "
                    "for: annotate it with the type of another resource"
                )
        return asked

    @functools.cached_property
    def defaults(self) -> frozenset[str]:
        """Parameters that can go without."""
        parameters = signature_of(self.function).parameters.values()
        return frozenset(one.name for one in parameters if one.default is not one.empty)

    @functools.cached_property
    def _hints(self) -> dict[str, Any]:
        return resolved(inspect.unwrap(self.function), self.name)


class Resource(Declared):
    """A function that gives something to share: a generator that yields it once, or one that returns it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        yields = (inspect.isasyncgenfunction, inspect.isgeneratorfunction)
        self.is_context = any(of_kind(inspect.unwrap(function)) for of_kind in yields)
        self.open: Callable[..., Any] = function
        if inspect.isasyncgenfunction(function):
            self.open = asynccontextmanager(function)
        elif inspect.isgeneratorfunction(function):
            self.open = contextmanager(function)

    @functools.cached_property
    def gives(self) -> Any:
        """The type that it provides, by its return annotation."""
        annotation = self._hints.get("return")
        if get_origin(annotation) in CONTEXTS:
            self.is_context = True
        given = next(iter(get_args(annotation)), None) if self.is_context else annotation
        if given in (None, type(None), Any) or isinstance(given, TypeVar):
            raise BadResource(
                f"resource {self.name} does not say what it gives: annotate its return, "
                "-> AsyncIterator[AsyncEngine] where it yields an AsyncEngine"
            )
        return given


class Declarations:
    """All that was declared, in order."""

    def __init__(self) -> None:
        self.resources: list[Resource] = []
        self.startup: list[Declared] = []
        self.shutdown: list[Declared] = []

    def providers(self) -> dict[Any, Resource]:
        """Type → the resource that gives it; two for one type are refused."""
        found: dict[Any, Resource] = {}
        for one in self.resources:
            other = found.setdefault(one.gives, one)
            if other is not one:
                raise BadResource(
                    f"two resources give {shown(one.gives)} ({other.name} and {one.name}): give one of them a type "
                    f"of its own, Other = NewType('Other', {shown(one.gives)}), and ask for Inject[Other]"
                )
        return found

    def check(self, tasks: Iterable[Asking], given: Mapping[Any, Any]) -> None:
        """Refuse what could never be filled in: by task and parameter, and circles of resources."""
        providers = self.providers()
        known = {**providers, **given}
        for task in tasks:
            if task.signature.injects:
                require(task.signature.injected, known, f"task {task.entrypoint}")
        for one in (*self.startup, *self.shutdown, *self.resources):
            needed = {name: key for name, key in one.asks.items() if name not in one.defaults}
            require(needed, known, one.name)
        for one in self.resources:
            _refuse_circle(one, providers, ())


def require(asked: Mapping[str, Any], known: Mapping[Any, Any], who: str) -> None:
    """Refuse parameters whose type is not known."""
    for name, key in asked.items():
        if key not in known:
            names = [shown(one) for one in known if one is not Settings]
            given = f"resources give {', '.join(names[:NAMED_LIMIT])}" if names else "there are no resources"
            raise BadResource(
                f"parameter {name!r} of {who} asks for {shown(key)}, which no resource gives ({given}): declare one, "
                f"@resource on a function that is annotated -> AsyncIterator[{shown(key)}], in a module that the "
                "worker imports"
            )


def shown(annotation: Any) -> str:
    """A type as people write it."""
    return getattr(annotation, "__name__", None) or str(annotation)


declared = Declarations()


def resource(function: F) -> F:
    """Have workers open this once a process and fill it into parameters `Inject[…]` of the type that it gives.

    A generator, async or not, yields it once and closes it after the yield; a function returns it. Its own parameters
    are other resources.
    """
    _declare(declared.resources, Resource(_plain(function, "resource")))
    return function


def on_startup(function: F) -> F:
    """Have workers call this once a process before they claim anything; its parameters are resources."""
    _declare(declared.startup, Declared(_plain(function, "on_startup")))
    return function


def on_shutdown(function: F) -> F:
    """Have workers call this once a process after their last run, before resources close."""
    _declare(declared.shutdown, Declared(_plain(function, "on_shutdown")))
    return function


D = TypeVar("D", bound=Declared)


def _declare(those: list[D], new: D) -> None:
    # A module that is imported twice, as a script and by its name, declares the same thing twice.
    code = inspect.unwrap(new.function).__code__
    for position, one in enumerate(those):
        known = inspect.unwrap(one.function).__code__
        if (known.co_filename, known.co_qualname) == (code.co_filename, code.co_qualname):
            those[position] = new
            return
    those.append(new)


def _plain(function: Any, word: str) -> Callable[..., Any]:
    if not inspect.isfunction(inspect.unwrap(function)):
        raise BadResource(f"@{word} takes a function, not {function!r}: write @{word} above a def")
    for parameter in signature_of(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise BadResource(f"parameter {parameter.name!r} of {function.__qualname__}: take resources by name")
    taken: Callable[..., Any] = function
    return taken


def _refuse_circle(one: Resource, providers: Mapping[Any, Resource], path: tuple[Resource, ...]) -> None:
    if one in path:
        names = " → ".join(step.name for step in (*path[path.index(one) :], one))
        raise BadResource(f"resources need each other in a circle ({names}): take one of these parameters away")
    for key in one.asks.values():
        if key in providers:
            _refuse_circle(providers[key], providers, (*path, one))
