"""Where our tables live, and what every step runs its SQL on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Protocol

DEFAULT_SCHEMA = "aaiclick_queue"
PLAIN_NAME = r"^[a-z_][a-z0-9_]{0,62}$"


class Transaction(Protocol):
    """Something that runs a statement in the transaction it was given."""

    async def fetch(self, sql: str, *args: Any) -> Sequence[Any]:
        """Run one statement; rows are addressed by column name."""
        ...


@lru_cache(maxsize=512)
def schema_sql(sql: str, schema: str) -> str:
    """The statement with our schema's name in place of the default one; `search_path` is never touched."""
    return sql if schema == DEFAULT_SCHEMA else sql.replace(f"{DEFAULT_SCHEMA}.", f"{quoted(schema)}.")


def quoted(schema: str) -> str:
    """The name of a schema as it may stand in a statement; the only text that is put into any."""
    if not re.fullmatch(PLAIN_NAME, schema) or schema.endswith("\n"):  # `$` would let that one pass
        raise ValueError(f"{schema!r} is no name for a schema: small letters, digits and underscores, at most 63")
    return f'"{schema}"'
