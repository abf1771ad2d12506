"""A round over the lanes ends, however many there are."""

from __future__ import annotations

import pytest

from aaiclick_queue.flow.admit import Admission
from aaiclick_queue.postgres import Database
from tests.flow.test_admit import make
from tests.tools import put_one


@pytest.mark.parametrize("lanes", [1, 2, 4, 5])
async def test_a_round_ends_where_the_last_page_is_full(db: Database, lanes: int) -> None:
    await make(db, "task", "tests.nowhere", "pause", n=0)
    for key in range(4):
        await put_one(db, task={"concurrency_key": str(key)})
    admission = Admission(db)
    passes = 1
    while (await admission.admit_once(lanes=lanes)).more:
        passes += 1
        assert passes <= 5
    assert passes == -(-4 // lanes)
