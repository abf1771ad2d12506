"""`register-job`, `run-job` and `registered-job …`, as a person or a script sees them."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from types import ModuleType
from typing import Any, get_args

import pytest
from click.testing import Result

from aaiclick_queue import cli as commands
from aaiclick_queue import durations
from aaiclick_queue.cli.registering import MISFIRES, OVERLAPS
from aaiclick_queue.flow.scheduler import Scheduler
from aaiclick_queue.postgres import Database
from aaiclick_queue.registered import RegisteredJob, read_registered_job
from aaiclick_queue.settings import Settings
from aaiclick_queue.testing.ageing import Clock
from aaiclick_queue.ticking import Misfire, Overlap
from tests.cli.conftest import Invoke
from tests.cli.running import MODULE, environment, program, worker
from tests.cli.test_help import complete
from tests.tools import rows

Cli = Callable[..., Coroutine[Any, Any, Result]]
DAILY = ("register-job", "shop.jobs.nightly", "--cron", "0 8 * * *", "--timezone", "Europe/Berlin")
FIRE = re.compile(r"  \w{3} (\d{4}-\d\d-\d\d) 08:00:00 \+0[12]:00   \1 0[67]:00:00 UTC")


@pytest.fixture
def cli(invoke: Invoke) -> Cli:
    """The command line beside the loop of the test."""

    async def run(*arguments: str) -> Result:
        return await asyncio.to_thread(invoke, *arguments)

    return run


async def fire(db: Database) -> None:
    while (await Scheduler(db).fire_once()).ticks:
        pass
    await db.fetch("DELETE FROM aaiclick_queue.outbox")


# Registering.


def test_the_words_of_the_options_are_those_of_the_code() -> None:
    assert (tuple(MISFIRES), tuple(OVERLAPS)) == (get_args(Misfire), get_args(Overlap))


async def test_registering_shows_the_next_three_fires_in_the_zone_and_in_utc(db: Database, cli: Cli) -> None:
    ran = await cli(*DAILY)
    assert (ran.exit_code, ran.stderr) == (0, "")
    first, *fires = ran.stdout.splitlines()
    assert first == "registered nightly: shop.jobs.nightly, 0 8 * * * Europe/Berlin"
    assert len(fires) == 3
    assert all(FIRE.fullmatch(line) for line in fires)


async def test_six_fields_have_seconds_last_and_that_is_seen(cli: Cli) -> None:
    ran = await cli("register-job", "shop.f", "--cron", "*/15 * * * * *", "--dry-run")
    assert ran.stdout.splitlines()[0] == "would register f: shop.f"
    times = [line.split()[2].split(":") for line in ran.stdout.splitlines()[1:]]
    assert {int(minute) % 15 for _, minute, _ in times} == {0}
    first, second, third = (int(one) for _, _, one in times)
    assert 1 in (second - first, third - second), "every second of that minute"
    assert (await cli("registered-job", "list")).stdout.startswith("no job is registered: ")


async def test_every_option_is_kept(db: Database, cli: Cli) -> None:
    ran = await cli(
        "register-job", "shop.f", "--name", "all", "--every", "15m", "--kwargs", '{"a": 1}', "--queue", "mail",
        "--priority", "5", "--timeout", "1h", "--max-attempts", "4", "--max-parallel", "3", "--retention", "2.5",
        "--misfire", "catch_up", "--misfire-limit", "7", "--overlap", "queue", "--jitter", "30s",
        "--starts-at", "2027-03-28", "--ends-at", "2027-03-29T12:00:00+02:00", "--timezone", "Europe/Berlin",
        "--description", "all of it", "--disabled", "--json",
    )  # fmt: skip
    assert ran.exit_code == 0, ran.stderr
    made = await read_registered_job(db, "all")
    starts_at, ends_at = datetime(2027, 3, 27, 23, tzinfo=UTC), datetime(2027, 3, 29, 10, tzinfo=UTC)
    assert (made.starts_at, made.ends_at, made.enabled, made.next_run_at) == (starts_at, ends_at, False, None)
    assert (made.interval, made.timeout, made.retention, made.jitter) == (900, 3600, 2.5, 30)
    assert (made.misfire, made.misfire_limit, made.overlap, made.default_kwargs) == ("catch_up", 7, "queue", {"a": 1})
    assert (made.queue, made.priority, made.max_attempts, made.max_parallel) == ("mail", 5, 4, 3)
    given = json.loads(ran.stdout)
    assert (given["id"], given["name"], given["source"]) == (str(made.id), "all", "api")
    assert given["next_runs"][0] == "2027-03-27T23:00:00Z"
    shown = (await cli("registered-job", "get", "all")).stdout
    assert "disabled: until it is enabled none of these fires" in shown
    for text in ("all of it", "every 15m", "catch_up, at most 7", "2.5 days", "up to 30s", "1h"):
        assert text in shown


async def test_a_name_that_is_taken_is_refused_unless_it_is_to_be_replaced(db: Database, cli: Cli) -> None:
    await cli(*DAILY)
    ran = await cli("register-job", "shop.jobs.nightly", "--every", "1h")
    assert (ran.exit_code, ran.stdout) == (1, "")
    assert ran.stderr == (
        "error: a job 'nightly' is registered already\n"
        "fix: add --replace to overwrite all of it, or give another --name\n"
    )
    ran = await cli("register-job", "shop.jobs.nightly", "--every", "1h", "--replace")
    assert ran.stdout.splitlines()[0] == "replaced nightly: shop.jobs.nightly, every 1h"
    assert (await read_registered_job(db, "nightly")).schedule == []


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("--cron", "61 8 * * *"), "minute 61 (at position 1 of \"61 8 * * *\") is not in 0–59"),
        (("--cron", "0 8 * * *", "--timezone", "Europe/Berlim"), "did you mean Europe/Berlin"),
        (("--cron", "0 8 * * *", "--every", "1h"), "--cron and --every are both given"),
        (("--every", "soon"), "is no duration"),
        (("--jitter", "soon"), "'soon' is no duration: write 90s"),
        (("--starts-at", "tomorrow"), "--starts-at 'tomorrow' is no moment"),
        (("--kwargs", "[1]"), "--kwargs is no JSON object"),
        (("--overlap", "none"), "'none' is not one of"),
        (("--cron", "0 8 30 2 *"), "never fires"),
    ],
)  # fmt: skip
async def test_what_cannot_work_ends_with_2_and_is_named(cli: Cli, given: tuple[str, ...], told: str) -> None:
    for more in ((), ("--dry-run",)):
        ran = await cli("register-job", "shop.f", *given, *more)
        assert (ran.exit_code, ran.stdout) == (2, "")
        assert told in ran.stderr
    assert (await cli("register-job", "nodots")).exit_code == 2


async def test_a_job_without_a_schedule_says_how_to_run_it(cli: Cli) -> None:
    ran = await cli("register-job", "shop.f")
    assert ran.stdout == "registered f: shop.f\nno schedule: `aaiclick-queue run-job f` runs it\n"
    assert (await cli("register-job", "shop.g", "--dry-run")).stdout.endswith("no fire lies ahead\n")


# Looking.


async def test_registered_jobs_are_listed_with_their_state(db: Database, cli: Cli) -> None:
    await cli(*DAILY, "--description", "the night")
    await cli("register-job", "shop.f", "--every", "1h", "--disabled")
    await cli("register-job", "shop.g")
    await cli("register-job", "shop.h", "--cron", "@daily", "--ends-at", "2020-01-01")
    header, *lines = (await cli("registered-job", "list")).stdout.splitlines()
    assert header.split() == ["NAME", "STATE", "SCHEDULE", "NEXT", "RUN", "SOURCE", "ENTRYPOINT", "WHAT"]
    states = {line.split()[0]: line.split()[1] for line in lines}
    assert states == {"f": "DISABLED", "g": "–", "h": "OVER", "nightly": "ENABLED"}
    assert "the night" in lines[-1]
    listed = json.loads((await cli("registered-job", "list", "--enabled", "--json")).stdout)
    assert [(one["name"], len(one["next_runs"])) for one in listed] == [("g", 0), ("h", 0), ("nightly", 3)]
    assert all(isinstance(one["id"], str) for one in listed)


async def test_the_next_fires_are_told_also_to_machines(cli: Cli) -> None:
    await cli(*DAILY)
    assert len((await cli("registered-job", "next", "nightly", "--count", "7")).stdout.splitlines()) == 7
    told = json.loads((await cli("registered-job", "next", "nightly", "--json")).stdout)
    assert len(told) == 5
    await cli("register-job", "shop.g")
    ran = await cli("registered-job", "next", "g")
    assert (ran.exit_code, ran.stderr.splitlines()[0]) == (3, "error: g has no schedule")


async def test_the_history_has_ticks_with_their_jobs(settings: Settings, db: Database, cli: Cli) -> None:
    await cli(*DAILY)
    assert (await cli("registered-job", "history", "nightly")).stdout == "no tick of nightly has been yet\n"
    clock = Clock(settings)
    for _ in range(3):
        await clock.advance(days=1)
        await fire(db)
    ran = await cli("registered-job", "history", "nightly")
    header, *lines = ran.stdout.splitlines()
    assert header.split() == ["FIRE", "AT", "(Europe/Berlin)", "OUTCOME", "JOB", "STATUS", "LATE", "TOOK", "WHAT"]
    assert len(lines) == 3
    assert all(line.split()[1:3] == ["08:00:00", "FIRED"] and line.split()[4] == "PENDING" for line in lines)
    ticks = json.loads((await cli("registered-job", "history", "nightly", "--json")).stdout)
    jobs = {str(row["id"]) for row in await rows(db, "jobs")}
    assert {tick["job_id"] for tick in ticks} == jobs
    ran = await cli("registered-job", "history", "nightly", "--limit", "1")
    older = ran.stderr.removeprefix("older ones: add ").split()
    ran = await cli("registered-job", "history", "nightly", *older, "--json")
    assert [tick["fire_at"] for tick in json.loads(ran.stdout)] == [tick["fire_at"] for tick in ticks[1:]]
    day = ticks[0]["fire_at"][:10]
    assert len(json.loads((await cli("registered-job", "history", "nightly", "--before", day, "--json")).stdout)) == 2
    shown = (await cli("registered-job", "get", "nightly")).stdout
    assert shown.count("FIRED") == 3
    listed = (await cli("job", "list", "--registered", "nightly", "--json")).stdout
    assert {one["id"] for one in json.loads(listed)} == jobs
    assert {one["run_type"] for one in json.loads(listed)} == {"SCHEDULED"}
    assert "by its schedule" in (await cli("job", "get", "nightly")).stdout
    assert (await cli("job", "list", "--registered", "nobody")).exit_code == 4


@pytest.mark.parametrize(
    "command",
    [("get",), ("enable",), ("disable",), ("delete", "--yes"), ("history",), ("next",), ("reset",),
     ("backfill", "--from", "2026-01-01", "--to", "2026-01-02", "--yes")],
)  # fmt: skip
async def test_one_that_is_not_there_ends_with_4(cli: Cli, command: tuple[str, ...]) -> None:
    ran = await cli("registered-job", command[0], "nothing", *command[1:])
    assert (ran.exit_code, ran.stdout) == (4, "")
    assert ran.stderr == (
        "error: no job 'nothing' is registered\nfix: `aaiclick-queue registered-job list` shows those that are\n"
    )


async def test_watching_ends_quietly_by_ctrl_c(db: Database, settings: Settings, cli: Cli) -> None:
    await cli(*DAILY)

    def watch() -> None:
        with program("registered-job", "list", "--json", "--watch", "0.1", env=environment(settings)) as watching:
            watching.wait_for(lambda: len(watching.lines()) >= 2)
            watching.press_ctrl_c()
            assert watching.ends() == 130
            assert "Traceback" not in watching.stderr

    await asyncio.to_thread(watch)


async def test_names_are_completed(db: Database, settings: Settings, cli: Cli) -> None:
    await cli(*DAILY)
    for words in ("registered-job get ", "run-job "):
        assert await asyncio.to_thread(complete, settings, f"aaiclick-queue {words}ni") == ["nightly"]


# Changing.


async def test_a_schedule_is_disabled_and_enabled(db: Database, cli: Cli) -> None:
    await cli(*DAILY)
    assert (await cli("registered-job", "enable", "nightly")).exit_code == 3
    assert (await cli("registered-job", "disable", "nightly", "--dry-run")).stdout == "would disable nightly\n"
    assert (await cli("registered-job", "disable", "nightly")).stdout == "disabled nightly\n"
    assert (await read_registered_job(db, "nightly")).next_run_at is None
    ran = await cli("registered-job", "disable", "nightly")
    assert (ran.exit_code, ran.stderr) == (3, "error: nightly is disabled already\n")
    ran = await cli("registered-job", "enable", "nightly")
    assert ran.stdout.startswith("enabled nightly: its next run is at ")


async def test_deleting_asks_first(db: Database, cli: Cli) -> None:
    await cli(*DAILY)
    refused = await cli("registered-job", "delete", "nightly")
    assert (refused.exit_code, "fix: add --yes" in refused.stderr) == (2, True)
    what = "registered job nightly (shop.jobs.nightly) and its history"
    assert (await cli("registered-job", "delete", "nightly", "--dry-run")).stdout == f"would delete {what}\n"
    ran = await cli("registered-job", "delete", "nightly", "--yes")
    assert (ran.stdout, ran.stderr) == (f"deleted {what}\n", "")
    assert await rows(db, "registered_jobs") == []


async def test_what_was_edited_is_given_back_to_its_code(db: Database, settings: Settings, cli: Cli) -> None:
    await cli(*DAILY)
    ran = await cli("registered-job", "reset", "nightly")
    assert (ran.exit_code, ran.stderr.splitlines()[0]) == (3, "error: no code has declared nightly")
    await cli("registered-job", "delete", "nightly", "--yes")
    await asyncio.to_thread(_start_worker, settings)
    assert (await read_registered_job(db, "hourly")).source == "code"
    assert (await cli("registered-job", "list", "--enabled")).stdout.count(" code ") == 1
    assert (await cli("registered-job", "reset", "hourly")).exit_code == 3
    await cli("registered-job", "disable", "hourly")
    shown = (await cli("registered-job", "get", "hourly")).stdout
    assert "edited: what its code says is not used until `registered-job reset`" in shown
    assert (await cli("registered-job", "reset", "hourly", "--dry-run")).stdout.startswith("would make hourly")
    ran = await cli("registered-job", "reset", "hourly")
    assert ran.stdout.startswith("hourly is what its code says again: its next run is at ")
    ran = await cli("registered-job", "delete", "hourly", "--yes")
    assert "a worker that starts registers it again" in ran.stderr


def _start_worker(settings: Settings) -> None:
    with worker(settings, "-A", "tests.cli.cli_schedules"):
        pass


# Running.


async def test_a_registered_job_is_run_by_its_name(db: Database, settings: Settings, cli: Cli) -> None:
    await cli("register-job", f"{MODULE}.add", "--name", "sum", "--kwargs", '{"a": 1, "b": 2}', "--priority", "3")
    assert (await cli("run-job", "sum", "--dry-run")).stdout == "would run sum with {}\n"
    number = (await cli("run-job", "sum", "--queue", "other", "--json")).stdout
    [row] = await rows(db, "jobs")
    assert (json.loads(number), row["priority"], row["run_type"]) == ({"id": str(row["id"])}, 3, "MANUAL")

    def run() -> list[tuple[int, str]]:
        with worker(settings):
            one = program("run-job", "sum", "--kwargs", '{"b": 5}', "--wait", env=environment(settings))
            bad = program("run-job", f"{MODULE}.fail", "--max-attempts", "1", "--wait", env=environment(settings))
            with one as good, bad as failing:
                return [(good.ends(), good.stdout), (failing.ends(), failing.stderr)]

    (code, result), (bad_code, error) = await asyncio.to_thread(run)
    assert (code, result) == (0, "6\n")
    assert bad_code == 1
    assert "no luck" in error
    await cli("job", "cancel", str(row["id"]), "--yes")


async def test_what_nobody_knows_ends_with_4(cli: Cli) -> None:
    ran = await cli("run-job", "nothing")
    assert (ran.exit_code, ran.stdout) == (4, "")
    assert (await cli("run-job", "shop.f", "--kwargs", "1")).exit_code == 2


async def test_whoever_waits_in_vain_is_told_why_and_ctrl_c_is_quiet(db: Database, settings: Settings) -> None:
    def wait() -> str:
        with program("run-job", "shop.f", "--wait", env=environment(settings)) as waiting:
            waiting.wait_for(lambda: "no worker serves the queue 'default'" in waiting.stderr)
            waiting.press_ctrl_c()
            assert waiting.ends() == 130
            return waiting.stderr

    assert "Traceback" not in await asyncio.to_thread(wait)


# Backfill.


@pytest.fixture
def filled(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Stands for the backfill: what it was asked for, and what it shall say."""
    from aaiclick_queue.operations import Operation

    seen: dict[str, Any] = {"missing": [], "status": "DONE"}

    async def missing(name: str, start: datetime, end: datetime, **_: Any) -> list[datetime]:
        seen["range"] = (name, start, end)
        found: list[datetime] = seen["missing"]
        return found

    async def fill(name: str, start: datetime, end: datetime, *, max_running: int | None, **_: Any) -> Operation:
        seen["filled"] = (name, start, end, max_running)
        now = datetime.now(UTC)
        return Operation(7, "backfill", {}, {}, seen["status"], len(seen["missing"]), None, None, None, now, now, now)

    stand_in = ModuleType("aaiclick_queue.backfilling")
    vars(stand_in).update(missing_ticks=missing, backfill=fill)
    monkeypatch.setitem(sys.modules, "aaiclick_queue.backfilling", stand_in)
    return seen


async def test_a_range_is_backfilled_in_the_zone_of_its_schedule(cli: Cli, filled: dict[str, Any]) -> None:
    await cli(*DAILY)
    asked = ("registered-job", "backfill", "nightly", "--from", "2026-01-01", "--to", "2026-01-03")
    ran = await cli(*asked, "--yes")
    assert (ran.exit_code, ran.stderr) == (3, "error: no tick of nightly is missing in that range\n")
    filled["missing"] = [datetime(2026, 1, day, 7, tzinfo=UTC) for day in (1, 2)]
    between = (datetime(2025, 12, 31, 23, tzinfo=UTC), datetime(2026, 1, 2, 23, tzinfo=UTC))
    assert filled["range"] == ("nightly", *between)
    ran = await cli(*asked, "--dry-run")
    assert ran.stdout.splitlines()[:2] == [
        "would backfill 2 ticks of nightly",
        "  Thu 2026-01-01 08:00:00 +01:00   2026-01-01 07:00:00 UTC",
    ]
    assert json.loads((await cli(*asked, "--dry-run", "--json")).stdout)[1] == "2026-01-02T07:00:00Z"
    assert (await cli(*asked)).exit_code == 2
    assert "filled" not in filled
    ran = await cli(*asked, "--max-running", "2", "--yes")
    assert ran.stdout == "backfilled nightly: 2 runs (operation 7)\n"
    assert filled["filled"] == ("nightly", *between, 2)
    filled["status"] = "CANCELLED"
    ran = await cli(*asked, "--yes")
    assert (ran.exit_code, "operation 7 is CANCELLED: 2 runs made before" in ran.stderr) == (1, True)
    assert (await cli(*asked[:-1], "2025-01-01", "--yes")).exit_code == 2


async def test_a_real_backfill_makes_the_runs_that_are_missing(db: Database, cli: Cli) -> None:
    await cli("register-job", "shop.f", "--cron", "@daily")
    now = datetime.now(UTC)
    asked = (
        "registered-job",
        "backfill",
        "f",
        "--from",
        (now - timedelta(days=3)).isoformat(),
        "--to",
        now.isoformat(),
    )
    assert (await cli(*asked, "--dry-run")).stdout.startswith("would backfill 3 ticks of f\n")
    assert (await cli(*asked, "--yes")).stdout == "backfilled f: 3 runs (operation 1)\n"
    lines = (await cli("registered-job", "history", "f")).stdout.splitlines()[1:]
    assert [line.split()[-1] for line in lines] == ["backfill"] * 3
    assert "by a backfill" in (await cli("job", "get", "f")).stdout
    assert "backfill" in (await cli("operation", "list")).stdout
    assert (await cli(*asked, "--yes")).exit_code == 3


def test_the_group_of_commands_is_whole() -> None:
    known = {"list", "get", "enable", "disable", "delete", "history", "next", "reset", "backfill"}
    assert set(commands.main.commands["registered-job"].commands) == known  # type: ignore[attr-defined]


async def test_a_schedule_that_cannot_be_read_can_be_looked_at(db: Database, cli: Cli) -> None:
    await cli(*DAILY)
    await db.fetch("UPDATE aaiclick_queue.registered_jobs SET timezone = 'Mars/Olympus'")
    shown = await cli("registered-job", "get", "nightly")
    assert (shown.exit_code, "time zone 'Mars/Olympus' is not known" in shown.stdout) == (0, True)
    assert json.loads((await cli("registered-job", "get", "nightly", "--json")).stdout)["next_runs"] == []
    await cli("registered-job", "delete", "nightly", "--yes")


@pytest.mark.parametrize("text", ["1s", "90m", "1h30m", "2d", "1d12h", "0.5s", "366d"])
def test_durations_are_shown_as_they_are_written(text: str) -> None:
    from aaiclick_queue.cli.schedule_text import lasting

    assert durations.duration(lasting(durations.duration(text) or 0)) == durations.duration(text)
    assert lasting(5400) == "1h30m"


def test_a_late_run_says_so() -> None:
    from aaiclick_queue.cli.schedule_text import _next

    late = datetime.now(UTC) - timedelta(minutes=10)
    one = RegisteredJob(
        **dict.fromkeys(RegisteredJob.__struct_fields__, None) | {"next_run_at": late}  # type: ignore[arg-type]
    )
    assert _next(one).endswith(", late by 10.0 min")
