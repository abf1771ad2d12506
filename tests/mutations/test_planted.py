"""Each fault that is planted is caught by the test that is named for it; without it that test passes, in its own file.

A statement that waits for ever is caught too: the test that sees it would hang, here it has a few seconds.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
from typing import Any

import pytest

from aaiclick_queue.errors import PostgresUnavailable
from aaiclick_queue.flow.mark import HeadScans
from aaiclick_queue.postgres import Database
from aaiclick_queue.settings import Settings
from tests.mutations.planting import Mutation, mutations
from tests.mutations.recovery import more
from tests.races.orders import Stage
from tests.races.props import Props

PATIENCE = 4.0  # seconds for one that would wait for ever; 60 for the others, where a wait is no proof
DUE = HeadScans.due
MUTATIONS = [*mutations(), *more()]


async def play(test: str, given: dict[str, Any], fixtures: dict[str, Any], patience: float) -> None:
    """The named test, with what it asks for."""
    module, _, name = test.partition(":")
    function = getattr(importlib.import_module(module), name)
    asked = {asks: fixtures[asks] for asks in inspect.signature(function).parameters if asks not in given}
    async with asyncio.timeout(patience):
        await function(**asked, **given)


@pytest.mark.breaks_invariants
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
async def test_a_planted_fault_is_caught(  # noqa: PLR0917 - what the named tests ask for
    mutation: Mutation, settings: Settings, db: Database, stage: Stage, props: Props, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HeadScans, "due", DUE)
    mutation.apply(monkeypatch)
    fixtures = {"settings": settings, "db": db, "stage": stage, "props": props}
    for test, given in mutation.killed_by:
        sees = (TimeoutError, PostgresUnavailable) if mutation.hangs else mutation.sees
        with pytest.raises(sees) as caught:
            await play(test, given, fixtures, PATIENCE if mutation.hangs else 60)
        assert mutation.planted, "the words that are changed are nowhere in the flow"
        print(f"\n{mutation.name}: {test} {type(caught.value).__name__}")  # noqa: T201 - shown with -s


def test_every_named_test_is_there() -> None:
    for mutation in MUTATIONS:
        for test, _ in mutation.killed_by:
            module, _, name = test.partition(":")
            assert hasattr(importlib.import_module(module), name), test
