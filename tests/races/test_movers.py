"""Several processes run the same background work: they share its rows and do each once."""

from __future__ import annotations

import asyncio
import sys
import uuid
from collections.abc import Sequence

from aaiclick_queue import migrate
from aaiclick_queue.flow.cancel import cancel
from aaiclick_queue.flow.reaper import Reaper, ensure_partitions
from aaiclick_queue.flow.relay import Relay
from aaiclick_queue.postgres import Database
from aaiclick_queue.settings import Settings
from aaiclick_queue.streams import Hint, Streams
from tests.races.orders import Play, Stage
from tests.races.props import Props


async def test_two_movers_put_a_due_task_in_line_once(stage: Stage, props: Props) -> None:
    async def scene(play: Play) -> None:
        ids = await props.enqueue(props.db, count=3, countdown=0.0001)
        moved = await play.run(one=lambda db: Reaper(db).due_once(2), other=lambda db: Reaper(db).due_once(2))
        assert sum(count for count, _ in moved) == 3
        for task_id in ids:
            state = await props.state(task_id)
            assert (state["delayed"], state["ready"]) == (0, 1)
        [told] = await props.db.fetch("SELECT sum(n)::int AS tasks FROM aaiclick_queue.outbox")
        assert told["tasks"] == 3
        await props.db.fetch("DELETE FROM aaiclick_queue.outbox")
        await cancel(props.db, ids)

    await stage.in_every_order(scene)


class Heard(Streams):
    """Streams that also remember what was published."""

    async def publish(self, hints: Sequence[Hint]) -> None:
        self.published.extend(hints)
        await super().publish(hints)

    published: list[Hint]


async def test_two_relays_publish_an_outbox_row_once(stage: Stage, props: Props, redis_url: str) -> None:
    streams = Heard(redis_url, prefix=f"test-{uuid.uuid4().hex[:12]}")

    async def scene(play: Play) -> None:
        streams.published = []
        ids = [await props.queued() for _ in range(3)]
        relayed = await play.run(
            one=lambda db: Relay(db, streams).relay_once(2, older=0),
            other=lambda db: Relay(db, streams).relay_once(2, older=0),
        )
        left = await Relay(props.db, streams).relay_once(older=0)
        assert sum(relayed) + left == 3
        assert sorted(task_id for hint in streams.published for task_id in hint.task_ids) == ids
        await cancel(props.db, ids)

    await stage.in_every_order(scene)
    await streams.close()


async def test_several_processes_make_the_partitions_of_the_next_days_at_once(settings: Settings, db: Database) -> None:
    count = "SELECT count(*) FROM pg_inherits"
    before = await db.fetchval(count)
    for parent in ("attempts", "events"):
        for [child] in await db.fetch(
            "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = $1::text::regclass",
            f"aaiclick_queue.{parent}",
        ):
            await db.fetch(f"DROP TABLE {child}")
    others = [Database(settings, size=1, flow=True) for _ in range(4)]
    await asyncio.gather(*(ensure_partitions(other) for other in others))
    assert await db.fetchval(count) == before
    for other in others:
        await other.close()


MIGRATE = """
import asyncio, sys
from aaiclick_queue import migrate
from aaiclick_queue.settings import Settings
asyncio.run(migrate.upgrade(Settings.load({}, postgres_url=sys.argv[1])))
"""


async def test_several_processes_migrate_at_once(empty_postgres_url: str) -> None:
    processes = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", MIGRATE, empty_postgres_url) for _ in range(3)
    ]
    assert [await process.wait() for process in processes] == [0, 0, 0]
    settings = Settings.load({}, postgres_url=empty_postgres_url)
    async with Database(settings, size=1) as db:
        await migrate.require_head(db)
