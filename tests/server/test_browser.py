"""The dashboard in a real Chromium, while a real worker works."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest
import uvicorn
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

from aaiclick_queue import Settings
from aaiclick_queue.server import create_app
from aaiclick_queue.settings import PREFIX
from tests.server.seeding import Seeded, seed
from tests.servers import Databases, find_tool
from tests.tools import Proxy, changed

pytestmark = [pytest.mark.needs_tool("chromium"), pytest.mark.timeout(300)]

WIDTHS = (360, 768, 1440)
FAILED_OF_JOB = "SELECT id FROM aaiclick_queue.tasks WHERE job_id = %s AND status = 'FAILED'"
PATIENCE = 20_000
expect.set_options(timeout=PATIENCE)


@dataclass
class Site:
    """A server, its database, and a worker process that can be killed."""

    base: str
    settings: Settings
    ids: Seeded
    database: psycopg.Connection[Any]
    worker: subprocess.Popen[bytes] | None = None
    trouble: list[str] = field(default_factory=list)

    def one(self, sql: str, *given: Any) -> Any:
        """One value of the database."""
        row = self.database.execute(sql, given).fetchone()
        return row[0] if row else None

    def until(self, sql: str, *given: Any, so: Callable[[Any], bool] = bool) -> Any:
        """The value as soon as it is so."""
        deadline = time.monotonic() + 30
        while not so(value := self.one(sql, *given)):
            assert time.monotonic() < deadline, (sql, given, value)
            time.sleep(0.05)
        return value

    def status(self, task_id: str) -> Any:
        return self.one("SELECT status FROM aaiclick_queue.tasks WHERE id = %s", int(task_id))

    def start_worker(self) -> None:
        environment = {
            PREFIX + "POSTGRES_URL": str(self.settings.postgres_url),
            PREFIX + "HOME": str(self.settings.home),
            PREFIX + "LEASE_SECONDS": "2",
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": ":".join(sys.path),
        }
        command = [
            sys.executable,
            "-m",
            "aaiclick_queue",
            "worker",
            "-A",
            "tests.server.declared",
            "-Q",
            "default,mail,slow",
        ]
        self.worker = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.until("SELECT count(*) FROM aaiclick_queue.workers WHERE status = 'ACTIVE' AND pid = %s", self.worker.pid)

    def enqueue(self, entrypoint: str, kwargs: str = "{}", **options: str) -> str:
        """A task, by the command line."""
        environment = {PREFIX + "POSTGRES_URL": str(self.settings.postgres_url), "PYTHONPATH": ":".join(sys.path)}
        more = [word for name, value in options.items() for word in (f"--{name}", value)]
        command = [sys.executable, "-m", "aaiclick_queue", "task", "enqueue", entrypoint, "--kwargs", kwargs, *more]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return str(re.findall(r"\d{15,}", done.stdout)[0])


@pytest.fixture(scope="module")
def site(databases: Databases, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with databases.new(template) as name:
        home = tmp_path_factory.mktemp("home")
        settings = Settings.load({}, postgres_url=databases.url(name), lease_seconds=2, home=home)
        ids = asyncio.run(seed(settings))
        with _served(settings) as base, psycopg.connect(databases.url(name), autocommit=True) as database:
            found = Site(base, settings, ids, database)
            found.start_worker()
            yield found
            if found.worker is not None:
                found.worker.kill()
                found.worker.wait()


@contextlib.contextmanager
def _served(settings: Settings) -> Iterator[str]:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
    app = create_app(settings, auth="open", label="STAGING", colour="amber")
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join(20)


@pytest.fixture(scope="module")
def browser(site: Site) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_tool("chromium"), args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(site: Site, browser: Browser) -> Iterator[Page]:
    """A tab in which nothing goes wrong and from which no request leaves the host."""
    with _tab(site, browser) as page:
        yield page


@contextlib.contextmanager
def _tab(site: Site, browser: Browser, **options: Any) -> Iterator[Page]:
    context = browser.new_context(base_url=site.base, **{"viewport": {"width": 1440, "height": 900}} | options)
    context.set_default_timeout(PATIENCE)
    page, trouble = context.new_page(), list[str]()
    page.on(
        "console",
        lambda told: trouble.append(f"{told.text} {told.location}") if told.type in ("error", "warning") else None,
    )
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("request", lambda asked: None if asked.url.startswith(site.base) else trouble.append(asked.url))
    yield page
    context.close()
    assert trouble == []


def paths(site: Site) -> list[str]:
    fingerprint = site.one("SELECT fingerprint FROM aaiclick_queue.failures LIMIT 1")
    worker = site.one("SELECT id FROM aaiclick_queue.workers WHERE status = 'ACTIVE'")
    ids = site.ids
    return [
        *(
            "/",
            "/queues",
            "/queues/mail",
            "/tasks",
            "/jobs?like=etl",
            f"/jobs/{ids.failed_job}?task={site.one(FAILED_OF_JOB, int(ids.failed_job))}",
            "/failures",
        ),
        *(f"/failures/{fingerprint}", f"/tasks/{ids.failed_task}", f"/tasks/{ids.held_task}", "/workers", "/schedules"),
        *(
            f"/workers/{worker}",
            "/schedules/nightly_rollup",
            "/limits",
            "/outbox?checks=1",
            "/operations",
            "/audit",
            "/tasks/1",
        ),
    ]


def test_no_page_has_a_barrier_for_anybody_or_is_wider_than_its_window(site: Site, browser: Browser) -> None:
    found: dict[str, Any] = {}
    with _tab(site, browser, color_scheme="light", reduced_motion="reduce") as page:
        for path in paths(site)[:-1]:
            page.goto(path)
            found |= barriers(page, f"{path} in light")
            page.emulate_media(color_scheme="dark")
            found |= barriers(page, f"{path} in dark", options={"runOnly": ["color-contrast"]})  # nothing else differs
            page.emulate_media(color_scheme="light")
            for width in WIDTHS:
                page.set_viewport_size({"width": width, "height": 900})
                if (more := page.evaluate("document.documentElement.scrollWidth - innerWidth")) > 0:
                    found[f"{path} at {width}"] = more
    assert found == {}


def test_names_of_any_length_and_queues_that_stand_still_fit_every_window(site: Site, browser: Browser) -> None:
    served = "UPDATE aaiclick_queue.workers SET queues = queues || %s WHERE status = 'ACTIVE' RETURNING 1"
    found: dict[str, Any] = {}
    with _tab(site, browser) as page:
        for name in ("still", "a-queue-of-a-name-that-nobody-would-like-to-type-twice-a-day"):
            number = made(page, "tasks", entrypoint=f"shop.{'very_' * 12}long.name", queue=name)
            assert site.one(served, [name])
            for path in ("/", "/queues", f"/queues/{name}", f"/tasks?queue={name}", f"/tasks/{number}"):
                page.goto(path)
                for width in WIDTHS:
                    page.set_viewport_size({"width": width, "height": 900})
                    if (more := page.evaluate("document.documentElement.scrollWidth - innerWidth")) > 0:
                        found[f"{path} at {width}"] = more
                    narrow = page.locator("a.main-link:visible").evaluate_all(
                        "links => links.filter(one => one.offsetWidth < 12).map(one => one.textContent)"
                    )
                    if narrow:
                        found[f"{path} squeezes at {width}"] = narrow
        expect(page.locator(".why .answer")).to_contain_text("none has shop.very_")
        assert "nothing has ended lately" in page.request.get("/").text()
    assert found == {}


def barriers(page: Page, where: str, **options: Any) -> dict[str, Any]:
    """What the checker finds, by where it does."""
    result = Axe().run(page, **options)
    told = [
        (one["id"], one["nodes"][0]["html"][:160], one["nodes"][0].get("failureSummary", "")[:300])
        for one in result.response["violations"]
    ]
    return {where: told} if told else {}


def test_pages_can_be_read_without_scripts(site: Site, browser: Browser) -> None:
    with _tab(site, browser, java_script_enabled=False, viewport={"width": 360, "height": 800}) as page:
        page.goto("/")
        page.get_by_role("link", name="Queues", exact=True).click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Queues")
        page.get_by_role("link", name="mail", exact=True).click()
        expect(page.get_by_role("heading", level=1)).to_have_text("mail")


def test_a_page_follows_what_happens_and_can_be_paused(site: Site, page: Page) -> None:
    page.goto("/tasks?queue=default")
    expect(page.locator("[data-live]")).to_have_attribute("data-is", "live")
    task_id = site.enqueue("tests.server.shop.nap", '{"seconds": 0}', queue="default")
    row = page.locator(f'tr[data-key="{task_id}"]')
    expect(row).to_be_visible()
    page.keyboard.press("r")
    expect(page.locator("[data-live]")).to_have_attribute("data-is", "paused")
    other = site.enqueue("tests.server.shop.build_report", '{"number": 1}', queue="default")
    site.until(
        "SELECT status FROM aaiclick_queue.tasks WHERE id = %s", int(other), so=lambda status: status == "COMPLETED"
    )
    expect(page.locator(f'tr[data-key="{other}"]')).to_have_count(0)
    page.keyboard.press("r")
    expect(page.locator(f'tr[data-key="{other}"]')).to_contain_text("completed")


def test_what_is_selected_and_focused_stays_when_a_region_is_drawn_anew(site: Site, page: Page) -> None:
    page.goto("/tasks?queue=mail")
    box = page.locator("input[data-pick]").first
    box.check()
    link = page.locator("a.main-link").first
    link.focus()
    page.mouse.move(0, 0)  # a table under the pointer stands still
    new = site.enqueue("tests.server.shop.send_mail", '{"to": "new@example.com"}', queue="mail")
    expect(page.locator(f'tr[data-key="{new}"]')).to_be_visible()
    assert page.locator("input[data-pick]:checked").count() == 1
    assert page.evaluate("document.activeElement.matches('a.main-link')")


def confirm(page: Page, verb: str) -> str:
    """Agree to what the dialog asks; gives its question."""
    dialog = page.locator("#ask")
    expect(dialog).to_be_visible()
    question = dialog.locator("h2").inner_text()
    dialog.get_by_role("button", name=verb, exact=True).click()
    return question


def follow(page: Page, row: Locator) -> None:
    """Go where the first link of a row leads."""
    page.goto(str(row.get_by_role("link").first.get_attribute("href")))


def made(page: Page, what: str, **body: Any) -> int:
    """A task or a job, over HTTP."""
    answer = page.request.post(f"/api/v1/{what}", data=body)
    assert answer.status == 201, answer.text()
    return int(answer.json()["id"])


def told(page: Page, words: str | re.Pattern[str]) -> None:
    expect(page.locator(".toast", has_text=words)).to_be_visible()


def test_a_queue_is_paused_with_a_reason_and_that_is_undone(site: Site, page: Page) -> None:
    paused = "SELECT reason FROM aaiclick_queue.queues WHERE name = 'mail' AND paused_at IS NOT NULL"
    page.goto("/queues")
    page.locator('tr[data-key="mail"]').get_by_role("button", name="Pause").click()
    page.get_by_label("Reason").fill("the post strikes")
    assert "Pause queue mail" in confirm(page, "Pause")
    told(page, "Queue mail is paused")
    assert site.one(paused) == "the post strikes"
    expect(page.locator('tr[data-key="mail"]')).to_contain_text("the post strikes")
    page.get_by_role("button", name="Undo").click()
    told(page, "Undone")
    assert site.one(paused) is None


def test_an_act_that_is_not_confirmed_is_not_done(site: Site, page: Page) -> None:
    page.goto(f"/tasks/{site.ids.queued_task}")
    page.get_by_role("button", name="Cancel", exact=True).click()
    page.get_by_role("button", name="Keep as it is").click()
    expect(page.locator("#ask")).to_be_hidden()
    assert site.status(site.ids.queued_task) is None


def test_tasks_are_cancelled_retried_moved_and_run_now(site: Site, page: Page) -> None:
    ids = site.ids
    page.goto(f"/tasks/{ids.queued_task}")
    page.get_by_role("button", name="Cancel", exact=True).click()
    confirm(page, "Cancel the task")
    told(page, "Task is cancelled")
    assert site.status(ids.queued_task) == "CANCELLED"
    expect(page.locator(".head .state")).to_contain_text("cancelled")

    page.goto(f"/tasks/{ids.scheduled_task}")
    page.get_by_role("button", name="Run now").click()
    told(page, "Task is in line")
    site.until("SELECT status FROM aaiclick_queue.tasks WHERE id = %s", int(ids.scheduled_task))
    expect(page.locator(".head .state")).to_contain_text("completed")

    before = site.one("SELECT run_epoch FROM aaiclick_queue.tasks WHERE id = %s", int(ids.failed_task))
    page.goto(f"/tasks/{ids.failed_task}")
    page.get_by_role("button", name="Retry", exact=True).click()
    confirm(page, "Retry")
    told(page, "Task is in line again")
    site.until(
        "SELECT run_epoch FROM aaiclick_queue.tasks WHERE id = %s", int(ids.failed_task), so=lambda n: (n or 0) > before
    )

    page.goto(f"/tasks/{ids.held_task}")
    page.get_by_role("button", name="Move", exact=True).click()
    page.get_by_label("To queue").fill("default")
    confirm(page, "Move")
    told(page, "Task is moved")
    assert site.one("SELECT queue FROM aaiclick_queue.tasks WHERE id = %s", int(ids.held_task)) == "default"


def test_rows_that_are_picked_are_retried(site: Site, page: Page) -> None:
    page.goto("/tasks?status=FAILED&entrypoint=fetch_page")
    rows = page.locator("input[data-pick]")
    count = rows.count()
    page.get_by_label("Select all rows of this page").check()
    expect(page.locator("[data-picked]")).to_have_text(f"{count} selected")
    page.locator("[data-picked-bar]").get_by_role("button", name="Retry").click()
    assert f"Retry {count} selected" in confirm(page, "Retry")
    told(page, f"Retried: {count} of {count}")


def test_all_that_match_are_cancelled_after_they_were_counted(site: Site, page: Page) -> None:
    waiting = "SELECT count(*) FROM aaiclick_queue.tasks WHERE queue = 'reports' AND status IS NULL"
    count = site.one(waiting)
    assert count > 5
    page.goto("/tasks?queue=reports")
    page.get_by_role("button", name="Cancel all matching").click()
    assert confirm(page, "Cancel them") == f"Cancel {count} tasks that match?"
    told(page, "Cancel begun")
    site.until(waiting, so=lambda left: left == 0)
    page.goto("/operations")
    expect(page.locator("tbody tr").first).to_contain_text(f"{count} of {count}")


def test_a_queue_is_moved_and_purged_and_all_that_match_are_retried_and_moved(site: Site, page: Page) -> None:
    ids = [made(page, "tasks", entrypoint="tests.server.shop.clean", kwargs={"rows": n}, queue="parked") for n in "abc"]
    tasks = "SELECT count(*) FROM aaiclick_queue.tasks WHERE id = ANY(%s) AND "

    def until(so: str) -> None:
        site.until(tasks + so, ids, so=lambda n: n == 3)

    page.goto("/queues/parked")
    page.get_by_role("button", name="Move tasks").click()
    page.get_by_label("To queue").fill("quay")
    confirm(page, "Move them")
    expect(page.locator("#ask h2")).to_have_text("Move 3 tasks that wait in parked?")
    confirm(page, "Move them")
    told(page, "Tasks are moving")
    until("queue = 'quay'")

    page.goto("/queues/quay")
    page.get_by_role("button", name="Purge").click()
    assert confirm(page, "Cancel them") == "Cancel 3 tasks that wait in quay?"
    told(page, "What waited in quay is being cancelled")
    until("status = 'CANCELLED'")

    page.goto("/tasks?queue=quay&status=CANCELLED")
    page.get_by_role("button", name="Retry all matching").click()
    assert confirm(page, "Retry them") == "Retry 3 tasks that match?"
    told(page, "Retry begun")
    until("status IS NULL")

    page.goto("/tasks?queue=quay")
    page.get_by_role("button", name="Move all matching").click()
    page.get_by_label("To queue").fill("default")
    confirm(page, "Move them")
    expect(page.locator("#ask h2")).to_have_text("Move 3 tasks that match")
    confirm(page, "Move them")
    told(page, "Move begun")
    until("status = 'COMPLETED'")


def test_many_jobs_are_paused_resumed_cancelled_and_retried(site: Site, page: Page) -> None:
    ids = [made(page, "jobs", name="many", entrypoint="a.b", queue="parked") for _ in "ab"]
    jobs = "SELECT count(*) FROM aaiclick_queue.jobs WHERE id = ANY(%s) AND "
    page.goto("/jobs?like=many")
    page.get_by_label("Select all rows of this page").check()
    bar = page.locator("[data-picked-bar]")
    bar.get_by_role("button", name="Pause").click()
    assert confirm(page, "Pause") == "Pause 2 selected jobs?"
    told(page, "Pause begun: operation")
    site.until(jobs + "paused_at IS NOT NULL", ids, so=lambda n: n == 2)
    expect(bar).to_be_hidden()

    page.get_by_role("button", name="Resume all matching").click()
    assert confirm(page, "Resume them") == "Resume 2 jobs that match?"
    told(page, "Resume begun: operation")
    site.until(jobs + "paused_at IS NULL", ids, so=lambda n: n == 2)
    page.get_by_role("button", name="Cancel all matching").click()
    assert confirm(page, "Cancel them") == "Cancel 2 jobs that match?"
    told(page, "Cancel begun: operation")
    site.until(jobs + "status = 'CANCELLED' AND paused_at IS NULL", ids, so=lambda n: n == 2)
    open_tasks = "SELECT count(*) FROM aaiclick_queue.tasks WHERE job_id = ANY(%s) AND status IS NULL"
    site.until(open_tasks, ids, so=lambda n: n == 0)
    page.get_by_role("button", name="Retry from failure all matching").click()
    assert confirm(page, "Retry them") == "Retry from failure 2 jobs that match?"
    told(page, "Retry begun: operation")
    site.until(open_tasks, ids, so=lambda n: n == 2)


def test_a_task_of_a_job_is_cleared_on_its_page(site: Site, page: Page) -> None:
    number = site.until(
        "SELECT id FROM aaiclick_queue.tasks WHERE job_id = %s AND name = 'load' AND status = 'COMPLETED'",
        int(site.ids.done_job),
    )
    before = site.one("SELECT run_epoch FROM aaiclick_queue.tasks WHERE id = %s", number)
    page.goto(f"/tasks/{number}")
    page.get_by_role("button", name="Clear from here").click()
    assert "again, 1 task in all?" in confirm(page, "Clear from here")
    told(page, "Cleared, it runs again")
    again = "SELECT count(*) FROM aaiclick_queue.tasks WHERE id = %s AND run_epoch > %s AND status = 'COMPLETED'"
    site.until(again, number, before)


def test_a_page_without_postgres_comes_back_by_itself(site: Site, browser: Browser) -> None:
    def elsewhere(coroutine: Any) -> Any:
        """In a thread: this one has the loop of the browser."""
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(asyncio.run, coroutine).result()

    proxy = Proxy(str(site.settings.postgres_url))
    elsewhere(proxy.__aenter__())
    try:
        with _served(changed(site.settings, postgres_url=proxy.url)) as base:
            page = browser.new_page(base_url=base)
            target, proxy._target = proxy._target, proxy._target._replace(netloc="127.0.0.1:1")
            answer = page.goto("/queues")
            assert answer is not None
            assert answer.status == 503
            expect(page.get_by_role("heading", level=1)).to_have_text("Postgres cannot be reached")
            proxy._target = target
            with page.expect_response(lambda one: one.url == f"{base}/queues") as back:
                pass
            assert back.value.status == 200
            expect(page.get_by_role("heading", level=1)).to_have_text("Queues")
            page.close()
    finally:
        elsewhere(proxy.__aexit__())


def test_a_job_is_retried_from_its_failure_paused_and_cancelled(site: Site, page: Page) -> None:
    ids = site.ids
    page.goto(f"/jobs/{ids.failed_job}")
    reopened = "SELECT count(*) FROM aaiclick_queue.events WHERE job_id = %s AND type = 'JOB_REOPENED'"
    page.get_by_role("button", name="Retry from failure").click()
    assert re.search(r"failure: \d+ tasks? and what they kept", confirm(page, "Retry from failure"))
    told(page, "Job goes on from its failure")
    site.until(reopened, int(ids.failed_job))

    page.goto(f"/jobs/{ids.running_job}")
    page.get_by_role("button", name="Pause", exact=True).click()
    confirm(page, "Pause")
    told(page, "Job is paused")
    assert site.one("SELECT paused_at IS NOT NULL FROM aaiclick_queue.jobs WHERE id = %s", int(ids.running_job))
    page.get_by_role("button", name="Resume", exact=True).click()
    told(page, re.compile("Job goes on(?! from)"))
    page.get_by_role("button", name="Cancel", exact=True).click()
    assert "have not ended" in confirm(page, "Cancel the job")
    site.until("SELECT status = 'CANCELLED' FROM aaiclick_queue.jobs WHERE id = %s", int(ids.running_job))
    expect(page.locator(".head .state").first).to_contain_text("cancelled")


def test_graph_timeline_and_table_have_one_selection(site: Site, page: Page) -> None:
    page.goto(f"/jobs/{site.ids.done_job}")
    node = page.locator("a.node").nth(2)
    number = node.get_attribute("data-select")
    node.click()
    expect(page.locator(f'a.lane.here[data-select="{number}"]')).to_have_count(1)
    expect(page.locator(f'tr.here[data-select="{number}"]')).to_have_count(1)
    expect(page.locator("[data-region=brief] h2").first).not_to_have_text("Selected task")
    assert f"task={number}" in page.url
    page.locator("[data-region=brief]").get_by_role("button", name="Clear from here").click()
    confirm(page, "Clear from here")
    told(page, "Cleared, it runs again")
    site.until(
        "SELECT count(*) FROM aaiclick_queue.events WHERE job_id = %s AND type = 'JOB_REOPENED'", int(site.ids.done_job)
    )


def test_schedules_are_run_disabled_enabled_and_given_back_to_code(site: Site, page: Page) -> None:
    enabled = "SELECT enabled FROM aaiclick_queue.registered_jobs WHERE name = 'nightly_rollup'"
    page.goto("/schedules")
    row = page.locator("tr", has_text="nightly_rollup")
    row.get_by_role("button", name="Disable").click()
    confirm(page, "Disable")
    told(page, "nightly_rollup is disabled")
    assert site.one(enabled) is False
    row.get_by_role("button", name="Enable").click()
    told(page, "nightly_rollup runs by its schedule")
    assert site.one(enabled) is True
    row.get_by_role("button", name="Run now").click()
    confirm(page, "Run now")
    told(page, re.compile("nightly_rollup runs(?! by)"))  # what was told before may still be there
    site.until("SELECT count(*) FROM aaiclick_queue.jobs WHERE registered_job_id IS NOT NULL")

    page.goto("/schedules/yearly")
    page.get_by_role("button", name="Disable").click()
    confirm(page, "Disable")
    told(page, "yearly is disabled")
    page.get_by_role("button", name="Give back to code").click()
    confirm(page, "Give back to code")
    told(page, "yearly is as its code says")
    source = "SELECT source || enabled::text FROM aaiclick_queue.registered_jobs WHERE name = 'yearly'"
    assert site.one(source) == "codetrue"


def test_a_group_of_failures_is_retried_acknowledged_and_muted(site: Site, page: Page) -> None:
    members = "SELECT array_agg(task_id ORDER BY task_id) FROM aaiclick_queue.failures WHERE error_type = %s"
    ids = site.until(members, "ConnectionError")
    epochs = site.one("SELECT array_agg(run_epoch ORDER BY id) FROM aaiclick_queue.tasks WHERE id = ANY(%s)", ids)
    ran_again = """
    SELECT count(*) FROM aaiclick_queue.tasks t
    JOIN unnest(%s::bigint[], %s::bigint[]) AS b(id, run_epoch) ON b.id = t.id AND t.run_epoch > b.run_epoch
    WHERE t.status = 'FAILED'"""
    page.goto("/failures")
    row = page.locator("tr", has_text="ConnectionError")
    row.get_by_role("button", name="Retry").click()
    assert confirm(page, "Retry them") == f"Retry {len(ids)} tasks of this group?"
    told(page, "Retry begun")
    site.until(ran_again, ids, epochs, so=lambda count: count == len(ids))
    page.reload()
    row.get_by_role("button", name="Acknowledge").click()
    told(page, "Acknowledged")
    assert site.one("SELECT acknowledged_by FROM aaiclick_queue.failure_groups") == "local"
    follow(page, page.locator("tr", has_text="TimeoutError"))
    page.get_by_role("button", name="Mute").click()
    page.get_by_label("Seconds").fill("3600")
    page.get_by_label("Reason").fill("it is known")
    confirm(page, "Mute")
    told(page, "Muted")
    muted = "SELECT count(*) FROM aaiclick_queue.failure_groups WHERE muted_until > now() AND reason = 'it is known'"
    assert site.one(muted) == 1


def test_limits_are_set_taken_away_and_pauses_ended(site: Site, page: Page) -> None:
    limit = "SELECT n FROM aaiclick_queue.limits WHERE scope = 'queue' AND name = 'mail' AND kind = 'running'"
    page.goto("/queues/mail")
    page.get_by_role("button", name="Limits", exact=True).click()
    page.get_by_label("Running at once").fill("7")
    confirm(page, "Set")
    told(page, "Limits of mail are set")
    assert site.one(limit) == 7
    page.goto("/queues/mail")
    page.get_by_role("button", name="Limits", exact=True).click()
    expect(page.get_by_label("Running at once")).to_have_value("7")
    page.get_by_label("Running at once").fill("")
    page.get_by_label("Most tasks in the queue").fill("900")
    page.get_by_label("Starts, as").fill("100/min")
    confirm(page, "Set")
    told(page, "Limits of mail are set")
    assert site.one(limit) is None
    depth = "SELECT max_depth FROM aaiclick_queue.queues WHERE name = 'mail'"
    assert site.one(depth) == 900
    page.goto("/queues/mail")
    page.get_by_role("button", name="Limits", exact=True).click()
    expect(page.get_by_label("Starts, as")).to_have_value("100/60s")
    page.get_by_label("Running at once").fill("7")
    confirm(page, "Set")
    told(page, "Limits of mail are set")
    assert (site.one(limit), site.one(depth)) == (7, 900)
    page.goto("/limits")
    page.locator("tr", has_text="at most 900 tasks").get_by_role("button", name="Remove").click()
    confirm(page, "Remove")
    told(page, "Limit removed")
    assert site.one(depth) is None
    page.goto("/limits")
    row = page.locator("tr", has_text="7 at once")
    row.get_by_role("button", name="Remove").click()
    confirm(page, "Remove")
    told(page, "Limit removed")
    assert site.one(limit) is None
    page.locator("tr", has_text="the bed is made").get_by_role("button", name="Resume").click()
    told(page, "runs again")
    assert site.one("SELECT count(*) FROM aaiclick_queue.limits WHERE kind = 'pause' AND scope = 'task'") == 0


def test_what_was_done_is_in_the_audit(site: Site, page: Page) -> None:
    page.goto("/queues")
    page.locator('tr[data-key="archive"]').get_by_role("button", name="Resume").click()
    told(page, "Queue archive goes on")
    page.goto("/audit")
    expect(page.locator("tbody tr", has_text="resume queue").first).to_contain_text("local")


def test_keys_lead_everywhere(site: Site, page: Page) -> None:
    page.goto("/")
    page.keyboard.press("?")
    expect(page.locator("#help")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "search"
    page.keyboard.press("Escape")
    page.set_viewport_size({"width": 360, "height": 800})
    page.get_by_role("button", name="Menu").click()
    expect(page.locator("#nav")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#nav")).to_be_hidden()
    page.set_viewport_size({"width": 1440, "height": 900})
    page.keyboard.press("g")
    page.keyboard.press("t")
    expect(page.get_by_role("heading", level=1)).to_have_text("Tasks")
    expect(page.locator("[data-live]")).to_have_attribute("data-is", "live")
    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(page.locator("tr.here")).to_have_count(1)
    page.keyboard.press("x")
    expect(page.locator("[data-picked]")).to_have_text("1 selected")
    page.keyboard.press("t")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    page.keyboard.press("t")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_the_log_of_a_run_is_followed(site: Site, page: Page) -> None:
    task_id = site.enqueue("tests.server.shop.talk", '{"words": ["one", "two"], "seconds": 3}', queue="default")
    site.until("SELECT count(*) FROM aaiclick_queue.leases WHERE task_id = %s", int(task_id))
    page.goto(f"/tasks/{task_id}")
    expect(page.locator(".log")).to_contain_text("one")
    expect(page.locator(".log")).to_contain_text("two")


def test_the_log_of_every_attempt_is_followed(site: Site, page: Page) -> None:
    task_id = site.enqueue("tests.server.shop.talk_again", '{"seconds": 1.5}', queue="default")
    site.until("SELECT count(*) FROM aaiclick_queue.leases WHERE task_id = %s", int(task_id))
    page.goto(f"/tasks/{task_id}")
    words = page.locator(".log .words")
    for attempt in (1, 2, 3):
        expect(words.filter(has_text=f"attempt {attempt} begins")).to_have_count(1)
        expect(words.filter(has_text=f"attempt {attempt} ends")).to_have_count(1)


def test_a_worker_that_is_killed_is_lost_and_one_shows_its_stacks_and_is_stopped(site: Site, page: Page) -> None:
    page.goto("/workers")
    assert site.worker is not None
    row = page.locator("tbody tr", has_text=f"pid {site.worker.pid}")
    expect(row).to_contain_text("active")
    site.worker.kill()
    site.worker.wait()
    site.start_worker()
    expect(row).to_contain_text("lost")
    new = page.locator("tbody tr", has_text=f"pid {site.worker.pid}")
    follow(page, new)
    page.get_by_role("button", name="Show stacks").click()
    told(page, "Its stacks are shown")
    expect(page.locator("[data-region=beside] pre")).to_contain_text("aaiclick_queue")
    page.goto("/workers")
    new.get_by_role("button", name="Stop").click()
    confirm(page, "Stop it")
    told(page, "is stopping")
    site.worker.wait(30)
    expect(new).to_contain_text("stopped")

    # Nobody is there any more to work on it.
    number = site.one(
        "INSERT INTO aaiclick_queue.operations (kind, filter, up_to, made_by) "
        """VALUES ('cancel', '{"queue": "parked"}', 9223372036854775807, 'anna') RETURNING id"""
    )
    page.goto("/operations")
    page.locator(f'tr[data-key="{number}"]').get_by_role("button", name="Stop").click()
    confirm(page, "Stop it")
    told(page, "Operation is stopped")
    assert site.one("SELECT status FROM aaiclick_queue.operations WHERE id = %s", number) == "CANCELLED"
