"""Pages: each shows what is true, wherever it is served, and says what to do where there is nothing."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from html import unescape
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from aaiclick_queue import Settings
from aaiclick_queue.postgres import Database
from aaiclick_queue.server import create_app
from aaiclick_queue.server.pages import keeping, overview, queues, schedules
from aaiclick_queue.server.pages.rendering import PATHS
from aaiclick_queue.server.pages.traces import parts_of
from aaiclick_queue.server.roles import Who, needed_role
from aaiclick_queue.tokens import create_token
from tests.server.seeding import FIGURES, SAMPLES, Seeded, seed
from tests.servers import Databases
from tests.tools import Proxy, changed

PAGES = (
    *(
        "/",
        "/queues",
        "/queues/mail",
        "/queues/reports",
        "/tasks",
        "/tasks?status=FAILED",
        "/jobs",
        "/jobs?status=FAILED",
    ),
    *(
        "/workers",
        "/schedules",
        "/schedules/nightly_rollup",
        "/failures",
        "/limits",
        "/outbox",
        "/operations",
        "/audit",
    ),
)
OLD_WAKE_UP = """
INSERT INTO aaiclick_queue.outbox (queue, rank, order_key, n, task_ids, created_at)
VALUES ('x', 0, 0, 1, '{}', now() - interval '1 h')
"""
HTML = {"Accept": "text/html"}
LINK = re.compile(r'(?:href|action)="([^"#][^"]*)"')


@pytest.fixture(scope="module")
def shop(
    databases: Databases, template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Settings, Seeded]]:
    """A database with something of everything, which tests look at and leave as it is."""
    with databases.new(template) as name:
        home = tmp_path_factory.mktemp("home")
        settings = Settings.load({}, postgres_url=databases.url(name), lease_seconds=2, home=home)
        yield settings, asyncio.run(seed(settings))


@asynccontextmanager
async def browsing(settings: Settings, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A browser without scripts."""
    app = create_app(settings, **{"auth": "open"} | options)
    async with visiting(app) as client:
        yield client


@asynccontextmanager
async def visiting(app: FastAPI, base: str = "http://localhost") -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url=base, headers=HTML, timeout=60) as client,
    ):
        yield client


def text_of(page: httpx.Response) -> str:
    """What is read on a page."""
    return unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page.text)))


async def test_every_page_is_there_and_every_link_on_it_leads_somewhere(shop: tuple[Settings, Seeded]) -> None:
    settings, ids = shop
    of_one = [f"/tasks/{getattr(ids, name)}" for name in ids.__struct_fields__ if name.endswith("task")]
    of_one += [f"/jobs/{getattr(ids, name)}" for name in ids.__struct_fields__ if name.endswith("job")]
    seen: set[str] = set()
    async with browsing(settings) as browser:
        left = [*PAGES, *of_one]
        while left:
            path = left.pop()
            if path in seen or len(seen) > 250:
                continue
            seen.add(path)
            answer = await browser.get(path, follow_redirects=True)
            assert answer.status_code == 200, (path, text_of(answer)[:500])
            if "text/html" in answer.headers["content-type"] and len(seen) < 60:
                left += [unescape(link) for link in LINK.findall(answer.text) if not link.startswith("/logout")]
    assert len(seen) > 80


async def test_under_a_prefix_every_address_carries_it(shop: tuple[Settings, Seeded]) -> None:
    settings, ids = shop
    outer = FastAPI()
    inner = create_app(settings, auth="open")
    outer.mount("/queue/ops", inner)
    async with visiting(inner), visiting(outer) as browser:
        for path in ("/", "/tasks", f"/jobs/{ids.failed_job}", "/schedules"):
            page = await browser.get("/queue/ops" + path)
            assert page.status_code == 200
            links = LINK.findall(page.text) + re.findall(r'(?:src|data-path|data-stream)="([^"]+)"', page.text)
            assert links
            assert [one for one in links if not one.startswith("/queue/ops/")] == []
            for link in {unescape(one) for one in links if "static" in one}:
                assert (await browser.get(link)).status_code == 200


async def test_figures_are_read_once_in_a_moment_and_states_whenever_somebody_looks(
    shop: tuple[Settings, Seeded], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    async def figures(*_: Any, **__: Any) -> dict[str, Any]:
        read.append("figures")
        return {}

    async def workers(*_: Any, **__: Any) -> list[Any]:
        read.append("workers")
        return []

    monkeypatch.setattr(queues, "read_queue_figures", figures)
    monkeypatch.setattr(overview, "list_workers", workers)
    async with browsing(shop[0]) as browser:
        for _ in range(3):
            assert (await browser.get("/")).status_code == 200
        assert sorted(read) == ["figures", "workers", "workers", "workers"]
        monkeypatch.setattr(keeping, "KEPT_SECONDS", 0.0)
        await browser.get("/")
        assert read.count("figures") == 2


async def test_schedules_are_turned_page_by_page(
    shop: tuple[Settings, Seeded], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedules, "SHOWN", 2)
    async with browsing(shop[0]) as browser:
        first = await browser.get("/schedules")
        assert "nightly_rollup" in first.text
        assert "sweep" not in first.text
        [following] = re.findall(r'href="(/schedules\?after=[^"]+)"', first.text)
        second = await browser.get(unescape(following))
        assert "sweep" in second.text
        assert "nightly_rollup" not in second.text
        assert "after=" not in second.text


async def test_pages_tell_what_the_tables_hold(shop: tuple[Settings, Seeded]) -> None:
    settings, ids = shop
    async with browsing(settings) as browser:
        overview = text_of(await browser.get("/"))
        assert "reports" in overview
        assert "no worker" in overview
        assert "ConnectionError" in overview
        assert "etl_nightly" in overview
        failed = text_of(await browser.get(f"/tasks/{ids.failed_task}"))
        assert "421 too many connections from shop.invalid" in failed
        assert "attempt 2" in failed
        assert "Why did it fail?" in failed
        assert "shop.invalid does not answer" in failed
        held = text_of(await browser.get(f"/tasks/{ids.held_task}"))
        assert "the bed is made" in held
        scheduled = text_of(await browser.get(f"/tasks/{ids.scheduled_task}"))
        assert "Run now" in scheduled
        queues = text_of(await browser.get("/queues"))
        assert "disk is exchanged" in queues
        job = (await browser.get(f"/jobs/{ids.failed_job}")).text
        assert job.count('class="lane"') >= 6
        assert 'data-status="upstream_failed"' in job
        assert "bad row 9912" in job


async def test_a_filter_is_the_address(shop: tuple[Settings, Seeded]) -> None:
    settings, _ = shop
    async with browsing(settings) as browser:
        page = await browser.get("/tasks", params={"status": "FAILED", "queue": "mail", "entrypoint": "send_mail"})
        assert page.text.count("<tr data-key=") == 4
        found = await browser.get("/tasks", params={"search": "to=user3@shop.invalid"})
        assert found.text.count("<tr data-key=") == 1
        assert "were searched" in text_of(found)
        assert "is none" in text_of(await browser.get("/tasks", params={"search": "{broken"}))
        nothing = await browser.get("/tasks", params={"status": "COMPLETED", "queue": "nowhere"})
        assert "No task matches" in text_of(nothing)
        for nonsense in (
            "status=%00",
            "job_id=x",
            "before=-1",
            "fingerprint=zz",
            "search=%7B",
            "before=99999999999999999999",
            "status=BOGUS",
            "hours=1e9",
        ):
            assert (await browser.get(f"/tasks?{nonsense}")).status_code == 200


async def test_a_region_is_drawn_alone(shop: tuple[Settings, Seeded]) -> None:
    settings, _ = shop
    async with browsing(settings) as browser:
        part = await browser.get("/", headers={"X-Region": "figures,needs,no_such"})
        assert re.findall(r'data-region="(\w+)"', part.text) == ["figures", "needs"]
        assert "<html" not in part.text


async def test_search_finds_tasks_jobs_and_queues(shop: tuple[Settings, Seeded]) -> None:
    settings, ids = shop
    async with browsing(settings) as browser:
        found = {
            ids.done_task: f"/tasks/{ids.done_task}",
            ids.done_task[-9:]: f"/tasks/{ids.done_task}",
            "etl_nightly": f"/jobs/{ids.running_job}",
            "reports": "/queues/reports",
            "send_mail": "/tasks?entrypoint=send_mail",
        }
        for text, path in found.items():
            assert (await browser.get("/search", params={"q": text})).headers["location"] == path


async def test_where_there_is_nothing_a_page_says_what_would_fill_it(settings: Settings) -> None:
    async with browsing(settings) as browser:
        for path in ("/", "/queues", "/tasks", "/jobs", "/workers", "/schedules", "/limits", "/operations"):
            page = await browser.get(path)
            assert page.status_code == 200, path
            assert "aaiclick-queue " in re.sub(r"<title>.*?</title>", "", page.text), path
        assert "Nothing failed" in text_of(await browser.get("/failures"))
        assert (await browser.get("/audit")).status_code == 200


async def test_what_is_not_there_is_a_page_too(shop: tuple[Settings, Seeded]) -> None:
    settings, _ = shop
    async with browsing(settings) as browser:
        for path in (
            "/tasks/1",
            "/tasks/x",
            "/jobs/nobody",
            "/queues/none",
            "/workers/7",
            "/schedules/no",
            "/failures/ab",
            "/no",
        ):
            page = await browser.get(path)
            assert page.status_code == 404, path
            assert page.headers["content-type"].startswith("text/html")
        problem = await browser.get("/api/v1/nothing")
        assert problem.headers["content-type"].startswith("application/problem+json")


async def test_a_reader_is_offered_no_act(shop: tuple[Settings, Seeded]) -> None:
    settings, ids = shop

    async def reader(_: Any) -> Who:
        return Who("rita", "reader")

    async with browsing(settings, auth=reader) as browser:
        for path in (*PAGES, f"/tasks/{ids.failed_task}", f"/jobs/{ids.failed_job}"):
            page = await browser.get(path)
            assert "data-act=" not in page.text
        assert "rita" in page.text
        assert (await browser.get("/audit")).status_code == 404


async def test_whoever_is_not_signed_in_is_led_to_the_sign_in_and_back(settings: Settings, db: Database) -> None:
    made = await create_token(db, "anna", "writer")
    async with browsing(settings, auth="tokens") as browser:
        away = await browser.get("/tasks?status=FAILED")
        assert away.status_code == 303
        assert away.headers["location"].startswith("/login?next=/tasks")
        form = await browser.get(away.headers["location"])
        assert 'value="/tasks?status=FAILED"' in unescape(form.text)
        wrong = await browser.post("/login", data={"token": "aaq_wrong", "next": "/tasks"})
        assert wrong.status_code == 401
        assert "unknown, revoked or over" in text_of(wrong)
        for path, leads_to in (("/tasks", "/tasks"), ("//evil.example", "/"), ("https://evil.example", "/")):
            into = await browser.post("/login", data={"token": made.token, "next": path})
            assert (into.status_code, into.headers["location"]) == (303, leads_to)
        assert (await browser.get("/tasks")).status_code == 200


async def test_while_postgres_is_away_a_page_says_so_and_looks_again(settings: Settings) -> None:
    async with Proxy(str(settings.postgres_url)) as proxy:
        through = changed(settings, postgres_url=proxy.url)
        async with browsing(through) as browser:
            assert (await browser.get("/")).status_code == 200
            target, proxy._target = proxy._target, proxy._target._replace(netloc="127.0.0.1:1")
            proxy.cut()
            down = await browser.get("/")
            assert down.status_code == 503
            assert down.headers["retry-after"] == "5"
            assert "Postgres cannot be reached" in text_of(down)
            proxy._target = target
            assert (await browser.get("/")).status_code == 200


async def test_an_environment_has_a_bar_and_a_title(settings: Settings) -> None:
    async with browsing(settings, label="PROD", colour="red") as browser:
        page = (await browser.get("/")).text
        assert '<div class="env red"' in page
        assert "<title>PROD · Overview" in page


async def test_every_page_names_the_role_it_needs(settings: Settings) -> None:
    app = create_app(settings, auth="open")
    by_path = {getattr(route, "path", ""): route for route in app.routes}
    pages = [path.replace("{}", "{x}") for name, path in PATHS.items() if name not in ("static", "login", "logout")]
    for path in pages:
        [route] = [one for known, one in by_path.items() if re.sub(r"\{[^}]+\}", "{x}", known) == path]
        assert needed_role(route) == "reader", path


async def test_no_page_has_inline_script_style_or_handlers(shop: tuple[Settings, Seeded]) -> None:
    settings, ids = shop
    async with browsing(settings) as browser:
        for path in (*PAGES, f"/tasks/{ids.failed_task}", f"/jobs/{ids.failed_job}"):
            page = await browser.get(path)
            assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", page.text), path
            assert all("src=" in one for one in re.findall(r"<script[^>]*>", page.text))
            assert "default-src 'self'" in page.headers["content-security-policy"]


def test_frames_of_libraries_are_folded_and_own_ones_are_not() -> None:
    trace = """Traceback (most recent call last):
  File "/app/shop/mail.py", line 88, in send
    client.send(to)
  File "/usr/lib/python3.11/site-packages/smtp/client.py", line 5, in send
    raise Refused
  File "/usr/lib/python3.11/site-packages/smtp/wire.py", line 9, in put
    raise Refused
smtp.Refused: 421"""
    assert [(one.kind, one.frames) for one in parts_of(trace)] == [("head", 0), ("own", 1), ("theirs", 2), ("end", 0)]
    assert "\n".join(one.text for one in parts_of(trace)) == trace


async def test_a_statement_that_took_too_long_is_not_told_as_a_store_that_is_away(settings: Settings) -> None:
    async with Database(settings, size=2) as db:
        await db.fetch(
            "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET statement_timeout = 200', current_database()); END $$"
        )
        async with browsing(settings) as browser, db.transaction() as held:
            await held.fetch("LOCK TABLE aaiclick_queue.jobs")
            page = await browser.get("/jobs")
    assert page.status_code == 503
    assert "That took too long" in text_of(page)
    assert "cannot be reached" not in text_of(page)
    assert page.headers["Retry-After"] == "5"


async def test_a_redis_that_is_away_and_loops_that_do_not_run_are_seen_on_the_first_page(settings: Settings) -> None:
    async with browsing(changed(settings, redis_url="redis://127.0.0.1:1/0")) as browser:
        page = await browser.get("/")
    told = [
        unescape(re.sub(r"<[^>]+>", "", one)) for one in re.findall(r'<li class="chip broken">(.*?)</li>', page.text)
    ]
    assert [one.split()[0] for one in told] == ["Redis", "Loops"]
    assert "does not answer" in told[0]


async def test_a_queue_that_nobody_serves_or_that_is_paused_never_drains(settings: Settings) -> None:
    async with browsing(settings) as browser, Database(settings, size=1) as db:
        await browser.post("/api/v1/tasks", json={"entrypoint": "a.b", "queue": "reports"})
        await db.fetch(FIGURES)
        await db.fetch(SAMPLES)
        assert "never no worker takes it" in text_of(await browser.get("/queues/reports"))
        assert "drains never" in text_of(await browser.get("/"))
        await browser.post("/api/v1/queues/reports/pause", json={})
        assert "never paused" in text_of(await browser.get("/queues/reports"))
        assert "never paused" in text_of(await browser.get("/queues"))


async def test_a_queue_that_runs_dry_while_it_is_looked_at_is_shown_empty(settings: Settings) -> None:
    async with browsing(settings) as browser, Database(settings, size=1) as db:
        made = (await browser.post("/api/v1/tasks", json={"entrypoint": "a.b", "queue": "parked"})).json()
        assert (await browser.get("/queues/parked")).status_code == 200
        await browser.post(f"/api/v1/tasks/{made['id']}/cancel")
        assert str(made["id"]) in (await browser.get("/queues/parked")).text
        await db.fetch("UPDATE aaiclick_queue.tasks SET queue = 'elsewhere'")
        assert (await browser.get("/queues/parked")).status_code == 404
        region = await browser.get("/queues/parked", headers={"X-Region": "main"})
        assert region.status_code == 200


async def test_a_queue_shows_how_long_its_tasks_waited_and_ran(shop: tuple[Settings, Seeded]) -> None:
    settings, _ = shop
    async with browsing(settings) as browser:
        page = await browser.get("/queues/mail")
        assert re.search(r"Waits of mail: [\d,]+ by how long", page.text)
        assert re.search(r"Runs of mail: [\d,]+ by how long", page.text)
        assert "version 0." in text_of(await browser.get("/"))


async def test_the_checks_of_the_doctor_are_run_on_the_page_of_the_outbox(shop: tuple[Settings, Seeded]) -> None:
    settings, _ = shop
    async with browsing(settings) as browser, Database(settings, size=1) as db:
        assert "things that must always be true" not in text_of(await browser.get("/outbox"))
        await db.fetch(OLD_WAKE_UP)
        told = text_of(await browser.get("/outbox?checks=1"))
        await db.fetch("DELETE FROM aaiclick_queue.outbox WHERE queue = 'x'")
        well = text_of(await browser.get("/outbox?checks=1"))
    assert "the outbox is emptied" in told
    assert "start a worker" in told
    assert "things that must always be true" in well
    assert "the outbox is emptied" not in well


async def test_what_redis_holds_is_on_the_page_of_the_outbox(settings: Settings, redis_url: str) -> None:
    async with browsing(changed(settings, redis_url=redis_url)) as browser:
        assert re.search(r"\d entries in the streams of", text_of(await browser.get("/outbox")))
    async with browsing(changed(settings, redis_url="redis://127.0.0.1:1/0")) as browser:
        assert "does not answer: workers poll" in text_of(await browser.get("/outbox"))


async def test_the_panel_tells_the_answer_a_command_to_copy_and_the_button_that_mends_it(settings: Settings) -> None:
    async with browsing(settings) as browser:
        made = (await browser.post("/api/v1/tasks", json={"entrypoint": "a.b", "queue": "post"})).json()["id"]
        nobody = (await browser.get(f"/tasks/{made}")).text
        assert "Why is it not running?" in nobody
        assert "<code>aaiclick-queue worker -A a -Q post</code>" in nobody
        assert 'data-copy="aaiclick-queue worker -A a -Q post"' in nobody
        assert "<code>It " not in nobody  # what goes on by itself is no command
        await browser.post("/api/v1/queues/post/pause", json={"reason": "<b>strike</b>"})
        paused = (await browser.get(f"/tasks/{made}")).text
        assert "&lt;b&gt;strike&lt;/b&gt;" in paused
        assert re.search(r'data-path="[^"]*queues/post/resume"[^>]*>Resume the queue<', paused)
        assert "Also true" in paused


async def test_the_panel_leads_to_the_task_that_it_names(shop: tuple[Settings, Seeded]) -> None:
    settings, ids = shop
    async with browsing(settings) as browser:
        tasks = (await browser.get(f"/api/v1/jobs/{ids.failed_job}/tasks")).json()["items"]
        [cause] = [one["id"] for one in tasks if one["status"] == "FAILED"]
        blocked = next(one["id"] for one in tasks if one["status"] == "UPSTREAM_FAILED")
        panel = (await browser.get(f"/tasks/{blocked}")).text.partition('class="why')[2].partition("</section>")[0]
        assert f'join_rows (<a href="/tasks/{cause}">{cause}</a>)' in panel


async def test_a_job_selects_none_but_its_own_tasks(shop: tuple[Settings, Seeded]) -> None:
    settings, ids = shop
    async with browsing(settings) as browser:
        assert "Selected task" in (await browser.get(f"/jobs/{ids.failed_job}?task={ids.failed_task}")).text


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/tasks/abc", "No task is called abc: the id of one is a number"),
        ("/tasks/1", "There is no task 1: it was pruned"),
        ("/queues/none", "There is no queue none: nothing waits in it"),
        ("/workers/1", "There is no worker 1: "),
        ("/jobs/nowhere", "nowhere"),
    ],
)
async def test_what_is_not_found_is_told_in_a_sentence(settings: Settings, path: str, words: str) -> None:
    async with browsing(settings) as browser:
        page = await browser.get(path)
        assert page.status_code == 404
        assert words in text_of(page)
