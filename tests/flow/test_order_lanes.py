"""A strict order holds over queues, tasks and keys, and where its first task is kept waiting by a limit."""

from __future__ import annotations

from aaiclick_queue.flow.admit import Admission
from aaiclick_queue.postgres import Database
from tests.flow.test_admit import admit, make
from tests.tools import place_of, put_one


async def test_nobody_overtakes_the_first_of_an_order_that_a_pause_keeps(db: Database) -> None:
    await make(db, "task", "tests.x", "pause", n=0)
    first = await put_one(db, entrypoint="tests.x", task={"order_by": "c"})
    second = await put_one(db, entrypoint="tests.y", task={"order_by": "c"})
    await admit(db)
    assert [await place_of(db, first), await place_of(db, second)] == [["held"], ["held"]]


async def test_an_order_over_many_lanes_begins_with_its_first_whichever_lanes_are_looked_at(db: Database) -> None:
    first = await put_one(db, queue="z", task={"order_by": "c"})
    second = await put_one(db, queue="a", task={"order_by": "c"})
    await Admission(db).admit_once(lanes=1)
    assert [await place_of(db, first), await place_of(db, second)] != [["held"], ["ready"]]
