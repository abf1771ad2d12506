"""The wire between a worker and Postgres: cut, slow, and losing answers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from aaiclick_queue import connect
from aaiclick_queue.settings import Settings
from tests.chaos.wires import Wire, Wires
from tests.faults import tasks
from tests.faults.fleet import Console, Fleet, wait_for
from tests.servers import OwnPostgres

LEASES = "SELECT count(*) FROM aaiclick_queue.leases"


@pytest.fixture
def wire(own_postgres: OwnPostgres) -> Iterator[Wire]:
    with Wires() as wires:
        yield wires.add(lambda: own_postgres.port, is_postgres=True)


@pytest.fixture
def over_wire(own_postgres: OwnPostgres, wire: Wire) -> Settings:
    """Settings for a worker at the end of the wire."""
    url = own_postgres.url.replace(f":{own_postgres.port}/", f":{wire.port}/")
    return Settings.load({}, postgres_url=url, lease_seconds=2)


async def test_a_worker_whose_lease_is_over_comes_back_however_slow_the_wire_is(
    own_postgres: OwnPostgres, own_look: Console, wire: Wire, over_wire: Settings
) -> None:
    with Fleet(over_wire) as fleet:
        worker = fleet.start()
        wire.freeze()
        wait_for(lambda: worker.said("could not renew the lease"), worker.output)
        wire.heal()
        wire.delay = 0.08  # a new connection takes several turns of this
        async with connect(settings=Settings.load({}, postgres_url=own_postgres.url)) as client:
            await tasks.tick.enqueue(0.0, client=client)
        own_look.wait_for_all(fleet)
        assert worker.is_alive


async def test_what_a_claim_without_an_answer_has_leased_runs_within_a_minute(
    own_postgres: OwnPostgres, own_look: Console, wire: Wire, over_wire: Settings
) -> None:
    with Fleet(over_wire) as fleet:
        worker = fleet.start()
        wire.lose_answers("claim", 1)
        async with connect(settings=Settings.load({}, postgres_url=own_postgres.url)) as client:
            await tasks.tick.enqueue_many([{"seconds": 0.0}] * 20, client=client)
        wait_for(lambda: wire.lost, worker.output)
        wait_for(lambda: not own_look.open_tasks(), worker.output, seconds=60)
        assert own_look.value(LEASES) == 0
        assert own_look.statuses() == {"COMPLETED": 20}
