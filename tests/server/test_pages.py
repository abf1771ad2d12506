"""Pages: each shows what is true, wherever it is served, and says what to do where there is nothing."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from html import unescape
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from aaiclick_queue import Settings
from aaiclick_queue.errors import PostgresUnavailable
from aaiclick_queue.flow.detect import EVENTS, Found, keep_alarms
from aaiclick_queue.flow.watch import INVARIANT
from aaiclick_queue.postgres import Database
from aaiclick_queue.queue_views import WorkerTotals
from aaiclick_queue.server import create_app
from aaiclick_queue.server.pages import keeping, overview, queues, schedules, tasks, workers
from aaiclick_queue.server.pages.crons import in_words
from aaiclick_queue.server.pages.rendering import PATHS
from aaiclick_queue.server.pages.traces import parts_of
from aaiclick_queue.server.roles import Who, needed_role
from aaiclick_queue.tokens import create_token
from aaiclick_queue.views import TaskPage
from tests.server.seeding import ALARM, FIGURES, SAMPLES, Seeded, seed
from tests.servers import Databases
from tests.tools import Proxy, changed, put_one, register_worker

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
DONE_BY_MINUTE = """
INSERT INTO aaiclick_queue.figures (minute, queue, entrypoint, completed, waits, runs)
SELECT date_trunc('minute', now()) - make_interval(mins => back), 'x', 'a.b',
       CASE WHEN back <= 5 THEN 30 ELSE 9000 END, '{}', '{}'
FROM generate_series(0, 8) AS back
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

    async def workers(*_: Any, **__: Any) -> WorkerTotals:
        read.append("workers")
        return WorkerTotals(0, 0, 0, 0, 0)

    monkeypatch.setattr(queues, "read_queue_figures", figures)
    monkeypatch.setattr(overview, "read_worker_totals", workers)
    async with browsing(shop[0]) as browser:
        for _ in range(3):
            assert (await browser.get("/")).status_code == 200
        assert sorted(read) == ["figures", "workers", "workers", "workers"]
        monkeypatch.setattr(keeping, "KEPT_SECONDS", 0.0)
        await browser.get("/")
        assert read.count("figures") == 2


async def test_figures_of_a_moment_ago_are_shown_while_they_are_read_anew_and_older_ones_are_waited_for(
    shop: tuple[Settings, Seeded], monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go_on, begun = asyncio.Event(), asyncio.Event()
    may_go_on.set()
    rate = itertools.count(777)

    async def figures(*_: Any, **__: Any) -> dict[str, Any]:
        begun.set()
        await may_go_on.wait()
        return {"charts": None, "done_per_minute": float(next(rate)), "failed_sum": 0, "latency": None}

    monkeypatch.setattr(overview, "throughput", figures)
    async with browsing(shop[0]) as browser:
        assert "777" in text_of(await browser.get("/"))
        monkeypatch.setattr(keeping, "KEPT_SECONDS", 0.0)
        may_go_on.clear()
        begun.clear()
        async with asyncio.timeout(30):
            assert "777" in text_of(await browser.get("/"))
            await begun.wait()
            monkeypatch.setattr(keeping, "SHOWN_SECONDS", 0.0)
            waits = asyncio.create_task(browser.get("/"))
            done, _ = await asyncio.wait([waits], timeout=0.3)
            assert not done
            may_go_on.set()
            assert "778" in text_of(await waits)


async def test_a_read_of_figures_that_fails_is_told_to_who_waits_for_it_and_tried_again_by_the_next(
    shop: tuple[Settings, Seeded], monkeypatch: pytest.MonkeyPatch
) -> None:
    fails = [True]

    async def figures(*_: Any, **__: Any) -> dict[str, Any]:
        if fails.pop() if fails else False:
            raise PostgresUnavailable("gone for a moment")
        return {"charts": None, "done_per_minute": 123.0, "failed_sum": 0, "latency": None}

    monkeypatch.setattr(overview, "throughput", figures)
    async with browsing(shop[0]) as browser:
        assert (await browser.get("/")).status_code == 503
        assert "123" in text_of(await browser.get("/"))


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


async def test_all_workers_are_counted_and_one_that_takes_a_queue_is_found_among_many(
    settings: Settings, db: Database
) -> None:
    serving = await register_worker(db)
    await db.fetch("UPDATE aaiclick_queue.workers SET queues = '{parked}', started_at = now() - interval '1 h'")
    for _ in range(149):
        await register_worker(db)
    await put_one(db, queue="parked")
    async with browsing(settings) as browser:
        first, outbox = text_of(await browser.get("/")), text_of(await browser.get("/outbox"))
        assert "of 1,500 slots" in first
        assert "Workers 150 alive" in first
        assert "workers alive: 150" in outbox
        parked = await browser.get("/queues/parked")
        assert f"/workers/{serving}" in parked.text
        assert "The newest 100 of more" in text_of(await browser.get("/queues/default"))
        told = (await browser.get("/api/v1/overview")).json()
    assert len(told["workers"]) == 100
    assert told["workers_are_more"] is True
    assert told["queues_are_more"] is False
    assert told["worker_totals"] == {"live": 150, "active": 150, "lost": 0, "slots": 1500, "running": 0}


async def test_workers_are_turned_page_by_page(
    settings: Settings, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "SHOWN", 2)
    ids = {str(await register_worker(db)) for _ in range(5)}
    seen: list[str] = []
    async with browsing(settings) as browser:
        following = ["/workers"]
        while following:
            page = await browser.get(unescape(following[0]))
            assert "Alive 5" in text_of(page)
            seen += re.findall(r'<tr data-key="(\d+)"', page.text)
            following = re.findall(r'href="(/workers\?after=[^"]+)"', page.text)
        assert (await browser.get("/workers?after=nowhere")).status_code == 200
    assert len(seen) == 5
    assert set(seen) == ids


async def test_queues_are_turned_page_by_page_and_the_first_page_says_that_there_are_more(
    settings: Settings, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (queues, overview):
        monkeypatch.setattr(module, "SHOWN", 2)
    for name in "abcde":
        await put_one(db, queue=name)
    seen: list[str] = []
    async with browsing(settings) as browser:
        following = ["/queues"]
        while following:
            page = await browser.get(unescape(following[0]))
            seen += re.findall(r'<tr data-key="(\w+)"', page.text)
            following = re.findall(r'href="(/queues\?after=[^"]+)"', page.text)
        first = text_of(await browser.get("/"))
    assert seen == list("abcde")
    assert "In line 2+" in first
    assert "of the first 2 by name" in first


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


async def test_all_that_match_a_job_can_be_acted_on_and_a_search_says_why_not(shop: tuple[Settings, Seeded]) -> None:
    settings, ids = shop
    async with browsing(settings) as browser:
        leads_to = f"/tasks?job_id={ids.running_job}"
        assert leads_to in (await browser.get(f"/jobs/{ids.running_job}")).text
        page = unescape((await browser.get(leads_to)).text)
        assert "Cancel all matching" in page
        assert f'data-body="{{"where": {{"job_id": "{ids.running_job}"}}}}"' in page
        assert "Retry all matching" in (await browser.get(f"/tasks?job_id={ids.failed_job}&status=FAILED")).text
        assert "all matching" not in (await browser.get("/tasks?job_id=x&status=FAILED")).text
        searched = await browser.get("/tasks", params={"search": "to=user3@shop.invalid"})
        assert "all matching" not in searched.text
        assert "filter without arguments" in text_of(searched)


async def test_a_page_and_the_api_answer_a_right_guess_of_a_secret_as_a_wrong_one(
    settings: Settings, db: Database
) -> None:
    for _ in range(25):
        await put_one(db, '{"code": {"$secret": "hunter2"}}')
    async with browsing(settings) as browser:
        for path in ("/api/v1/tasks?limit=1&search={}", "/tasks?search={}"):
            right, wrong = [await browser.get(path.format(guess)) for guess in ("hunter2", "hunter1")]
            assert right.status_code == 200
            assert _timeless(right.text.replace("hunter2", "hunter1")) == _timeless(wrong.text)


async def test_the_list_takes_the_filter_words_of_acts(settings: Settings, db: Database) -> None:
    meant, other = await put_one(db, priority=5), await put_one(db, priority=6)
    async with browsing(settings) as browser:
        page = await browser.get("/tasks?priority=5")
        assert f'data-key="{meant}"' in page.text
        assert f'data-key="{other}"' not in page.text
        assert "&#34;priority&#34;: 5" in page.text or "&#34;priority&#34;:5" in page.text
        found = (await browser.get("/api/v1/tasks", params={"priority": 5})).json()
        assert [one["id"] for one in found["items"]] == [str(meant)]
        assert (await browser.get("/api/v1/tasks", params={"older_than": 3600})).json()["items"] == []
        assert "No task matches" in text_of(await browser.get("/tasks?older_than=1h"))
        for wrong in ("priority=high", "older_than=yesterday"):
            page = await browser.get(f"/tasks?{wrong}")
            assert 'role="alert"' in page.text
            assert 'data-key="' not in page.text


async def test_a_page_gives_its_search_a_tenth_of_a_second(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float] = []

    async def listed(*_: Any, seconds: float, **__: Any) -> TaskPage:
        given.append(seconds)
        return TaskPage([], "123", 4_000, True)

    monkeypatch.setattr(tasks, "list_tasks", listed)
    async with browsing(settings) as browser:
        page = await browser.get("/tasks?search=ada")
    assert given == [0.1]
    assert "Search on in older ones" in text_of(page)


def _timeless(text: str) -> str:
    """A page without its moments and its tokens."""
    return re.sub(r"\d{4}-\d\d-\d\dT[^\"]+|\d\d:\d\d:\d\d|[\w-]{24,}", "", text)


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


async def test_stacks_of_a_worker_are_shown_to_whoever_may_ask_for_them(shop: tuple[Settings, Seeded]) -> None:
    settings, _ = shop

    async def reader(_: Any) -> Who:
        return Who("rita", "reader")

    async with Database(settings, size=1) as db:
        await db.fetch("UPDATE aaiclick_queue.workers SET stacks = 'Thread 1 in send', stacks_at = now()")
        worker = await db.fetchval("SELECT min(id)::text FROM aaiclick_queue.workers")
    async with browsing(settings, auth=reader) as browser:
        assert "Thread 1 in send" not in (await browser.get(f"/workers/{worker}")).text
    async with browsing(settings) as browser:
        assert "Thread 1 in send" in (await browser.get(f"/workers/{worker}")).text


async def test_the_link_of_every_alarm_leads_to_what_it_is_about(shop: tuple[Settings, Seeded]) -> None:
    settings, ids = shop
    async with browsing(settings) as browser, Database(settings, size=1) as db:
        worker = await db.fetchval("SELECT min(id)::text FROM aaiclick_queue.workers")
        about = {
            **dict.fromkeys(("without_workers", "backpressure", "stuck"), ("mail", "/queues/mail")),
            **dict.fromkeys(("clock_skew", "lost_worker"), (worker, f"/workers/{worker}")),
            "zombie": (ids.done_task, f"/tasks/{ids.done_task}"),
            "stall": (ids.running_job, f"/jobs/{ids.running_job}"),
            INVARIANT: ("every lease has a task", "/outbox?checks=1"),
        }
        assert about.keys() == {*EVENTS, INVARIANT}
        for kind, (what, leads_to) in about.items():
            await keep_alarms(db, kind, [Found(kind, what, f"the alarm of {kind}", {})], event="TEST")
            told = (await browser.get("/limits")).text.partition(f"the alarm of {kind}")[2]
            link = unescape(str(re.search(r'<a href="([^"]+)">Show</a>', told).group(1)))  # type: ignore[union-attr]
            assert link == leads_to, kind
            assert (await browser.get(link)).status_code == 200
            await keep_alarms(db, kind, [], event="TEST")
        await db.fetch(ALARM, '{"text": "20 tasks wait in reports and no worker takes it"}')


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


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("0 2 * * *", "Every day at 02:00"),
        ("* * * * *", "Every minute"),
        ("*/5 * * * *", "Every 5 minutes"),
        ("*/7 8 * * *", "At minute 0, 7, 14, 21, 28, 35, 42, 49 and 56 in the hour from 08:00"),
        ("*/15 9-17 * * mon-fri", "Every 15 minutes from 09:00 to 17:59, Monday to Friday"),
        ("30 * * * *", "Every hour at :30"),
        ("5 */2 * * *", "Every 2 hours at :05"),
        ("0 8,20 * * 0,6", "Every Saturday and every Sunday at 08:00 and 20:00"),
        ("0 6 1,L * *", "On the 1st and the last day of the month at 06:00"),
        ("0 6 * * fri#2", "The 2nd Friday of the month at 06:00"),
        ("0 6 22 jan,jul mon", "On the 22nd of the month or every Monday at 06:00, in January and July"),
        ("15 8 * * * 30", "At second 30 of minute 15 in the hour from 08:00"),
        ("@weekly", "Every Sunday at 00:00"),
        ("nonsense", ""),
    ],
)
def test_cron_is_told_in_words(expression: str, words: str) -> None:
    assert in_words([expression]) == words


async def test_a_schedule_is_told_in_words_on_its_pages(shop: tuple[Settings, Seeded]) -> None:
    settings, _ = shop
    async with browsing(settings) as browser:
        for path in ("/schedules", "/schedules/nightly_rollup"):
            assert "Every day at 02:00" in text_of(await browser.get(path))


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


async def test_what_waits_in_a_paused_queue_could_not_start(settings: Settings, db: Database) -> None:
    await put_one(db, queue="parked")
    await db.fetch("UPDATE aaiclick_queue.ready SET ready_at = now() - interval '2 h'")
    async with browsing(settings) as browser:
        assert "In line 1 tasks that could start now Oldest waits 2h" in text_of(await browser.get("/"))
        await browser.post("/api/v1/queues/parked/pause", json={})
        assert "In line 0 tasks that could start now Oldest waits –" in text_of(await browser.get("/"))


@pytest.mark.parametrize("hours", [1, 6, 24, 168])
async def test_done_a_minute_is_of_the_last_five_full_minutes(settings: Settings, db: Database, hours: int) -> None:
    await db.fetch(DONE_BY_MINUTE)
    async with browsing(settings) as browser:
        page = await browser.get("/", params={"hours": hours})
    assert "Done a minute 30 over the last 5 minutes" in text_of(page)


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


async def test_every_chart_has_its_numbers_as_a_table(shop: tuple[Settings, Seeded]) -> None:
    settings, _ = shop
    async with browsing(settings) as browser:
        for path, drawn in (("/", ("chart",)), ("/queues/mail", ("chart", "histogram"))):
            page = (await browser.get(path)).text
            charts = sum(page.count(f'class="{kind}"') for kind in drawn)
            assert charts
            assert page.count('<details class="twin">') == charts / 2, "one for the wide and the narrow drawing"
        for path in ("/tasks", "/jobs", "/queues", "/schedules", "/audit"):
            assert (await browser.get(path)).text.count("aria-sort=") == 1, path
        assert 'role="button"' not in (await browser.get("/outbox")).text


async def test_the_dialog_of_limits_shows_what_is_set_and_each_limit_can_be_removed(settings: Settings) -> None:
    async with browsing(settings) as browser:
        given = {"running": 5, "rate": "100/min", "max_depth": 9, "objective_seconds": 2.5}
        await browser.put("/api/v1/queues/mail/limits", json=given)
        page = unescape((await browser.get("/queues/mail")).text)
        for shown in ('"value": 5', '"value": "100/60s"', '"value": 9', '"value": 2.5'):
            assert shown in page
        limits = unescape((await browser.get("/limits")).text)
        assert limits.count(">Remove</button>") == 3
        assert 'data-body="{"max_depth": null}"' in limits
        await browser.put("/api/v1/queues/mail/limits", json={"max_depth": None, "rate": None})
        assert (await browser.get("/limits")).text.count(">Remove</button>") == 1


async def test_the_first_page_shows_how_long_tasks_waited_and_ran(shop: tuple[Settings, Seeded]) -> None:
    settings, _ = shop
    async with browsing(settings) as browser:
        for hours in (1, 24):
            page = await browser.get(f"/?hours={hours}")
            labels = re.findall(
                r'<svg class="chart"[^>]* aria-label="(Average wait and run of tasks that ended, at most [^"]+)"',
                page.text,
            )
            assert len(labels) == 2, "for a wide window and for a narrow one"
            assert {'class="line waited"', 'class="line ran"'} <= set(re.findall(r'class="line \w+"', page.text))
            assert "waited in line, average" in text_of(page)


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
