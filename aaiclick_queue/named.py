"""Named: calls of tasks whose functions only workers know. Arguments are given by name, and checked over there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .codec import Signature, encode_json, signature_of
from .errors import ArgumentsDoNotFit
from .typed import write_natural


class NamedSignature(Signature):
    """How the arguments of an unknown function are written: as they stand."""

    def __init__(self, entrypoint: str) -> None:
        super().__init__(_unknown, signature_of(_unknown))
        self.name = entrypoint

    def bound(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments, all of them by name."""
        if args:
            raise ArgumentsDoNotFit(
                f"no task is registered as {self.name!r} here, so nobody knows the name of the parameter that takes "
                f"{args[0]!r:.60}: import its module, or give arguments by name and let it be immutable"
            )
        return dict(kwargs)

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """JSON object of the arguments."""
        return encode_json(self.bound(args, kwargs))

    def encode_around(self, given: Mapping[str, Any], written: Mapping[str, str]) -> str:
        """The same where some arguments are JSON already."""
        parts = [f"{write_natural(name)}:{encode_json(value)}" for name, value in given.items()]
        parts += [f"{write_natural(name)}:{text}" for name, text in written.items()]
        return "{" + ",".join(parts) + "}"


def _unknown():  # type: ignore[no-untyped-def]  # noqa: ANN202 - without annotations, so that results are plain JSON
    """Stands for the function."""
