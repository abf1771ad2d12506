"""Jobs by the clock: declared in code, registered at run time, run by name, and looked at afterwards.

Run it: python examples/schedules.py
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

from aaiclick_queue import (
    Settings,
    Worker,
    backfill,
    current,
    delete_registered_job,
    get_registered_job,
    job,
    next_runs,
    run_job,
    task,
    tick_history,
    upsert_registered_job,
)


@task
async def rows_of(day: str) -> int:
    return len(day)


@task
async def publish(day: str, rows: int) -> str:
    return f"{day}: {rows} rows"


@job(schedule="30 2 * * *", timezone="Europe/Berlin", default_kwargs={"day": "yesterday"}, overlap="skip")
def nightly(day: str) -> Any:
    return publish(day, rows_of(day))


@task
async def pulse() -> str:
    return f"the tick of {current().metadata['fire_at']}"


async def completed(name: str) -> list[Any]:
    return [tick for tick in await tick_history(name) if tick.status == "COMPLETED"]


async def main() -> None:
    async with asyncio.TaskGroup() as group:
        worker = Worker(Settings.load())
        group.create_task(worker.run())

        # Once when the clock goes back, and after the gap when it goes forward.
        for around in (datetime(2027, 3, 27, 12, tzinfo=UTC), datetime(2027, 10, 30, 12, tzinfo=UTC)):
            fires = next_runs("30 2 * * *", timezone="Europe/Berlin", after=around, count=2)
            print("nightly around a change of clocks:", *(f"{one:%Y-%m-%d %H:%M} UTC" for one in fires))

        # Every second, from here on, in whichever worker comes first: each tick once.
        await upsert_registered_job("pulse", pulse, interval="1s")
        while len(ended := await completed("pulse")) < 2:  # noqa: ASYNC110 - only the database knows
            await asyncio.sleep(0.05)
        for tick in ended:
            late = 1000 * (tick.late or 0)
            print(f"{tick.fire_at:%H:%M:%S.%f} {tick.outcome}, {late:.0f} ms late, job {tick.job_id}")
        assert len({tick.fire_at for tick in ended}) == len(ended)
        await delete_registered_job("pulse")

        # What the code declares was written down by the worker; arguments are merged over the declared ones.
        print("declared in code:", (await get_registered_job("nightly")).schedule)
        assert await (await run_job("nightly")).result(timeout=30) == "yesterday: 9 rows"
        assert await (await run_job("nightly", {"day": "monday"})).result(timeout=30) == "monday: 6 rows"

        # The runs that a new schedule would have made.
        now = datetime.now(UTC)
        done = await backfill("nightly", now - timedelta(days=3), now)
        print(f"{done.done} runs of the past")
        assert done.done >= 2
        worker.stop()


if __name__ == "__main__":
    asyncio.run(main())
