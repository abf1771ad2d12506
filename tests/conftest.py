"""What every test may ask for: a fresh migrated database, settings for it, a Redis; and the rules of a run."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from aaiclick_queue import doctor
from aaiclick_queue.job_checks import JOB_CHECKS
from aaiclick_queue.meters import METERS
from aaiclick_queue.postgres import Database
from aaiclick_queue.settings import PREFIX, Settings
from tests.servers import Databases, find_tool, new_folder
from tests.wires.redis_server import OwnRedis

# xdist's workers inherit the environment as it is after this file was loaded in the process that starts them.
POSTGRES_URL, REDIS_URL = "TESTS_POSTGRES_URL", "TESTS_REDIS_URL"
NEEDS = "needs the tool "

for variable in [name for name in os.environ if name.startswith(PREFIX)]:
    value = os.environ.pop(variable)
    if variable in (PREFIX + "POSTGRES_URL", PREFIX + "REDIS_URL"):
        os.environ["TESTS_" + variable.removeprefix(PREFIX)] = value


# `make test &` is started deaf to Ctrl-C, and with it what the tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Those that take longest, begun first: one that is begun last is waited for alone.
LONG = [
    "chaos/test_chaos",
    "races/test_meetings",
    "server/test_browser",
    "faults/test_workers",
    "models/test_models",
    "testing/test_plugin",
    "project/test_documentation",
    "flow/test_children",
    "races/test_clear",
    "project/test_autoscaling",
    "cli/test_worker",
    "dag/test_cases",
    "races/test_keys",
    "project/test_no_code_from_data",
    "races/test_growing",
    "server/test_places",
    "plans/test_plans",
    "races/test_jobs",
    "schedules/test_fleet_of_schedulers",
    "models/test_stateful",
    "project/test_readme",
    "faults/test_jobs",
    "fleet/test_rolling",
    "cli/test_reload",
    "fleet/test_kills",
    "faults/test_limits",
    "faults/test_crowd",
    "security/test_roles",
    "wires/test_embedded",
    "faults/test_servers",
    "dag/test_random",
    "models/test_stateful_jobs",
    "faults/test_standby",
    "races/test_limits",
    "bench/test_bench_runs",
    "server/test_stream",
    "cli/test_burst",
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    places = {str(here / f"{name}.py"): at for at, name in enumerate(LONG)}
    items.sort(key=lambda item: places.get(str(item.path), len(LONG)))


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("needs_tool"):
        if find_tool(marker.args[0]) is None:
            pytest.skip(f"{NEEDS}{marker.args[0]}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for report in terminalreporter.stats.get("skipped", []):
        why = report.longrepr[2].removeprefix("Skipped: ") if isinstance(report.longrepr, tuple) else ""
        if why.startswith(NEEDS):
            terminalreporter.write_line(f"not run here: {report.nodeid} — {why}")


@pytest.fixture(autouse=True)
def counts_of_its_own() -> Iterator[None]:
    """A server or worker counts in its whole process: for the tests after it in this one it never did."""
    yield
    METERS.on = False
    METERS.clear()


@pytest.fixture
def home() -> Iterator[Path]:
    """An empty folder in which an embedded Postgres may live, as root too."""
    folder = new_folder()
    yield folder / "home"
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def aaiclick_queue_server() -> str | None:
    """The server that the environment named before it was cleaned above."""
    return os.environ.get(POSTGRES_URL)


@pytest.fixture(scope="session")
def databases(aaiclick_queue_databases: Databases) -> Databases:
    """The server of this run: the given one, else an embedded one that all processes of the run share."""
    return aaiclick_queue_databases


@pytest.fixture(scope="session")
def template(aaiclick_queue_template: str) -> str:
    """A migrated database that each test's own is copied from."""
    return aaiclick_queue_template


@pytest.fixture
def empty_postgres_url(databases: Databases) -> Iterator[str]:
    """A database without any table."""
    with databases.new() as name:
        yield databases.url(name)


@pytest.fixture
def postgres_url(databases: Databases, template: str) -> Iterator[str]:
    """A migrated database of the test's own."""
    with databases.new(template) as name:
        yield databases.url(name)


@pytest.fixture
def settings(
    request: pytest.FixtureRequest, postgres_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Settings]:
    """Postgres alone, with a short lease; when the test is over the doctor looks at what it left."""
    logs = tmp_path_factory.mktemp("logs")
    settings = Settings.load({}, postgres_url=postgres_url, lease_seconds=2, log_dir=logs)
    yield settings
    if request.node.get_closest_marker("breaks_invariants") is None:
        asyncio.run(_invariants_hold(settings))


@pytest.fixture
def redis_settings(settings: Settings, redis_url: str) -> Settings:
    """The same with Redis, under keys of the test's own."""
    return settings.model_copy(update={"redis_url": redis_url, "redis_prefix": f"test-{uuid.uuid4().hex[:12]}"})


@pytest.fixture
async def db(settings: Settings) -> AsyncIterator[Database]:
    async with Database(settings, size=4) as db:
        yield db


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """A real Redis: the given one, else one for each process of the run."""
    if given := os.environ.get(REDIS_URL):
        yield given
        return
    with OwnRedis() as server:
        yield server.url


# Most checks of the doctor in one statement, as a database is asked after each test: 28 statements cost a third more.
TOGETHER = [one for one in doctor.CHECKS if one not in JOB_CHECKS and "$1" not in one.sql]
ALONE = [one for one in doctor.CHECKS if one not in JOB_CHECKS and "$1" in one.sql]
SUSPECT = " UNION ALL ".join(f"SELECT $${one.name}$$ AS what FROM ({one.sql}) AS found" for one in TOGETHER)


async def _invariants_hold(settings: Settings) -> None:
    async with Database(settings, size=1) as db:
        if await _is_suspect(db, settings):
            broken = [finding for finding in await doctor.check(db) if not finding.ok]
            assert not broken, f"the doctor found after the test: {broken}"


async def _is_suspect(db: Database, settings: Settings) -> bool:
    """Whether the doctor is to be asked; what he looks at twice, or reads closer, he may still find well."""
    async with db.transaction() as tx:
        await tx.fetch(doctor.PLANS)
        if not (await tx.fetch(doctor.NO_JOBS))[0]["none"] or await tx.fetch(SUSPECT):
            return True
        return any([await tx.fetch(one.sql, *one.arguments(settings)) for one in ALONE])
