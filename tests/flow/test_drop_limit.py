"""A limit can be taken away while somebody holds rows of its tasks."""

from __future__ import annotations

import asyncio

from aaiclick_queue.flow.cancel import BY_HAND, take_waiting
from aaiclick_queue.flow.limits import NewLimit, drop_limit
from aaiclick_queue.postgres import Database
from tests.flow.test_admit import admit, make
from tests.tools import put_one


async def test_it_does_not_wait_for_an_application_that_replaces_one_of_its_tasks(db: Database) -> None:
    await make(db, n=1)
    one = await put_one(db)
    await admit(db)
    async with db.transaction() as tx:
        assert await take_waiting(tx, [one], error=BY_HAND) == {one}
        async with asyncio.timeout(5):
            assert await drop_limit(db, NewLimit("queue", "default", "running"), by="a test")
