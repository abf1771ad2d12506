"""Resources and the functions of startup and shutdown: opened before the first claim, closed after the last run."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Annotated, Any, NewType

import pytest

from aaiclick_queue import (
    Client,
    Inject,
    Settings,
    Status,
    Worker,
    current,
    injected,
    lifespan,
    on_shutdown,
    on_startup,
    resource,
    task,
)
from aaiclick_queue.errors import ArgumentsDoNotFit, BadResource, BadTask, StartupFailed, WrongContext
from aaiclick_queue.lifespan import Lifespan
from aaiclick_queue.postgres import Database
from tests.cli import running
from tests.tools import count, declarations_of_its_own, place_of, row, running_worker, until

said: list[str] = []


class Engine:
    """Something that is opened once and shared."""

    def __init__(self, name: str = "engine") -> None:
        self.name = name
        self.is_open = True


class Pool:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine


Replica = NewType("Replica", Engine)


@pytest.fixture(autouse=True)
def _declarations() -> Iterator[None]:
    said.clear()
    with declarations_of_its_own():
        yield


def declare_engine() -> None:
    @resource
    async def engine() -> AsyncIterator[Engine]:
        said.append("engine opens")
        made = Engine()
        yield made
        made.is_open = False
        said.append("engine closes")


async def ask(client: Client, asking: Any, *args: Any) -> Any:
    return await (await asking.enqueue(*args, client=client)).result(timeout=30)


async def test_a_task_is_given_what_its_worker_has_opened_once(quick: Settings, client: Client) -> None:
    declare_engine()
    seen: list[Engine] = []

    @task(entrypoint="tests.lifespan.report")
    async def report(day: int, *, engine: Inject[Engine]) -> str:
        assert engine.is_open
        seen.append(engine)
        return f"{day} by {engine.name}"

    @task(entrypoint="tests.lifespan.in_thread")
    def in_thread(engine: Inject[Engine], day: int) -> str:
        assert threading.current_thread() is not threading.main_thread()
        seen.append(engine)
        return f"{day} by {engine.name}"

    async with running_worker(quick):
        assert said == ["engine opens"]
        assert await ask(client, report, 7) == "7 by engine"
        assert await ask(client, report, 8) == "8 by engine"
        assert await ask(client, in_thread, 9) == "9 by engine"
    assert len(seen) == 3
    assert len(set(map(id, seen))) == 1
    assert said == ["engine opens", "engine closes"]


async def test_an_injected_parameter_is_no_argument(client: Client, db: Database) -> None:
    @task(entrypoint="tests.lifespan.mail")
    async def mail(client: Inject[Engine], to: str, *, subject: str = "hi") -> str:
        return f"{subject} {to} {client.name}"

    handle = await mail.enqueue("ada", client=client)
    assert (await row(db, "tasks", handle.id))["kwargs"] == '{"to": "ada"}'
    [many] = await mail.enqueue_many([{"to": "bob", "subject": "yo"}], client=client)
    assert (await row(db, "tasks", many))["kwargs"] == '{"to": "bob", "subject": "yo"}'
    with pytest.raises(ArgumentsDoNotFit, match=r"'client' of .*mail is filled in by the worker: leave it away"):
        await mail.enqueue_many([{"to": "bob", "client": 1}], client=client)
    with pytest.raises(ArgumentsDoNotFit, match="takes 1 positional argument and 2 were given"):
        mail.signature.encode(("ada", Engine()), {})
    with pytest.raises(ArgumentsDoNotFit, match=r"has no parameter 'form': it takes to, subject$"):
        mail.signature.encode((), {"form": "x"})
    with pytest.raises(ArgumentsDoNotFit, match=r"'client' of .* is filled in by the worker"):
        mail.signature.decode('{"to": "ada", "client": {}}')
    assert await mail(Engine("mine"), "ada") == "hi ada mine"  # calling it is plain Python


async def test_a_payload_cannot_take_the_place_of_a_resource(quick: Settings, client: Client, db: Database) -> None:
    declare_engine()

    @task(entrypoint="tests.lifespan.careful")
    async def careful(engine: Inject[Engine]) -> None:
        said.append("ran")

    handle = await careful.enqueue(client=client)
    await db.fetch("UPDATE aaiclick_queue.tasks SET kwargs = '{\"engine\": 1}'")
    async with running_worker(quick):
        await until(lambda: final(db, handle.id))
    assert (await row(db, "tasks", handle.id))["status"] == Status.FAILED
    assert "ran" not in said


async def final(db: Database, task_id: int) -> Any:
    return (await row(db, "tasks", task_id))["status"]


async def test_resources_that_need_others_open_after_them_and_close_before_them(
    quick: Settings, client: Client
) -> None:
    @resource
    async def pool(engine: Engine, settings: Settings) -> AsyncIterator[Pool]:
        assert settings == quick
        said.append("pool opens")
        yield Pool(engine)
        assert engine.is_open
        said.append("pool closes")

    declare_engine()

    @resource
    async def nobody_asks() -> AsyncIterator[int]:
        said.append("asked")
        yield 1

    @task(entrypoint="tests.lifespan.pooled")
    async def pooled(pool: Inject[Pool], engine: Inject[Engine]) -> bool:
        return pool.engine is engine

    async with running_worker(quick):
        assert await ask(client, pooled)
    assert said == ["engine opens", "pool opens", "pool closes", "engine closes"]


def as_generator() -> Iterator[Engine]:
    yield Engine("a generator")
    said.append("closed")


@asynccontextmanager
async def as_async_context() -> AsyncIterator[Engine]:
    yield Engine("an async context")
    said.append("closed")


@contextmanager
def as_context() -> Iterator[Engine]:
    yield Engine("a context")
    said.append("closed")


async def as_coroutine() -> Engine:
    return Engine("a coroutine")


def as_function() -> Engine:
    return Engine("a function")


def as_made() -> AbstractAsyncContextManager[Engine]:
    return as_async_context()


@pytest.mark.parametrize(
    ("function", "name", "closes"),
    [
        (as_generator, "a generator", True),
        (as_async_context, "an async context", True),
        (as_context, "a context", True),
        (as_coroutine, "a coroutine", False),
        (as_function, "a function", False),
        (as_made, "an async context", True),
    ],
)
async def test_a_resource_is_a_generator_a_context_or_a_function(
    function: Callable[[], Any], name: str, closes: bool
) -> None:
    assert resource(function) is function

    @task(entrypoint="tests.lifespan.kinds")
    async def kinds(engine: Inject[Engine]) -> None:
        pass

    async with Lifespan(Settings.load({})) as opened:
        await opened.start([kinds])
        arguments = await opened.arguments(kinds)
        assert arguments["engine"].name == name
        assert said == []
    assert said == (["closed"] if closes else [])


async def test_a_worker_may_be_given_values_instead(quick: Settings, client: Client) -> None:
    declare_engine()

    @resource
    def pool(engine: Engine) -> Pool:
        return Pool(engine)

    @task(entrypoint="tests.lifespan.faked")
    async def faked(engine: Inject[Engine], pool: Inject[Pool], replica: Inject[Replica]) -> list[str]:
        return [engine.name, pool.engine.name, replica.name]

    given = {Engine: Engine("fake"), Replica: Engine("not declared")}
    async with running_worker(quick, resources=given):
        assert await ask(client, faked) == ["fake", "fake", "not declared"]
    assert said == []


async def test_what_opens_a_resource_closes_it(quick: Settings) -> None:
    tasks: list[Any] = []

    @resource
    async def engine() -> AsyncIterator[Engine]:
        tasks.append(asyncio.current_task())
        async with asyncio.timeout(30):  # refuses to end in another task than the one it began in
            yield Engine()
        tasks.append(asyncio.current_task())

    @on_startup
    async def look(engine: Engine) -> None:
        assert engine.is_open

    async with running_worker(quick):
        pass
    assert len(tasks) == 2
    assert len(set(tasks)) == 1


async def refused(settings: Settings, error: type[Exception], text: str, db: Database) -> BaseException:
    """A worker that ends with that error before it is a worker."""
    with pytest.raises(error, match=text) as raised:
        async with asyncio.timeout(30):
            await Worker(settings).run()
    assert await count(db, "workers") == 0
    return raised.value


async def test_a_worker_refuses_to_start_without_a_resource(quick: Settings, db: Database) -> None:
    @task(entrypoint="tests.lifespan.wants")
    async def wants(engine: Inject[Engine]) -> None:
        pass

    await refused(quick, BadResource, "'engine' of task tests.lifespan.wants asks for Engine, which no resource", db)

    @resource
    async def replica() -> AsyncIterator[Replica]:
        yield Replica(Engine())

    await refused(quick, BadResource, r"\(resources give .*Replica.*\): declare one", db)

    @resource
    async def engine(pool: Pool) -> AsyncIterator[Engine]:
        yield Engine()

    await refused(quick, BadResource, "'pool' of .*engine asks for Pool", db)


async def test_two_resources_of_one_type_are_refused_and_a_type_of_its_own_parts_them(
    quick: Settings, client: Client, db: Database
) -> None:
    declare_engine()

    @task(entrypoint="tests.lifespan.both")
    async def both(engine: Inject[Engine], replica: Inject[Replica]) -> str:
        return f"{engine.name} {replica.name}"

    with declarations_of_its_own():

        @resource
        def other() -> Engine:
            return Engine("other")

        await refused(quick, BadResource, r"two resources give Engine .*engine and .*other\): .*NewType", db)

    @resource
    def replica() -> Replica:
        return Replica(Engine("replica"))

    async with running_worker(quick):
        assert await ask(client, both) == "engine replica"


async def test_resources_in_a_circle_are_refused(quick: Settings, db: Database) -> None:
    @resource
    async def engine(pool: Pool) -> AsyncIterator[Engine]:
        yield Engine()

    @resource
    async def pool(engine: Engine) -> AsyncIterator[Pool]:
        yield Pool(engine)

    await refused(quick, BadResource, r"in a circle \(.*engine → .*pool → .*engine\)", db)


async def test_a_resource_that_cannot_open_stops_the_worker_and_closes_the_others(
    quick: Settings, client: Client, db: Database
) -> None:
    declare_engine()

    @resource
    async def pool(engine: Engine) -> AsyncIterator[Pool]:
        raise ConnectionRefusedError("no such host")
        yield Pool(engine)

    @on_shutdown
    def never() -> None:
        said.append("shutdown without startup")

    @task(entrypoint="tests.lifespan.waits")
    async def waits(pool: Inject[Pool]) -> None:
        pass

    handle = await waits.enqueue(client=client)
    error = await refused(
        quick, StartupFailed, r"\.pool \(asked for by task tests.lifespan.waits, 'pool'\) raised ConnectionRefused", db
    )
    assert isinstance(error.__cause__, ConnectionRefusedError)
    assert said == ["engine opens", "engine closes"]
    assert await handle.status() is Status.QUEUED
    assert (await row(db, "ready", handle.id))["run_epoch"] == 0


async def test_startup_and_shutdown_go_around_all_runs(quick: Settings, client: Client) -> None:
    declare_engine()

    @on_startup
    async def first(engine: Inject[Engine]) -> None:
        said.append(f"first {engine.name}")

    @on_startup
    def second(missing: Pool | None = None) -> None:
        said.append(f"second {missing}")

    @on_shutdown
    async def last(engine: Engine) -> None:
        said.append(f"last {engine.is_open}")

    @on_shutdown
    def before_last() -> None:
        said.append("before last")
        raise RuntimeError("changes nothing")

    @task(entrypoint="tests.lifespan.between")
    async def between() -> None:
        said.append("ran")

    async with running_worker(quick):
        await ask(client, between)
    assert said == ["engine opens", "first engine", "second None", "ran", "before last", "last True", "engine closes"]


async def test_a_startup_that_raises_stops_the_worker(quick: Settings, db: Database) -> None:
    declare_engine()

    @on_startup
    async def warm(engine: Engine) -> None:
        raise ValueError("cold")

    await refused(quick, StartupFailed, r"on_startup: .*warm raised ValueError \(cold\)", db)
    assert said == ["engine opens", "engine closes"]


async def test_a_worker_that_is_told_to_stop_while_it_opens_ends(quick: Settings, db: Database) -> None:
    @on_startup
    async def forever() -> None:
        said.append("waiting")
        await asyncio.Event().wait()

    worker = Worker(quick)
    ran = asyncio.create_task(worker.run())
    await until(lambda: said)
    worker.stop()
    async with asyncio.timeout(30):
        await ran
    assert await count(db, "workers") == 0


async def test_a_resource_that_does_not_close_is_left(quick: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifespan, "CLOSE_SECONDS", 0.05)
    declare_engine()

    @resource
    async def pool(engine: Engine) -> AsyncIterator[Pool]:
        yield Pool(engine)
        await asyncio.Event().wait()

    @on_startup
    def use(pool: Pool) -> None:
        pass

    async with running_worker(quick):
        pass
    assert said == ["engine opens", "engine closes"]


async def test_a_resource_that_raises_at_its_end_keeps_no_other_open(
    quick: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    declare_engine()

    @resource
    def pool(engine: Engine) -> Iterator[Pool]:
        yield Pool(engine)
        raise SystemExit(3)

    @on_startup
    def use(pool: Pool) -> None:
        pass

    async with running_worker(quick):
        pass
    assert said == ["engine opens", "engine closes"]
    assert "pool raised while it closed" in caplog.text


async def test_a_task_that_comes_later_opens_what_it_needs_and_tries_again(quick: Settings, client: Client) -> None:
    tries: list[int] = []
    async with running_worker(quick):

        @resource
        async def engine() -> AsyncIterator[Engine]:
            tries.append(1)
            if len(tries) == 1:
                raise ConnectionError("not yet")
            yield Engine("late")
            said.append("closed")

        @task(entrypoint="tests.lifespan.late", retry_delay=0.01)
        async def late(engine: Inject[Engine]) -> tuple[str, int]:
            return engine.name, current().attempt

        assert await ask(client, late) == ("late", 2)
        assert await ask(client, late) == ("late", 1)
        assert len(tries) == 2
    assert said == ["closed"]


async def test_a_run_in_a_process_of_its_own_opens_its_own(
    quick: Settings, client: Client, db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lifespan_alone.py").write_text(ALONE)
    monkeypatch.syspath_prepend(str(tmp_path))
    import lifespan_alone  # type: ignore[import-not-found]

    handle = await lifespan_alone.pid.enqueue(client=client)
    await db.fetch("UPDATE aaiclick_queue.ready SET lost_count = 2")
    async with running_worker(quick):
        opened_in, ran_in = await handle.result(timeout=30)
    assert opened_in == ran_in != os.getpid()
    del sys.modules["lifespan_alone"]


async def test_a_run_in_a_process_of_its_own_is_tried_again_when_its_resource_does_not_open(
    quick: Settings, client: Client, db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = ALONE.replace(
        "yield", "if os.getppid() == int(os.environ['WORKER']):\n        raise OSError('busy')\n    yield"
    )
    (tmp_path / "lifespan_alone_broken.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("WORKER", str(os.getpid()))
    import lifespan_alone_broken  # type: ignore[import-not-found]

    handle = await lifespan_alone_broken.pid.enqueue(client=client)
    await db.fetch("UPDATE aaiclick_queue.ready SET lost_count = 2")
    async with running_worker(quick):
        await until(lambda: delayed(db, handle.id))
    place = await row(db, "delayed", handle.id)
    assert (place["reason"], place["attempt"], place["lost_count"]) == ("retry", 1, 2)
    del sys.modules["lifespan_alone_broken"]


async def test_what_a_process_opens_for_its_first_run_is_not_in_the_time_of_that_run(
    quick: Settings, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = ALONE.replace("yield", "await asyncio.sleep(2)\n    yield").replace("import os", "import asyncio, os")
    (tmp_path / "lifespan_alone_slow.py").write_text(text.replace("@task", '@task(isolation="process")'))
    monkeypatch.syspath_prepend(str(tmp_path))
    import lifespan_alone_slow  # type: ignore[import-not-found]

    async with running_worker(quick):
        handle = await lifespan_alone_slow.pid.options(timeout=1, max_attempts=1).enqueue(client=client)
        opened_in, ran_in = await handle.result(timeout=30)
    assert opened_in == ran_in != os.getpid()
    del sys.modules["lifespan_alone_slow"]


async def delayed(db: Database, task_id: int) -> bool:
    return "delayed" in await place_of(db, task_id)


async def test_a_resource_that_breaks_while_it_is_open_is_told(
    quick: Settings, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    broken = asyncio.Event()

    @resource
    async def group() -> AsyncIterator[asyncio.TaskGroup]:
        async def breaks() -> None:
            await broken.wait()
            raise ValueError("in the background")

        async with asyncio.TaskGroup() as group:
            group.create_task(breaks())
            yield group

    @on_startup
    def use(group: asyncio.TaskGroup) -> None:
        pass

    @task(entrypoint="tests.lifespan.goes_on")
    async def goes_on() -> None:
        pass

    async with running_worker(quick):
        broken.set()
        await until(lambda: "group raised while it was open" in caplog.text)
        await ask(client, goes_on)


ALONE = """
import os
from aaiclick_queue import Inject, on_startup, resource, task
from collections.abc import AsyncIterator

@resource
async def number() -> AsyncIterator[int]:
    yield os.getpid()

@task
async def pid(opened_in: Inject[int]) -> tuple[int, int]:
    return opened_in, os.getpid()
"""


def test_a_worker_process_closes_its_resources_after_the_last_run_when_it_is_terminated(
    settings: Settings, tmp_path: Path
) -> None:
    (tmp_path / "lifespan_shop.py").write_text(SHOP)
    environ = running.environment(settings) | {
        "LINES": str(tmp_path / "lines"),
        "PYTHONPATH": f"{tmp_path}:{Path.cwd()}",
    }
    enqueue = running.run("task", "enqueue", "lifespan_shop.slow", "--kwargs", "{}", env=environ)
    assert enqueue.returncode == 0, enqueue.stderr
    with running.program("worker", "-A", "lifespan_shop", env=environ) as worker:
        lines = tmp_path / "lines"
        worker.wait_for(lambda: lines.exists() and "begins" in lines.read_text())
        worker.process.send_signal(signal.SIGTERM)
        worker.wait_for(lambda: "stopping" in worker.stdout)
        (tmp_path / "lines.go").touch()
        assert worker.ends() == 0, worker.stderr
        assert lines.read_text().split() == ["opens", "before", "begins", "ends", "after", "closes"]


SHOP = """
import asyncio, os
from pathlib import Path
from typing import Annotated
from collections.abc import AsyncIterator
from aaiclick_queue import Inject, Middleware, resource, task, use

LINES = Path(os.environ["LINES"])

def say(what):
    with LINES.open("a") as file:
        file.write(what + "\\n")

@resource
async def lines() -> AsyncIterator[Path]:
    say("opens")
    yield LINES
    say("closes")

class Around(Middleware):
    async def execute(self, run, proceed):
        say("before")
        outcome = await proceed()
        say("after")
        return outcome

use(Around())

@task
async def slow(path: Inject[Path]) -> None:
    say("begins")
    while not path.with_suffix(".go").exists():
        await asyncio.sleep(0.01)
    say("ends")
"""


def test_a_worker_process_with_a_broken_resource_says_so_and_ends(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "lifespan_broken.py").write_text(SHOP.replace('say("opens")', 'raise OSError("disk: full")'))
    (tmp_path / "lifespan_lacking.py").write_text(SHOP.replace("@resource\n", ""))
    environ = running.environment(settings) | {"LINES": "lines", "PYTHONPATH": f"{tmp_path}:{Path.cwd()}"}
    broken = running.run("worker", "-A", "lifespan_broken", env=environ)
    assert broken.returncode == 1
    assert "error: resource lifespan_broken.lines (asked for by task lifespan_broken.slow, 'path')" in broken.stderr
    assert "raised OSError (disk: full)\nfix: mend it; -v shows the traceback" in broken.stderr
    lacking = running.run("worker", "-A", "lifespan_lacking", env=environ)
    assert lacking.returncode == 2
    assert (
        "error: parameter 'path' of task lifespan_lacking.slow asks for Path, which no resource gives" in lacking.stderr
    )
    assert "fix: declare one, @resource on a function that is annotated -> AsyncIterator[Path]" in lacking.stderr


async def test_the_default_of_an_injected_parameter_says_where_it_was_used() -> None:
    @task(entrypoint="tests.lifespan.defaulted")
    async def defaulted(day: int, engine: Inject[Engine] = injected) -> str:
        return engine.name

    assert await defaulted(1, Engine("mine")) == "mine"
    with pytest.raises(WrongContext, match=r"\.name was asked for"):
        await defaulted(1)
    assert defaulted.signature.parameters == ("day",)


def test_a_mark_that_says_nothing_is_refused() -> None:
    @task(entrypoint="tests.lifespan.bare")
    async def bare(engine: Inject) -> None:  # type: ignore[type-arg]
        pass

    @task(entrypoint="tests.lifespan.inside")
    async def inside(engine: list[Inject[Engine]] | None) -> None:
        pass

    with pytest.raises(BadTask, match="annotated Inject without a type"):
        bare.signature.encode((), {})
    with pytest.raises(BadTask, match=r"'engine' of .* has Inject inside of another annotation"):
        inside.signature.encode((), {})


def test_a_name_beside_the_type_parts_resources_too() -> None:
    @task(entrypoint="tests.lifespan.named")
    async def named(engine: Inject[Annotated[Engine, "replica"]]) -> None:
        pass

    assert named.signature.injected == {"engine": Annotated[Engine, "replica"]}


def test_what_can_never_be_a_resource_is_refused_where_it_is_declared() -> None:
    with pytest.raises(BadResource, match="@resource takes a function"):
        resource(Engine)  # type: ignore[type-var, unused-ignore]
    with pytest.raises(BadResource, match="take resources by name"):

        @on_startup
        def anything(**engines: Engine) -> None:
            pass


@pytest.mark.parametrize("annotation", [None, Any, "AsyncIterator"])
async def test_a_resource_says_what_it_gives(annotation: Any) -> None:
    async def engine() -> Any:
        yield Engine()

    engine.__annotations__["return"] = annotation
    resource(engine)
    with pytest.raises(BadResource, match="does not say what it gives"):
        await Lifespan(Settings.load({})).start([])
