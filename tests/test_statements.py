"""Every SQL constant of the package is something that Postgres takes, on the tables as they are migrated."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator, Mapping
from typing import Any

import asyncpg
import msgspec

import aaiclick_queue
from aaiclick_queue.postgres import Database

BEGINS = re.compile(r"\s*(WITH|SELECT|INSERT|UPDATE|DELETE)\b")
TEMPLATE = re.compile(r"\{[a-z_]+\}")
# `run` is a list of parameters, whose columns are written beside it.
STARS = re.compile(r"\b(SELECT|RETURNING)\s+(\w+\.)?\*|,\s*(?!run\.)\w+\.\*")


def texts(value: Any) -> Iterator[str]:
    """Every text in a constant."""
    match value:
        case str():
            yield value
        case tuple() | list():
            for one in value:
                yield from texts(one)
        case Mapping():
            yield from texts(list(value.values()))
        case msgspec.Struct():
            yield from texts(msgspec.structs.astuple(value))


def statements() -> dict[str, str]:
    """SQL constants by where they are; templates are not, what is made of them is."""
    found: dict[str, str] = {}
    for module in pkgutil.walk_packages(aaiclick_queue.__path__, "aaiclick_queue."):
        if module.name.endswith("__main__") or "migrations" in module.name:
            continue
        for name, value in vars(importlib.import_module(module.name)).items():
            if not name.isupper() or name.startswith("_"):
                continue
            for number, text in enumerate(texts(value)):
                if BEGINS.match(text) and not TEMPLATE.search(text):
                    found[f"{module.name}.{name}[{number}]"] = text
    return found


def test_the_statements_are_found() -> None:
    found = " ".join(statements())
    for name in (
        "claim.CLAIM_NEXT_IN_LINE",
        "complete.COMPLETE_SUCCEEDED",
        "settle.SETTLE_OWN_RUNS",
        "enqueue.ENQUEUE",
        "plain.ENQUEUE_PLAIN",
        "dedupe.DEBOUNCE_PLACES",
        "cancel.TAKE_LEASED",
        "reaper.TAKE_LOST_RUNS",
        "relay.TAKE_OUTBOX_ROWS",
        "heartbeat.BEAT",
        "fenced.KEEP_PROGRESS",
        "doctor.CHECKS",
        "waiting.FINISHED",
    ):
        assert name in found


async def test_postgres_takes_every_statement(db: Database) -> None:
    refused = {}
    async with db.connection() as connection:
        for name, sql in statements().items():
            try:
                await connection.raw.prepare(sql)
            except asyncpg.PostgresError as error:
                refused[name] = str(error)
    assert refused == {}


def test_no_statement_asks_for_whatever_columns_there_are() -> None:
    assert [name for name, sql in statements().items() if STARS.search(sql)] == []


def test_a_star_would_be_found() -> None:
    for sql in ("SELECT * FROM t", "DELETE FROM t RETURNING *", "SELECT t.* FROM t", "SELECT 1, t.* FROM t"):
        assert STARS.search(sql)
    for sql in ("SELECT count(*) FROM t", "SELECT 2 * 3", "SELECT a, run.* FROM run"):
        assert not STARS.search(sql)
