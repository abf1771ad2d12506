"""Sealing: arguments of what is known here by its name alone, marked as the workers that have its code say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from .codec import Signature
from .redaction import KEY
from .schema import Transaction

# Of workers that stopped within the hour too: their rows are kept so long.
SECRET_ARGUMENTS = """
SELECT DISTINCT substr(s.word, length($1::text) + 2) AS name
FROM aaiclick_queue.workers w CROSS JOIN unnest(w.secrets) AS s(word) WHERE starts_with(s.word, $1::text || ' ')
"""


class Known(Protocol):
    """A task whose code is here."""

    entrypoint: str
    signature: Signature


def secret_words(known: Iterable[Known]) -> list[str]:
    """What a worker tells of its tasks, as `shop.mail.send code`: every argument in which something is a secret."""
    return sorted(f"{one.entrypoint} {name}" for one in known for name in one.signature.secret_parameters())


async def sealed_by_name(tx: Transaction, entrypoint: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments with those marked that are secret; what is marked already stays as it is."""
    if not given:
        return {}
    names = {row["name"] for row in await tx.fetch(SECRET_ARGUMENTS, entrypoint)}
    return {name: {KEY: one} if name in names and not _is_sealed(one) else one for name, one in given.items()}


def _is_sealed(value: Any) -> bool:
    return value is None or (isinstance(value, dict) and value.keys() == {KEY})
