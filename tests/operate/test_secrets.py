"""A secret argument reaches its task as it is, and nobody else: it is planted through every door and looked for."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
from typing import Annotated, Any

import msgspec
import pytest
from pydantic import BaseModel, SecretBytes, SecretStr

from aaiclick_queue import Client, EndedTask, Secret, Task, current, enqueue, job, register_job, run_job, task
from aaiclick_queue.codec import Signature
from aaiclick_queue.errors import ArgumentsDoNotFit, BadTask
from aaiclick_queue.explaining import explain_task
from aaiclick_queue.failing import get_failure, list_failures
from aaiclick_queue.job_graphs import read_graph
from aaiclick_queue.job_outputs import read_outputs, read_result
from aaiclick_queue.job_views import read_job
from aaiclick_queue.operations import retry
from aaiclick_queue.postgres import Database
from aaiclick_queue.redaction import SIGN, hidden, hidden_in, opened, redacted, secrets_in, shown_json
from aaiclick_queue.registered import read_registered_job
from aaiclick_queue.settings import Settings
from aaiclick_queue.timelines import Asked, read_timeline
from aaiclick_queue.views import get_task, list_tasks
from tests.cli.conftest import Invoke
from tests.tools import changed, running_worker, until

PLANTED = "hunter2-"  # every secret of these tests begins so
got: list[Any] = []


@dataclasses.dataclass
class Login:
    user: str
    pin: Annotated[str, Secret()]


class Config(BaseModel):
    host: str
    key: SecretStr
    inner: Config | None = None


class Packed(msgspec.Struct, rename="camel"):
    my_code: Annotated[str, Secret()]
    other: int = 1


@task(max_attempts=1)
async def call(
    *,
    code: Annotated[str, Secret()],
    key: SecretStr | None = None,
    raw: SecretBytes | None = None,
    config: Config | None = None,
    logins: list[Login] | None = None,
    packed: Packed | None = None,
    whole: Annotated[dict[str, str] | None, Secret()] = None,
    fails: bool = False,
) -> str:
    got.append((code, key, raw, config, logins, packed, whole))
    await current().progress({"said": code})
    await current().checkpoint({"said": code})
    if fails:
        raise ValueError(f"cannot log in with {code} and {[code]!r}")
    return "done"


@task
async def by_name_only(password: str, to: str, fails: bool = False) -> None:
    got.append((password, to))
    if fails:
        raise ValueError(f"no {password}")


@task
async def told(ended: EndedTask) -> None:
    got.append(ended.kwargs)


@task
async def give() -> list[str]:
    return [f"{PLANTED}item-{number}" for number in range(2)]


@task
async def takes(code: Annotated[str, Secret()], more: Annotated[str, Secret()]) -> None:
    got.append((code, more))


@task
async def parent(code: Annotated[str, Secret()]) -> None:
    await current().enqueue(takes, code=code, more=f"{PLANTED}more")


@job
def flow(code: Annotated[str, Secret()]) -> None:
    takes(code=code, more=f"{PLANTED}constant")


@task
async def repeats(code: Annotated[str, Secret()]) -> dict[str, Any]:
    return {"said": code, "all": [f"it was {code}"]}


@job
def repeating(code: Annotated[str, Secret()]) -> Any:
    return repeats(code=code)


@job
def mapped_secrets() -> None:
    takes.map(give(), more=f"{PLANTED}constant")


@pytest.fixture(autouse=True)
def nothing_got() -> None:
    got.clear()


async def everything_shown(db: Database, invoke: Invoke) -> str:
    """All that people can read of all tasks and jobs, by functions and by commands, as one text."""
    shown: list[Any] = [await list_tasks(db), await list_failures(db, acknowledged=True)]
    for row in await db.fetch("SELECT id FROM aaiclick_queue.tasks"):
        shown += [await get_task(db, row["id"]), await read_timeline(db, "task", row["id"], Asked())]
        shown.append(await explain_task(db, row["id"]))
        for words in (("task", "get"), ("task", "explain"), ("task", "timeline")):
            for more in ([], ["--json"]):
                shown.append((await asyncio.to_thread(invoke, *words, str(row["id"]), *more)).output)
    for row in await db.fetch("SELECT id FROM aaiclick_queue.jobs"):
        shown += [await read_job(db, row["id"]), await read_timeline(db, "job", row["id"], Asked())]
        shown.append(await read_graph(db, row["id"], total=100))
        for words in (("job", "get"), ("job", "timeline")):
            shown.append((await asyncio.to_thread(invoke, *words, str(row["id"]), "--json")).output)
    for group in (await list_failures(db, acknowledged=True)).groups:
        shown.append(await get_failure(db, group.fingerprint))
    for line in ("task list", "failures", "job list"):
        shown.append((await asyncio.to_thread(invoke, *line.split())).output)
    rows = [dict(row) for table in ("attempts", "progress") for row in await db.fetch(
        f"SELECT {'error' if table == 'attempts' else 'data'}::text AS text FROM aaiclick_queue.{table}")]  # fmt: skip
    rows += [dict(row) for row in await db.fetch("SELECT error::text AS text FROM aaiclick_queue.tasks")]
    return "\n".join([*map(str, shown), msgspec.json.encode(rows).decode()])


async def done(db: Database, count: int) -> None:
    await until(lambda: _ended(db, count))


async def _ended(db: Database, count: int) -> bool:
    found = await db.fetchval("SELECT count(*) FROM aaiclick_queue.tasks WHERE status IS NOT NULL")
    return bool(found >= count)


def secrets() -> dict[str, Any]:
    return {
        "code": f"{PLANTED}code",
        "key": SecretStr(f"{PLANTED}key"),
        "raw": SecretBytes(f"{PLANTED}raw".encode()),
        "config": Config(host="a", key=f"{PLANTED}1", inner=Config(host="b", key=f"{PLANTED}2")),  # type: ignore[arg-type]
        "logins": [Login("ada", f"{PLANTED}pin")],
        "packed": Packed(f"{PLANTED}packed"),
        "whole": {"a": f"{PLANTED}a"},
    }


@pytest.mark.parametrize("fails", [False, True])
async def test_a_marked_argument_arrives_and_is_shown_nowhere(  # noqa: PLR0917 - one a fixture
    db: Database, client: Client, quick: Settings, invoke: Invoke, caplog: pytest.LogCaptureFixture, fails: bool
) -> None:
    given = secrets()
    with caplog.at_level(logging.DEBUG):
        async with running_worker(quick):
            handle = await call.options(on_failure=told, on_success=told).enqueue(**given, fails=fails, client=client)
            await done(db, 2)
    assert got[0] == tuple(given.values())
    assert got[1]["code"] == given["code"]
    shown = await everything_shown(db, invoke)
    assert PLANTED not in shown
    assert PLANTED not in caplog.text + "".join(str(vars(record)) for record in caplog.records)
    assert SIGN in shown
    found = await get_task(db, handle.id)
    assert found
    assert found.kwargs["config"] == {"host": "a", "key": SIGN, "inner": {"host": "b", "key": SIGN, "inner": None}}
    assert found.kwargs["logins"] == [{"user": "ada", "pin": SIGN}]
    assert found.kwargs["packed"] == {"myCode": SIGN, "other": 1}
    if fails:
        assert found.error
        assert found.error.message == f"cannot log in with {SIGN} and ['{SIGN}']"


async def test_what_has_the_name_of_a_secret_is_not_shown_either(
    db: Database, client: Client, quick: Settings, invoke: Invoke, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_worker(quick):
        await enqueue(
            by_name_only.entrypoint,
            {"password": f"{PLANTED}x", "to": "ada", "fails": True},
            max_attempts=1,
            client=client,
        )
        await enqueue(by_name_only.entrypoint, {"password": "plain", "to": {"$secret": f"{PLANTED}to"}}, client=client)
        await done(db, 2)
    assert sorted(got) == [(f"{PLANTED}x", "ada"), ("plain", f"{PLANTED}to")]
    assert PLANTED not in await everything_shown(db, invoke) + caplog.text


async def test_a_secret_by_sql_is_marked_as_it_is_by_name(db: Database, quick: Settings, invoke: Invoke) -> None:
    from tests.tools import put_one

    kwargs = json.dumps({"code": {"$secret": f"{PLANTED}sql"}, "more": f"{PLANTED}more"})
    async with running_worker(quick):
        task_id = await put_one(db, kwargs, entrypoint=takes.entrypoint)
        await done(db, 1)
    assert got == [(f"{PLANTED}sql", f"{PLANTED}more")]
    found = await get_task(db, task_id)
    assert found
    assert found.kwargs == {"code": SIGN, "more": f"{PLANTED}more"}  # nobody has marked that one


async def test_secrets_of_children_jobs_and_maps_are_kept(
    db: Database, client: Client, quick: Settings, invoke: Invoke
) -> None:
    async with running_worker(quick):
        await parent.enqueue(code=f"{PLANTED}parent", client=client)
        await flow.enqueue(code=f"{PLANTED}flow", client=client)
        await run_job(flow.entrypoint, {"code": f"{PLANTED}run"}, client=client)
        made = await mapped_secrets.enqueue(client=client)
        await made.result(timeout=30)
        await until(lambda: len(got) == 5)
        await until(lambda: _no_open(db))
    assert sorted(got) == [
        (f"{PLANTED}flow", f"{PLANTED}constant"),
        (f"{PLANTED}item-0", f"{PLANTED}constant"),
        (f"{PLANTED}item-1", f"{PLANTED}constant"),
        (f"{PLANTED}parent", f"{PLANTED}more"),
        (f"{PLANTED}run", f"{PLANTED}constant"),
    ]
    await db.fetch("UPDATE aaiclick_queue.tasks SET result = NULL WHERE entrypoint LIKE '%give'")  # a result is shown
    assert PLANTED not in await everything_shown(db, invoke)


async def test_a_result_that_repeats_a_secret_is_given_to_code_and_not_shown(
    db: Database, client: Client, quick: Settings, invoke: Invoke
) -> None:
    real, sign = ({"said": one, "all": [f"it was {one}"]} for one in (f"{PLANTED}again", SIGN))
    async with running_worker(quick):
        alone = await repeats.enqueue(code=f"{PLANTED}again", client=client)
        made = await repeating.enqueue(code=f"{PLANTED}again", client=client)
        assert await alone.result(timeout=30) == real
        assert await made.result(timeout=30) == real
    found = await get_task(db, alone.id)
    assert found
    assert found.result == sign
    assert await read_result(db, made.id) == (True, sign)
    assert (await read_outputs(db, made.id, completed=1)).outputs == {"repeats": sign}
    assert PLANTED not in await everything_shown(db, invoke)


async def _no_open(db: Database) -> bool:
    return not await db.fetch("SELECT 1 FROM aaiclick_queue.tasks WHERE status IS NULL")


async def test_arguments_of_a_registered_job_are_marked_and_run(
    db: Database, client: Client, quick: Settings, invoke: Invoke
) -> None:
    await register_job("nightly", flow, default_kwargs={"code": f"{PLANTED}nightly"}, client=client)
    assert (await read_registered_job(db, "nightly")).default_kwargs == {"code": SIGN}
    ran = await asyncio.to_thread(invoke, "registered-job", "get", "nightly", "--json")
    assert PLANTED not in ran.output
    async with running_worker(quick):
        await run_job("nightly", client=client)
        await until(lambda: got == [(f"{PLANTED}nightly", f"{PLANTED}constant")])
        await until(lambda: _no_open(db))
    assert PLANTED not in await everything_shown(db, invoke)


async def test_a_retry_keeps_the_real_value(db: Database, client: Client, quick: Settings) -> None:
    async with running_worker(quick):
        handle = await call.enqueue(code=f"{PLANTED}code", fails=True, client=client)
        await done(db, 1)
        await retry([handle.id], client=client)
        await until(lambda: len(got) == 2)
        await done(db, 1)
    assert [one[0] for one in got] == [f"{PLANTED}code"] * 2


async def test_more_names_can_be_set(settings: Settings) -> None:
    from tests.tools import put_one

    async with Database(changed(settings, redact_names="iban, Customer_No"), size=1) as db:
        task_id = await put_one(db, '{"iban": "DE02", "customer_no": 17, "to": "ada", "max_tokens": 10, "token": null}')
        found = await get_task(db, task_id)
    assert found
    assert found.kwargs == {"iban": SIGN, "customer_no": SIGN, "to": "ada", "max_tokens": 10, "token": None}


async def test_dry_runs_do_not_repeat_secrets(invoke: Invoke) -> None:
    kwargs = json.dumps({"password": f"{PLANTED}x", "to": "ada"})
    for words in (("task", "enqueue", "shop.mail.send"), ("run-job", "shop.mail.send")):
        ran = invoke(*words, "--kwargs", kwargs, "--dry-run")
        assert PLANTED not in ran.output
        assert "ada" in ran.output


# The words.


def takes_anything(value: Any, code: Annotated[str, Secret()] = "") -> None: ...


def test_a_dict_that_looks_like_a_mark_is_refused() -> None:
    with pytest.raises(ArgumentsDoNotFit, match="how a secret is marked"):
        Signature.of(takes_anything).encode((), {"value": {"$secret": 1}})


def test_a_key_that_would_show_a_secret_is_refused() -> None:
    keyed: Task[Any, Any] = takes.options(concurrency_key="by-{code}")
    with pytest.raises(BadTask, match="names a secret"):
        keyed.new_task(keyed.signature.encode((), {"code": "x", "more": "y"}))


@pytest.mark.parametrize(
    "value", ["plain", 'with "quotes" and \\', "line\nbreak", "żółć", 12345, {"a": ["b", 1.5]}, None]
)
def test_a_mark_is_opened_as_it_was_written(value: Any) -> None:
    for separators in ((",", ":"), (", ", ": ")):
        text = json.dumps(
            {"a": {"$secret": value}, "b": [{"$secret": {"c": {"$secret": value}}}]}, separators=separators
        )
        assert json.loads(opened(text)) == {"a": value, "b": [{"c": value}]}
        assert shown_json(text) == {"a": SIGN, "b": [SIGN]}


def test_a_text_that_only_looks_like_a_mark_is_left_alone() -> None:
    text = json.dumps({"a": '{"$secret": "x"}', "b": {"$secret": "x", "other": 1}})
    assert opened(text) == text
    assert shown_json(text)["a"] == '{"$secret": "x"}'


def test_secrets_are_hidden_however_they_are_written() -> None:
    [secret] = secrets_in('{"a": {"$secret": "it\'s \\"x\\"\\n"}}')
    for text in (secret, repr(secret), json.dumps(secret)):
        assert hidden(f"<{text}>", [secret]).strip("<>'\"") == SIGN
    assert secrets_in('{"password": "abc", "token": "abcd"}') == ("abcd",)
    assert secrets_in('{"to": "ada"}') == ()


def test_each_line_of_a_secret_is_hidden_where_it_is_printed() -> None:
    key = "-----BEGIN KEY-----\nMIIEvQIBADANBg\n  kqhkiG9w0BAQEF\r\nend\n-----END KEY-----\n"
    found = secrets_in(json.dumps({"code": {"$secret": key}, "to": "ada"}))
    shown = [hidden(line, found) for line in key.splitlines()]
    assert shown == [SIGN, SIGN, f"  {SIGN}", "end", SIGN]
    assert hidden(f"<{key}>", found) == f"<{SIGN}>"


def test_json_stays_json_whatever_the_secrets_are() -> None:
    value = {"type": "a type", "n": 12345, "list": [12345.5, True, None, {"type": "12345"}]}
    found = hidden_in(value, ["type", "12345", "true", "null", '", "'])
    assert found == {"type": f"a {SIGN}", "n": SIGN, "list": [12345.5, True, None, {"type": SIGN}]}


async def test_a_secret_that_is_a_word_of_ours_breaks_no_view(
    db: Database, client: Client, quick: Settings, invoke: Invoke
) -> None:
    async with running_worker(quick):
        handle = await call.enqueue(code="message", whole={"a": "type"}, fails=True, client=client)
        await done(db, 1)
    found = await get_task(db, handle.id)
    assert found
    assert found.error
    assert found.error.message.startswith("cannot log in with ••••")
    assert found.progress == {"said": SIGN}


def test_names_are_looked_at_wherever_they_stand() -> None:
    given = {
        "a": [{"apiKey": "x", "API_KEY": "y", "Authorization": "z"}],
        "db_credentials": {"user": "u"},
        "is_secret": True,
    }
    assert redacted(given) == {
        "a": [{"apiKey": SIGN, "API_KEY": SIGN, "Authorization": SIGN}],
        "db_credentials": SIGN,
        "is_secret": True,
    }
