"""A database whose every statement is explained as it runs: the plan it really has, with the rows it really read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import msgspec

from aaiclick_queue.postgres import Connection, Database, Record
from aaiclick_queue.schema import schema_sql


class Node(msgspec.Struct, rename=lambda field: field.replace("_", " ").title()):
    """One node of a plan."""

    node_type: str
    relation_name: str | None = None
    actual_rows: float = 0
    actual_loops: float = 0
    rows_removed_by_filter: float = msgspec.field(default=0, name="Rows Removed by Filter")
    rows_removed_by_join_filter: float = msgspec.field(default=0, name="Rows Removed by Join Filter")
    rows_removed_by_index_recheck: float = msgspec.field(default=0, name="Rows Removed by Index Recheck")
    shared_hit_blocks: int = 0
    shared_read_blocks: int = 0
    plans: list[Node] = []

    @property
    def read(self) -> float:
        """Rows that this node has looked at, those it threw away included."""
        removed = self.rows_removed_by_filter + self.rows_removed_by_join_filter + self.rows_removed_by_index_recheck
        return (self.actual_rows + removed) * self.actual_loops

    @property
    def buffers(self) -> int:
        """Pages that this node and those below it have touched."""
        return self.shared_hit_blocks + self.shared_read_blocks

    def walk(self) -> Iterator[Node]:
        """This node and all below it."""
        yield self
        for below in self.plans:
            yield from below.walk()

    def __str__(self) -> str:
        return "\n".join(self._lines(0))

    def _lines(self, depth: int) -> Iterator[str]:
        over = f" {self.relation_name}" if self.relation_name else ""
        yield f"{'  ' * depth}{self.node_type}{over}: {self.read:g} rows read, {self.buffers} buffers"
        for below in self.plans:
            yield from below._lines(depth + 1)


class _Explained(msgspec.Struct):
    plan: Node = msgspec.field(name="Plan")


class Explained(msgspec.Struct):
    """A statement that ran, its arguments and its plan."""

    sql: str
    args: tuple[Any, ...]
    plan: Node


class ExplainingDatabase(Database):
    """One connection; keeps the plan of each statement, made when the statement was first run."""

    def __init__(self, *args: Any, **given: Any) -> None:
        super().__init__(*args, **given | {"size": 1})
        self.explained: list[Explained] = []

    async def _connect(self) -> Connection:
        made = await super()._connect()
        return _ExplainingConnection(made, self)


class _ExplainingConnection(Connection):
    def __init__(self, made: Connection, db: ExplainingDatabase) -> None:
        super().__init__(made.raw, schema=db.schema, begin=None)
        self._explained = db.explained
        self._names: dict[str, str] = {}

    async def fetch(self, sql: str, *args: Any) -> Sequence[Record]:
        """Explain the statement in a transaction that is rolled back, then run it."""
        self._explained.append(Explained(sql, args, await self._explain(sql, args)))
        return await super().fetch(sql, *args)

    async def _explain(self, sql: str, args: tuple[Any, ...]) -> Node:
        # PREPARE and EXECUTE, as `EXPLAIN <sql>` with arguments would never show a generic plan.
        if sql not in self._names:
            self._names[sql] = f"explained_{len(self._names)}"
            await self.raw.execute(f"PREPARE {self._names[sql]} AS {schema_sql(sql, self._schema)}")
        given = f"({', '.join(map(literal, args))})" if args else ""
        undone = self.raw.transaction()
        await undone.start()
        try:
            text = await self.raw.fetchval(
                f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) EXECUTE {self._names[sql]}{given}"
            )
        finally:
            await undone.rollback()
        [one] = msgspec.json.decode(text, type=list[_Explained])
        return one.plan


def literal(value: Any) -> str:
    """The value as SQL text."""
    match value:
        case None:
            return "NULL"
        case bool() | int() | float():
            return repr(value)
        case datetime():
            return f"'{value.isoformat()}'"
        case list():
            return "'{" + ",".join(_element(one) for one in value).replace("'", "''") + "}'"
        case str():
            return "'" + value.replace("'", "''") + "'"
    raise AssertionError(f"no literal for {value!r}")


def _element(value: Any) -> str:
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return "NULL" if value is None else str(value)
