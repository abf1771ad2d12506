"""run_job: arguments merged over the registered ones; each option is the first one given, from the call to built-in."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aaiclick_queue import Client, Settings, connect, job, run_job, task
from aaiclick_queue.errors import ArgumentsDoNotFit, BadTask, UnknownJob
from aaiclick_queue.postgres import Database
from aaiclick_queue.registered import disable_job, register_job
from tests.schedules.acting import drop_wakeups, fire, note, pass_by
from tests.tools import changed, running_worker

DAY = 86400.0
OTHERS_OFF = "UPDATE aaiclick_queue.registered_jobs SET next_run_at = NULL, enabled = false WHERE name <> $1"
MADE = """
SELECT t.queue, t.priority, round(extract(epoch FROM j.deadline_at - j.created_at))::float8 AS timeout, t.max_attempts,
       j.retention_seconds / 86400 AS retention, j.max_parallel, t.kwargs, j.name, j.run_type, j.entrypoint,
       j.fail_fast, j.metadata
FROM aaiclick_queue.jobs j JOIN aaiclick_queue.tasks t ON t.job_id = j.id ORDER BY j.id DESC LIMIT 1
"""


@task
async def both(day: str = "monday", hour: int = 8) -> str:
    return f"{day} {hour}"


@task(queue="own", priority=1)
async def own(day: str = "monday") -> str:
    return day


@job(queue="own", priority=1, timeout=100, retention=1, fail_fast=True, metadata={"team": "mail"})
def owned(day: str = "monday") -> Any:
    return note(day)


REGISTERED: dict[str, Any] = {"queue": "registered", "priority": 2, "timeout": 200, "retention": 2, "max_attempts": 2}
EXPLICIT: dict[str, Any] = {"queue": "explicit", "priority": 0, "timeout": 300, "retention": 3, "max_attempts": 4}


async def made(db: Database) -> dict[str, Any]:
    """The job that was made last."""
    [row] = await db.fetch(MADE)
    await drop_wakeups(db)
    return dict(row)


async def options(db: Database) -> tuple[Any, ...]:
    row = await made(db)
    return tuple(row[name] for name in ("queue", "priority", "timeout", "retention", "max_attempts"))


@pytest.mark.parametrize("way", ["by name", "by tick"])
async def test_a_registered_option_comes_before_that_of_the_code_the_environment_and_what_is_built_in(
    settings: Settings, db: Database, way: str
) -> None:
    async with connect(settings=changed(settings, job_timeout_seconds=50)) as client:

        async def run(name: str) -> tuple[Any, ...]:
            if way == "by name":
                await run_job(name, client=client)
            else:
                await pass_by(settings, minutes=60)
                await db.fetch(OTHERS_OFF, name)
                assert await fire(await client.database()) == 1
            return await options(db)

        attempts = settings.max_attempts if way == "by name" else None  # then the worker's environment says it
        await register_job("all", owned, interval="1h", **REGISTERED, client=client)
        assert await run("all") == ("registered", 2, 200, 2, 2)
        await register_job("code", owned, interval="1h", client=client)
        assert await run("code") == ("own", 1, 100, 1, attempts)
        assert ((await made(db))["fail_fast"], json.loads((await made(db))["metadata"])["team"]) == (True, "mail")
        await register_job("bare", note, interval="1h", client=client)
        assert await run("bare") == ("default", 0, 50, None, attempts)


@pytest.mark.parametrize("function", [owned, own], ids=["a job", "a task"])
async def test_what_is_given_comes_before_what_is_registered(client: Client, db: Database, function: Any) -> None:
    await register_job("it", function, **REGISTERED, client=client)
    await run_job("it", client=client, **EXPLICIT)
    assert await options(db) == ("explicit", 0, 300, 3, 4)
    nothing: dict[str, Any] = dict.fromkeys(EXPLICIT)  # None is to inherit
    await run_job("it", client=client, **nothing)
    assert await options(db) == ("registered", 2, 200, 2, 2)


async def test_attempts_that_nobody_names_are_those_of_the_environment(quick: Settings) -> None:
    runs: list[int] = []

    @task(entrypoint="tests.schedules.failing")
    async def failing() -> None:
        runs.append(1)
        raise ValueError

    once = changed(quick, max_attempts=1)
    async with connect(settings=once) as client, running_worker(once):
        await register_job("it", failing, client=client)
        handle = await run_job("it", client=client)
        with pytest.raises(Exception, match="ValueError"):
            await handle.result(timeout=20)
    assert len(runs) == 1


async def test_arguments_are_merged_over_the_registered_ones(client: Client, db: Database) -> None:
    await register_job("it", both, default_kwargs={"day": "sunday", "hour": 9}, client=client)
    await run_job("it", {"hour": 10}, client=client)
    assert json.loads((await made(db))["kwargs"]) == {"day": "sunday", "hour": 10}
    await run_job("it", kwargs={"day": "friday"}, client=client)
    assert json.loads((await made(db))["kwargs"]) == {"day": "friday", "hour": 9}


async def test_another_function_can_run_under_the_name(client: Client, db: Database) -> None:
    await register_job("it", both, default_kwargs={"day": "sunday"}, queue="mail", client=client)
    await run_job("it", note.entrypoint, client=client)
    row = await made(db)
    assert (row["name"], row["entrypoint"], row["queue"]) == ("it", note.entrypoint, "mail")


async def test_one_that_is_disabled_runs_by_its_name(quick: Settings, client: Client) -> None:
    await register_job("it", both, default_kwargs={"day": "sunday"}, interval=60, client=client)
    await disable_job("it", client=client)
    async with running_worker(quick):
        handle = await run_job("it", {"hour": 1}, client=client)
        assert await handle.result(timeout=20) == "sunday 1"


async def test_one_whose_function_is_not_known_here_is_made_all_the_same(client: Client, db: Database) -> None:
    await register_job("it", "shop.elsewhere.run", default_kwargs={"a": 1}, client=client)
    await run_job("it", {"b": 2}, client=client)
    row = await made(db)
    assert (row["entrypoint"], json.loads(row["kwargs"])) == ("shop.elsewhere.run", {"a": 1, "b": 2})


async def test_a_name_that_is_not_known_is_refused(client: Client) -> None:
    with pytest.raises(UnknownJob, match="no job 'nobody' is registered, or known here"):
        await run_job("nobody", client=client)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kwargs": {"dey": 1}}, "dey"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"qeue": "mail"}, "did you mean 'queue'"),
        ({"entrypoint": {"day": "a"}, "kwargs": {"day": "b"}}, "given twice"),
    ],
)
async def test_what_cannot_work_is_refused(client: Client, db: Database, given: dict[str, Any], message: str) -> None:
    await register_job("it", both, max_attempts=5, client=client)
    with pytest.raises((BadTask, ArgumentsDoNotFit), match=message):
        await run_job("it", client=client, **given)
    assert await db.fetchval("SELECT count(*) FROM aaiclick_queue.jobs") == 0
