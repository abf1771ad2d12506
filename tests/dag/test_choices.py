"""As what a task's end arrives at a side of a branch: the database says what the model says, of any result."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aaiclick_queue.flow.plan_rows import joined
from aaiclick_queue.postgres import Database
from tests.dag.model import Choice
from tests.dag.plans import as_choices

ARRIVES_AS = """
SELECT aaiclick_queue.arrives_as($1::text, string_to_array($2::text, chr(1)), string_to_array($3::text, chr(1)),
                                 $4::text::jsonb)
"""
ALL = frozenset({"red", "green", "7"})
SIDES = {
    "true": Choice(wanted=True),
    "false": Choice(wanted=False),
    "red": Choice(names=frozenset({"red"}), all_names=ALL),
    "number": Choice(names=frozenset({"7"}), all_names=ALL),
    "red beside a default": Choice(names=frozenset({"red"}), all_names=ALL, has_default=True),
    "default": Choice(all_names=ALL, is_default=True, has_default=True),
    "green and default": Choice(names=frozenset({"green"}), all_names=ALL, is_default=True, has_default=True),
}
RESULTS: list[Any] = [
    True, False, 0, 1, 7, -0.0, 0.5, "", "red", "green", "grey", "7", "*", "?true", "?false", None, [], {}, {"red": 1},
    ["red"], ["grey"], ["green", "red"], ["*"], ["?true"], ["?false"], [7], [[]], [None],
]  # fmt: skip
ARRIVAL = {"ok": "OPEN", "not chosen": "VETO", "failed": "FAIL"}


@pytest.mark.parametrize("side", SIDES)
async def test_a_result_chooses_the_sides_that_it_names_and_fails_where_it_names_none(db: Database, side: str) -> None:
    choices, known = as_choices(SIDES[side])
    for result in RESULTS:
        wanted = ARRIVAL[SIDES[side].says(result)]
        given = ("OPEN", joined(choices), joined(known), json.dumps(result))
        assert await db.fetchval(ARRIVES_AS, *given) == wanted, result


async def test_a_task_without_a_result_has_chosen_nothing(db: Database) -> None:
    for side, wanted in {"true": "VETO", "false": "OPEN", "red": "VETO", "default": "OPEN"}.items():
        choices, known = as_choices(SIDES[side])
        assert await db.fetchval(ARRIVES_AS, "OPEN", joined(choices), joined(known), None) == wanted


async def test_no_side_of_what_failed_or_was_skipped_runs(db: Database) -> None:
    for choice in SIDES.values():
        choices, known = as_choices(choice)
        for state, wanted in {"FAIL": "FAIL", "SKIP": "VETO"}.items():
            assert await db.fetchval(ARRIVES_AS, state, joined(choices), joined(known), '"red"') == wanted


async def test_where_nothing_is_chosen_an_end_arrives_as_it_is(db: Database) -> None:
    for state in ("OPEN", "FAIL", "SKIP"):
        assert await db.fetchval(ARRIVES_AS, state, None, None, "false") == state
