"""Tasks are found by what is in their arguments, of the newest, and the answer says how many were looked through."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from aaiclick_queue import searching, views
from aaiclick_queue.errors import BadTask
from aaiclick_queue.outcome import Error, Failed
from aaiclick_queue.postgres import Database
from aaiclick_queue.status import Status
from aaiclick_queue.views import NEWEST, TaskFilter, list_tasks
from tests.cli.conftest import Invoke
from tests.planned import Job
from tests.tools import claim, end, put_one, register_worker


async def found(db: Database, search: str, **given: Any) -> list[int]:
    return [int(one.id) for one in (await list_tasks(db, TaskFilter(search=search, **given))).tasks]


@pytest.mark.parametrize(
    ("search", "hits"),
    [
        ("ada", [0]),
        ("ADA@", [0]),
        ('say "hi"', [1]),
        ("user.id=42", [0]),
        ("user.id=43", []),
        ("tags.0=new", [1]),
        ("paid=true", [1]),
        ("note=a=b", [0]),
        ('{"user": {"id": 42}}', [0]),
        ('{"tags": ["old"]}', [1]),
        ('{"tags": ["none"]}', []),
        ("nowhere", []),
    ],
)
async def test_text_a_path_and_json_find_tasks(db: Database, search: str, hits: list[int]) -> None:
    rows: list[dict[str, Any]] = [
        {"to": "Ada@example.com", "user": {"id": 42}, "note": "a=b"},
        {"text": 'they say "hi"', "tags": ["new", "old"], "paid": True},
    ]
    ids = [await put_one(db, json.dumps(row)) for row in rows]
    assert await found(db, search) == [ids[hit] for hit in hits]


async def test_other_filters_hold_too(db: Database) -> None:
    kwargs = '{"to": "ada"}'
    mail, _ = await put_one(db, kwargs, queue="mail"), await put_one(db, kwargs, queue="other")
    later = await put_one(db, kwargs, task={"countdown": 60.0})
    job = Job()
    only = job.task(kwargs=kwargs)
    await job.submit(db)
    assert await found(db, "ada", queue="mail") == [mail]
    assert await found(db, "to=ada", status=Status.SCHEDULED) == [later]
    assert await found(db, "ada", job_id=job.id) == [job[only]]
    assert len(await found(db, "ada", status=Status.QUEUED)) == 3


@pytest.mark.parametrize("search", [None, "ada"])
@pytest.mark.parametrize("source", [{}, {"status": Status.FAILED}, {"status": Status.QUEUED}, {"queue": "default"}])
@pytest.mark.parametrize(
    "word", [{"key": "k1"}, {"correlation_id": "order-7"}, {"priority": 5}, {"older_than": 1800.0}]
)
async def test_the_filter_words_of_acts_hold_in_lists_too(
    db: Database, search: str | None, source: dict[str, Any], word: dict[str, Any]
) -> None:
    worker_id = await register_worker(db)
    marks = {"concurrency_key": "k1", "correlation_id": "order-7"}
    await put_one(db, '{"to": "ada"}', max_attempts=1)
    meant = await put_one(db, '{"to": "ada"}', max_attempts=1, priority=5, task=marks)
    await put_one(db, '{"to": "ada"}', max_attempts=1)
    await db.fetch("UPDATE aaiclick_queue.tasks SET created_at = now() - interval '1 h' WHERE id = $1", meant)
    if source.get("status") == Status.FAILED:
        for run in await claim(db, worker_id):
            await end(db, run, Failed(Error("ValueError", "no luck")))
    page = await list_tasks(db, TaskFilter(search=search, **source, **word))
    assert [int(one.id) for one in page.tasks] == [meant]
    assert page.before is None


async def test_the_page_says_how_many_were_looked_through_and_whether_there_are_more(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = await put_one(db, '{"to": "ada"}')
    for _ in range(4):
        await put_one(db)
    page = await list_tasks(db, TaskFilter(search="ada"))
    assert (page.searched, page.is_cut, page.before) == (5, False, None)
    monkeypatch.setattr(views, "SEARCH_LIMIT", 4)
    page = await list_tasks(db, TaskFilter(search="ada"))
    assert (page.tasks, page.searched, page.is_cut) == ([], 4, True)
    assert page.before is not None
    page = await list_tasks(db, TaskFilter(search="ada"), before=int(page.before))
    assert [int(one.id) for one in page.tasks] == [old]


async def test_a_search_that_runs_out_of_time_tells_how_far_it_came_and_goes_on_from_there(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = await put_one(db, '{"to": "ada"}')
    for _ in range(4):
        await put_one(db)
    monkeypatch.setattr(searching, "FIRST_PART", 2)
    searched, before, hits = [], NEWEST, []
    while True:
        page = await list_tasks(db, TaskFilter(search="ada"), before=before, seconds=0.0)
        searched.append(page.searched)
        hits += [int(one.id) for one in page.tasks]
        assert page.is_cut is (page.before is not None)
        if page.before is None:
            break
        before = int(page.before)
    assert (searched, hits) == ([2, 2, 1], [old])


@pytest.mark.parametrize("wanted", [{}, {"queue": "mail"}, {"status": Status.FAILED, "queue": "mail"}])
async def test_a_search_goes_through_all_parts_whatever_the_other_filters_leave_of_them(
    db: Database, monkeypatch: pytest.MonkeyPatch, wanted: dict[str, Any]
) -> None:
    worker_id = await register_worker(db)
    for queue in ("mail", "other", "other", "other", "mail", "other"):
        await put_one(db, '{"to": "Ada"}', queue=queue, max_attempts=1)
    for run in await claim(db, worker_id, queues=["mail", "other"]):
        await end(db, run, Failed(Error("ValueError", "no luck")))
    monkeypatch.setattr(searching, "FIRST_PART", 2)
    assert len(await found(db, "ADA", **wanted)) == (2 if wanted else 6)


async def test_what_is_not_ascii_is_found_whatever_its_case(db: Database) -> None:
    task_id = await put_one(db, '{"to": "GRÖSSE"}')
    assert await found(db, "grösse") == [task_id]


async def test_a_list_without_a_search_says_nothing_of_one(db: Database) -> None:
    await put_one(db)
    page = await list_tasks(db)
    assert (page.searched, page.is_cut) == (None, False)


async def test_a_secret_cannot_be_guessed_by_searching_for_it(db: Database) -> None:
    await put_one(db, '{"code": {"$secret": "hunter2"}, "password": "hunter3", "to": "ada"}')
    assert len(await found(db, "ada")) == 1
    for guess in ("hunter2", "hunter3", "code.$secret=hunter2", "password=hunter3", '{"password": "hunter3"}'):
        assert await found(db, guess) == []
    assert await found(db, '{"code": {"$secret": "hunter2"}}') == []


async def test_hits_that_may_not_be_shown_do_not_hide_older_ones(db: Database) -> None:
    shown = await put_one(db, '{"to": "hunter2"}')
    for _ in range(5):
        await put_one(db, '{"password": "hunter2"}')
    page = await list_tasks(db, TaskFilter(search="hunter2"), limit=2)
    assert [int(one.id) for one in page.tasks] == [shown]


@pytest.mark.parametrize("limit", [1, 20, 50])
@pytest.mark.parametrize("secret", ['{"$secret": "hunter2"}', '"hunter2"'])
async def test_the_answer_to_a_right_guess_is_the_one_to_a_wrong_guess(db: Database, secret: str, limit: int) -> None:
    for _ in range(25):
        await put_one(db, f'{{"password": {secret}}}')
    right, wrong = [await list_tasks(db, TaskFilter(search=guess), limit=limit) for guess in ("hunter2", "hunter1")]
    assert right == wrong
    assert (right.searched, right.before) == (25, None)


async def test_a_full_page_leads_on_to_the_next_hit(db: Database) -> None:
    ids = [await put_one(db, '{"to": "ada"}') for _ in range(5)]
    page = await list_tasks(db, TaskFilter(search="ada"), limit=3)
    assert page.before == str(ids[2])
    page = await list_tasks(db, TaskFilter(search="ada"), limit=3, before=ids[2])
    assert [int(one.id) for one in page.tasks] == [ids[1], ids[0]]


@pytest.mark.parametrize("search", ["", "  ", "x" * 1001, "{not json"])
async def test_what_cannot_be_searched_for_is_refused(db: Database, search: str) -> None:
    with pytest.raises(BadTask, match="search="):
        await list_tasks(db, TaskFilter(search=search))


async def test_the_command(db: Database, invoke: Invoke) -> None:
    task_id = await put_one(db, '{"user": {"id": 42}}')
    await put_one(db)
    ran = await asyncio.to_thread(invoke, "task", "list", "--search", "user.id=42", "--json")
    assert [one["id"] for one in json.loads(ran.stdout)] == [str(task_id)]
