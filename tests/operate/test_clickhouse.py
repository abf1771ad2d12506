"""ClickHouse: lines of runs are there when their files are not, and what is pruned is there before it is gone."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from aaiclick_queue import Settings, connect
from aaiclick_queue.cli import together
from aaiclick_queue.clickhouse import ClickHouseAway, Store, store_of
from aaiclick_queue.doctor import examine
from aaiclick_queue.errors import SettingsError
from aaiclick_queue.flow.archive import Archive
from aaiclick_queue.flow.prune import DAY, Policy, Pruner
from aaiclick_queue.flow.prune_by_hand import prune_all
from aaiclick_queue.history import History, history_of
from aaiclick_queue.log_lines import write_line
from aaiclick_queue.log_shipping import Shipper
from aaiclick_queue.log_sink import About
from aaiclick_queue.outcome import Error, Failed, Succeeded
from aaiclick_queue.postgres import Database
from aaiclick_queue.server import create_app
from aaiclick_queue.server.metrics import Collector
from aaiclick_queue.task_logs import LogPage, download_log, list_log_attempts, read_logs
from tests.cli.running import PROJECT, environment
from tests.dag.test_prune_jobs import finished
from tests.flow.test_prune import ended as ended_tasks
from tests.operate import log_tasks as tasks
from tests.operate.conftest import ClickHouse
from tests.tools import changed, claim, count, end, put_one, register_worker, running_worker, until

MODULE = "tests.operate.log_tasks"
WEEK = Policy(7 * DAY, 30 * DAY)


@pytest.fixture
def settings(settings: Settings, clickhouse: ClickHouse) -> Settings:
    return changed(settings, clickhouse_url=clickhouse.url)


@pytest.fixture
def elsewhere(settings: Settings, tmp_path: Path) -> Settings:
    """The settings of a host that has none of the files."""
    return changed(settings, log_dir=tmp_path / "none")


async def there(elsewhere: Settings, task_id: int, lines: int) -> LogPage:
    """The page when ClickHouse has so many lines."""
    page: LogPage = await until(
        lambda: len((page := read_logs(elsewhere, task_id, limit=10_010)).lines) >= lines and page
    )
    return page


def kept(settings: Settings, query: str, table: str = "task_history") -> Sequence[Sequence[Any]]:
    return store_of(settings).read(query, {}, table=table)


async def test_lines_are_read_from_clickhouse_where_no_file_is_here(settings: Settings, elsewhere: Settings) -> None:
    async with connect(settings=settings) as client, running_worker(settings):
        handle = await tasks.talk.enqueue(client=client)
        await handle.result(30)
        page = await there(elsewhere, handle.id, 5)
    here = read_logs(settings, handle.id)
    assert (here.source, page.source, page.attempt) == ("file", "clickhouse", 1)
    assert page.lines == here.lines
    first = read_logs(elsewhere, handle.id, limit=2)
    rest = read_logs(elsewhere, handle.id, after=first.after)
    assert [*first.lines, *rest.lines] == here.lines
    assert (first.is_end, rest.is_end) == (False, True)
    assert [line.text for line in read_logs(elsewhere, handle.id, least="ERROR").lines] == [here.lines[3].text]
    assert [one.attempt for one in list_log_attempts(elsewhere, handle.id)] == [1]
    written = b"".join(download_log(settings, handle.id) or []).split(b"\n", 1)[1]
    assert b"".join(download_log(elsewhere, handle.id) or []) == written


async def test_lines_of_a_child_are_there_and_no_file_stays_where_none_is_wanted(settings: Settings) -> None:
    settings = changed(settings, log_files=False)
    async with connect(settings=settings) as client, running_worker(settings, modules=(MODULE,)):
        apart = await tasks.apart.enqueue(lines=30, client=client)
        talk = await tasks.talk.enqueue(client=client)
        await apart.result(60)
        await talk.result(60)
        await there(settings, talk.id, 5)
        page = await until(lambda: (page := read_logs(settings, apart.id)).source == "clickhouse" and page)
    assert [line.text for line in page.lines] == [f"apart {number}" for number in range(30)]
    assert not [path for path in settings.log_folder.rglob("*") if path.is_file()]


async def test_a_flood_is_bounded_there_too(settings: Settings, elsewhere: Settings) -> None:
    async with connect(settings=settings) as client, running_worker(settings):
        handle = await tasks.many.enqueue(lines=25_000, client=client)
        await handle.result(60)
        page = await there(elsewhere, handle.id, 10_001)
    numbers = [int(line.text) for line in page.lines if line.stream != "mark"]
    assert numbers == [*range(5_000), *range(20_000, 25_000)]
    assert [line.text for line in page.lines if line.stream == "mark"] == ["… 15,000 lines left out …"]


async def test_while_clickhouse_is_away_tasks_go_on_and_their_lines_come_later(
    settings: Settings, elsewhere: Settings, clickhouse: ClickHouse, caplog: pytest.LogCaptureFixture
) -> None:
    clickhouse.go()
    async with connect(settings=settings) as client, running_worker(settings):
        handle = await tasks.talk.enqueue(client=client)
        await handle.result(30)
        await until(lambda: "do not reach ClickHouse" in caplog.text)
        assert "secret" not in caplog.text
        with pytest.raises(ClickHouseAway):
            read_logs(elsewhere, handle.id)
        clickhouse.come()
        await there(elsewhere, handle.id, 5)


async def test_while_clickhouse_is_away_the_page_of_a_task_says_so_and_its_log_is_a_503(
    elsewhere: Settings, db: Database, clickhouse: ClickHouse
) -> None:
    worker_id = await register_worker(db)
    ran = await put_one(db)
    [run] = await claim(db, worker_id)
    await end(db, run, Failed(Error("ValueError", "no luck")))
    waits = await put_one(db)
    clickhouse.go()
    app = create_app(elsewhere, auth="open")
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60) as http,
    ):
        of_ran, of_waiting = [await http.get(f"/tasks/{one}") for one in (ran, waits)]
        log = await http.get(f"/api/v1/tasks/{ran}/logs")
    assert (of_ran.status_code, of_waiting.status_code, log.status_code) == (200, 200, 503)
    assert "Its log cannot be read now: ClickHouse at" in of_ran.text
    assert "secret" not in of_ran.text
    assert "It has not run yet." in of_waiting.text
    assert "ClickHouse" not in of_waiting.text
    assert log.headers["retry-after"]


def test_what_waits_for_clickhouse_is_bounded_and_what_is_dropped_is_counted(
    settings: Settings, elsewhere: Settings, clickhouse: ClickHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aaiclick_queue.log_shipping.MOST", 10)
    monkeypatch.setattr("aaiclick_queue.log_shipping.SHIP_SECONDS", 0.05)
    clickhouse.go()
    shipper = Shipper(Store(settings))
    task_id = time.time_ns()
    for number in range(25):
        record = write_line(time.time(), "INFO", "shop", str(number))
        shipper.ship(About(task_id, None, 1, 1, 1), number, [record])
    assert shipper.lost == 15
    clickhouse.come()
    shipper.close()
    lines = read_logs(elsewhere, task_id).lines
    assert [line.text for line in lines if line.stream != "mark"] == [str(number) for number in range(15, 25)]
    assert lines[0].text == "… 15 lines were lost: ClickHouse did not take them …"


async def test_the_archive_is_up_while_it_answers(settings: Settings, db: Database, clickhouse: ClickHouse) -> None:
    assert (await Collector(db).read())["up"]["archive",] == 1
    clickhouse.go()
    assert (await Collector(db).read())["up"]["archive",] == 0
    async with Database(changed(settings, clickhouse_url="chdb:///nowhere"), size=1) as embedded:
        assert ("archive",) not in (await Collector(embedded).read())["up"]


# History.


async def test_a_pruned_task_is_in_the_history_with_its_attempts(settings: Settings, db: Database) -> None:
    failed = Failed(Error("Oops", "it broke"))
    gone = [*await ended_tasks(db, [Succeeded("1")], days=8), *await ended_tasks(db, [failed], days=31)]
    stays = await ended_tasks(db, [Succeeded("2")], days=6)
    pruned = await prune_all(db, WEEK, archive=history_of(settings))
    assert (pruned.completed, pruned.failed) == (1, 1)
    ids = ", ".join(map(str, [*gone, *stays]))
    columns = "id, status, result, error_type, attempts"
    rows = kept(settings, f"SELECT {columns} FROM task_history WHERE id IN ({ids}) ORDER BY id")
    assert [tuple(row[:4]) for row in rows] == [
        (gone[0], "COMPLETED", "1", ""),
        (gone[1], "FAILED", "", "Oops"),
    ]
    assert await count(db, "tasks") == 1
    pruner = Pruner(db, WEEK, archive=history_of(settings))
    await pruner.prune_once()
    assert await count(db, "tasks") == 1


async def test_a_pruned_job_is_in_the_history_with_all_of_its_tasks(settings: Settings, db: Database) -> None:
    job = await finished(db, days=8)
    total = await count(db, "tasks")
    assert (await prune_all(db, WEEK, archive=history_of(settings))).jobs == 1
    assert await count(db, "jobs") == await count(db, "tasks") == 0
    [(tasks_kept,)] = kept(settings, f"SELECT count() FROM task_history FINAL WHERE job_id = {job.id}")
    assert tasks_kept == total
    [(status,)] = kept(settings, f"SELECT status FROM job_history WHERE id = {job.id}", "job_history")
    assert status == "COMPLETED"


async def test_what_is_pruned_over_http_is_in_the_history_first(settings: Settings, db: Database) -> None:
    [gone] = await ended_tasks(db, [Succeeded("1")], days=8)
    app = create_app(settings, auth="open")
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost/api/v1") as client,
    ):
        counted = (await client.post("/prune", json={"dry_run": True})).json()
        assert await count(db, "tasks") == counted["tasks"] == 1
        pruned = (await client.post("/prune", json={})).json()
    assert (pruned["completed"], pruned["done"], pruned["after"]) == (1, True, None)
    assert await count(db, "tasks") == 0
    [(found,)] = kept(settings, f"SELECT count() FROM task_history WHERE id = {gone}")
    assert found == 1


def test_the_loops_beside_a_server_keep_history_and_examine(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(together, "Background", lambda *_, **named: given.update(named))
    together._background(settings, Database(settings, size=1), None)
    assert isinstance(given["archive"], History)
    assert given["examine"] is examine


async def test_while_the_history_takes_nothing_nothing_is_pruned_until_patience_is_over(
    settings: Settings, db: Database, clickhouse: ClickHouse, caplog: pytest.LogCaptureFixture
) -> None:
    archive: Archive | None = history_of(settings)
    patient = await ended_tasks(db, [Succeeded("1")], days=13)
    job = await finished(db, days=8)
    before = await count(db, "tasks")
    await ended_tasks(db, [Succeeded("2")], days=15)
    clickhouse.go()
    with caplog.at_level(logging.ERROR):
        await prune_all(db, WEEK, archive=archive)
    assert await count(db, "tasks") == before
    assert "nothing is pruned, because the history takes nothing" in caplog.text
    await db.fetch("UPDATE aaiclick_queue.jobs SET pruned_at = now() - interval '8 days' WHERE id = $1", job.id)
    await prune_all(db, WEEK, archive=archive)
    assert await count(db, "jobs") == 0
    assert await count(db, "tasks") == 1
    clickhouse.come()
    await prune_all(db, WEEK, archive=archive)
    assert await count(db, "tasks") == 0
    [(found,)] = kept(settings, f"SELECT count() FROM task_history WHERE id = {patient[0]}")
    assert found == 1


# The embedded engine.

EMBEDDED = """
import sys, time
from aaiclick_queue.log_lines import write_line
from aaiclick_queue.log_sink import About
from aaiclick_queue.log_shipping import Shipper
from aaiclick_queue.clickhouse import store_of
from aaiclick_queue.settings import Settings
from aaiclick_queue.task_logs import read_logs

settings = Settings.load({}, clickhouse_url="chdb://" + sys.argv[1], log_dir="/nowhere")
shipper = Shipper(store_of(settings))
shipper.ship(About(7, None, 1, 1, 1), 0, [write_line(time.time(), "INFO", "shop", f"line {n}") for n in range(3)])
shipper.close()
shipper._thread.join()  # the engine may take a while to start
print([line.text for line in read_logs(settings, 7).lines], read_logs(settings, 8).source)
store_of(settings).close()
"""


def test_the_embedded_engine_takes_and_gives_lines(engine: None, tmp_path: Path) -> None:
    given = [sys.executable, "-c", EMBEDDED, str(tmp_path / "db")]
    ran = subprocess.run(given, cwd=PROJECT, env=environment(), capture_output=True, text=True, timeout=60)
    assert ran.stdout.strip() == "['line 0', 'line 1', 'line 2'] none", ran.stderr


@pytest.mark.parametrize("url", ["ftp://host/db", "host:8123"])
def test_an_address_that_is_none_is_refused_at_the_start(url: str) -> None:
    with pytest.raises(SettingsError, match="CLICKHOUSE_URL"):
        Settings.load({}, clickhouse_url=url)
