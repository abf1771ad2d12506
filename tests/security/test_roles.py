"""Each database role does its work and nothing else: the whole flow runs under them, and Postgres refuses the rest."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg
import httpx
import psycopg
import pytest
from click.testing import CliRunner, Result
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from aaiclick_queue import Client, current, handle, job, job_handle, limit_queue, migrate, task
from aaiclick_queue.cli import main
from aaiclick_queue.errors import DuplicateTask, NotAllowed, QueueError
from aaiclick_queue.flow.days import drop_old_days
from aaiclick_queue.flow.heartbeat import Identity, register
from aaiclick_queue.flow.reaper import Reaper, ensure_partitions
from aaiclick_queue.postgres import Database
from aaiclick_queue.roles import KINDS, Kind, role_name
from aaiclick_queue.schema import schema_sql
from aaiclick_queue.settings import PREFIX, Settings
from tests.security.guarded import OWNER, Guarded
from tests.server.serving import served, token
from tests.tools import changed, running_worker, until

attempts: list[int] = []


@task
async def double(number: int) -> int:
    return number * 2


@task
async def add(left: int, right: int) -> int:
    await current().progress({"at": left})
    return left + right


@task(max_attempts=2, retry_delay=0.01)
async def fails_once() -> str:
    attempts.append(1)
    if len(attempts) == 1:
        raise ValueError("the first time")
    return "done"


@task
async def spawns() -> str:
    await current().enqueue(double, 4)
    async with current().transaction() as connection:
        await connection.fetch("SELECT 1")
    return "spawned"


@job(max_parallel=2)
def sums(number: int) -> Any:
    return add(double(number), double(number + 1))


@asynccontextmanager
async def connected(settings: Settings) -> AsyncIterator[Client]:
    client = Client(settings)
    try:
        yield client
    finally:
        await client.close()


def logins(guarded: Guarded, owner: Settings, *kinds: Kind) -> list[Settings]:
    return [guarded.as_(owner, kind) for kind in kinds]


async def all_ended(owner: Settings, count: int) -> None:
    async with Database(owner, size=1) as db:
        await until(lambda: ended(db, count))


async def ended(db: Database, count: int) -> bool:
    sql = "SELECT count(*) = $1 AND bool_and(status = 'COMPLETED') FROM aaiclick_queue.tasks"
    return bool(await db.fetchval(sql, count))


@pytest.mark.parametrize("with_redis", [False, True])
async def test_one_role_enqueues_another_works_and_a_third_waits_for_results(
    guarded: Guarded, owner: Settings, redis_url: str, with_redis: bool
) -> None:
    attempts.clear()
    redis = {"redis_url": redis_url, "redis_prefix": owner.postgres_schema} if with_redis else {}
    enqueue_only, worker, results = (
        changed(one, **redis) for one in logins(guarded, owner, "enqueue", "worker", "results")
    )
    async with connected(worker) as client:
        await limit_queue("narrow", max_running=1, client=client)
    async with running_worker(worker, queues={"default": 1, "narrow": 1}), connected(enqueue_only) as client:
        first = await double.enqueue(21, client=client)
        await fails_once.enqueue(client=client)
        await spawns.enqueue(client=client)
        await double.options(queue="narrow").enqueue_many([{"number": n} for n in range(5)], client=client)
        await double.options(countdown=0.1, expires=timedelta(hours=1)).enqueue(1, client=client)
        await double.options(order_by="a customer", concurrency_key="one").enqueue(1, client=client)
        keyed = double.options(dedupe_key="one", dedupe_until=60)
        kept = await keyed.enqueue(1, client=client)
        assert (await keyed.options(dedupe="skip").enqueue(1, client=client)).id == kept.id
        with pytest.raises(DuplicateTask):
            await keyed.enqueue(1, client=client)
        made = await sums.enqueue(3, client=client)
        by_sql = await (await client.database()).fetchval(
            "SELECT aaiclick_queue.enqueue($1, '{\"number\": 1}')", double.entrypoint
        )
        assert by_sql
        async with connected(results) as waiting:
            assert await handle(first.id, client=waiting).result(timeout=30) == 42
            with pytest.raises(NotAllowed, match="vault_enqueue_login"):
                await first.result(timeout=30)
            assert await job_handle(made.id, client=waiting).result(timeout=30) == 14
        await all_ended(owner, 16)


async def test_the_applications_own_session_enqueues_with_that_role_too(guarded: Guarded, owner: Settings) -> None:
    [enqueue_only] = logins(guarded, owner, "enqueue")
    assert enqueue_only.postgres_url
    engine = create_async_engine(enqueue_only.postgres_url.replace("postgresql://", "postgresql+asyncpg://"))
    async with connected(enqueue_only) as client:
        async with AsyncSession(engine) as session, session.begin():
            await double.enqueue(1, client=client, connection=session)
            await sums.enqueue(1, client=client, connection=session)
        with psycopg.connect(enqueue_only.postgres_url) as connection:
            double.options(dedupe_key="x", client=client, connection=connection).delay(2)
    await engine.dispose()
    async with Database(owner, size=1) as db:
        assert await db.fetchval("SELECT count(*) FROM aaiclick_queue.tasks") == 5


# What is refused, and how it is told.

FORBIDDEN: dict[Kind, list[str]] = {
    "enqueue": [
        "SELECT kwargs FROM aaiclick_queue.tasks",
        "SELECT result FROM aaiclick_queue.tasks",
        "SELECT kwargs FROM aaiclick_queue.jobs",
        "SELECT data FROM aaiclick_queue.events",
        "SELECT 1 FROM aaiclick_queue.attempts",
        "SELECT 1 FROM aaiclick_queue.leases",
        "SELECT 1 FROM aaiclick_queue.registered_jobs",
        "SELECT 1 FROM aaiclick_queue.checkpoints",
        "SELECT 1 FROM aaiclick_queue.tokens",
        "UPDATE aaiclick_queue.tasks SET status = 'COMPLETED'",
        "UPDATE aaiclick_queue.tasks SET kwargs = '{}'",
        "INSERT INTO aaiclick_queue.tasks (id, queue, entrypoint, kwargs, status) VALUES (1, 'q', 'e', '{}', 'FAILED')",
        "INSERT INTO aaiclick_queue.tasks (id, queue, entrypoint, kwargs, result) VALUES (1, 'q', 'e', '{}', '1')",
        "INSERT INTO aaiclick_queue.leases (task_id) VALUES (1)",
        "INSERT INTO aaiclick_queue.limits (scope, name, kind, n) VALUES ('queue', 'q', 'running', 1)",
        "INSERT INTO aaiclick_queue.registered_jobs (name) VALUES ('x')",
        "UPDATE aaiclick_queue.queues SET paused_at = now()",
        "DELETE FROM aaiclick_queue.tasks",
        "DELETE FROM aaiclick_queue.ready",
        "DELETE FROM aaiclick_queue.dedupe",
        "DELETE FROM aaiclick_queue.events",
        "SELECT aaiclick_queue.ensure_partitions(14)",
        "SELECT aaiclick_queue.drop_day('events_20200101')",
    ],
    "results": [
        "SELECT kwargs FROM aaiclick_queue.tasks",
        "SELECT kwargs FROM aaiclick_queue.jobs",
        "UPDATE aaiclick_queue.tasks SET result = '1'",
        "INSERT INTO aaiclick_queue.ready (queue, rank, order_key, task_id) VALUES ('q', 0, 1, 1)",
        "SELECT aaiclick_queue.enqueue('shop.mail.send')",
    ],
    "worker": [
        "SELECT digest FROM aaiclick_queue.tokens",
        "INSERT INTO aaiclick_queue.tokens (name, role, digest) VALUES ('x', 'admin', '')",
        "UPDATE aaiclick_queue.alembic_version SET version_num = '0001'",
    ],
    "read": [
        "SELECT digest FROM aaiclick_queue.tokens",
        "UPDATE aaiclick_queue.tasks SET status = 'CANCELLED'",
        "INSERT INTO aaiclick_queue.outbox (queue, rank, order_key, n, task_ids) VALUES ('q', 0, 0, 0, '{}')",
        "DELETE FROM aaiclick_queue.workers",
        "SELECT aaiclick_queue.enqueue('shop.mail.send')",
        "SELECT aaiclick_queue.ensure_partitions(14)",
        "SELECT nextval('aaiclick_queue.id_sequence')",
    ],
    "operator": ["DELETE FROM aaiclick_queue.tokens"],
}
# Nobody but the owner changes the shape of anything.
SHAPES = [
    "TRUNCATE aaiclick_queue.tasks",
    "DROP TABLE aaiclick_queue.tasks",
    "ALTER TABLE aaiclick_queue.tasks ADD COLUMN more text",
    "CREATE TABLE aaiclick_queue.more (id int)",
    "CREATE OR REPLACE FUNCTION aaiclick_queue.drop_day(day text) RETURNS boolean LANGUAGE sql AS 'SELECT true'",
    "CREATE TRIGGER t AFTER INSERT ON aaiclick_queue.tasks EXECUTE FUNCTION aaiclick_queue.keep_failures()",
    "ALTER TABLE aaiclick_queue.tokens OWNER TO CURRENT_USER",
    "DROP SCHEMA aaiclick_queue CASCADE",
]


async def test_postgres_refuses_each_role_whatever_is_not_its_work(guarded: Guarded, owner: Settings) -> None:
    allowed = []
    for kind in KINDS:
        async with Database(guarded.as_(owner, kind), size=1) as db, db.connection() as connection:
            for sql in FORBIDDEN[kind] + SHAPES:
                named = schema_sql(sql, owner.postgres_schema).replace(
                    "SCHEMA aaiclick_queue", f"SCHEMA {owner.postgres_schema}"
                )
                try:
                    await connection.raw.execute(named)
                except (asyncpg.InsufficientPrivilegeError, asyncpg.UndefinedObjectError):
                    continue
                except asyncpg.PostgresSyntaxError as error:
                    raise AssertionError(sql) from error
                allowed.append((kind, sql))
    assert allowed == []


async def test_a_missing_right_is_told_with_the_role_and_what_to_grant(guarded: Guarded, owner: Settings) -> None:
    for kind, login in (("enqueue", "vault_enqueue_login"), (None, "nobody")):
        url = guarded.url(login, owner.postgres_url.rpartition("/")[2])  # type: ignore[union-attr]
        client = Client(changed(owner, postgres_url=url))
        with pytest.raises(NotAllowed, match=rf"role '{login}' may not.*GRANT vault_worker TO {login}"):
            await (client.cancel([1]) if kind else client.database())
        await client.close()
    with pytest.raises(NotAllowed, match="vault_read_login"):
        async with running_worker(guarded.as_(owner, "read")):
            pass
    with pytest.raises(QueueError, match="migrate with the role that owns"):
        await migrate.downgrade(guarded.as_(owner, "worker"), "base")


def cli(settings: Settings, *words: str) -> Result:
    given = {PREFIX + "POSTGRES_URL": settings.postgres_url, PREFIX + "POSTGRES_SCHEMA": settings.postgres_schema}
    return CliRunner().invoke(main, words, env=given)


def test_the_command_line_works_with_the_rights_it_has(guarded: Guarded, owner: Settings) -> None:
    reader, operator = logins(guarded, owner, "read", "operator")
    made = cli(operator, "task", "enqueue", double.entrypoint, "--kwargs", '{"number": 1}')
    assert made.exit_code == 0, made.output
    for words in ("doctor", "task list", "queue list", "workers list", "migrate current", "failures", "job list"):
        ran = cli(reader, *words.split())
        assert ran.exit_code == 0, (words, ran.output)
    refused = cli(reader, "queue", "pause", "default", "--yes")
    assert refused.exit_code == 1
    assert "vault_read_login" in refused.output
    assert f"GRANT {owner.postgres_schema}_worker TO vault_read_login" in refused.output
    assert cli(operator, "token", "create", "deploy", "--role", "reader").exit_code == 0
    assert "permission denied for table tokens" in cli(reader, "token", "list").output


def test_a_server_that_only_reads_needs_no_more_than_the_role_for_it(guarded: Guarded, owner: Settings) -> None:
    reader, operator = logins(guarded, owner, "read", "operator")
    with served(reader, read_only=True) as http:
        root = str(http.base_url).removesuffix("/api/v1/")
        for path in ("/", "/tasks", "/jobs", "/queues", "/workers", "/failures", "/outbox", "/metrics", "/schedules"):
            answer = httpx.get(root + path, follow_redirects=True, timeout=30)
            assert answer.status_code == 200, (path, answer.text)
        assert http.post("/queues/mail/pause").status_code == 403
    shown = {"Authorization": f"Bearer {token(operator, 'admin')}"}
    with served(operator, auth="tokens") as http:
        assert http.post("/queues/mail/pause", headers=shown).status_code in (200, 204)
        assert http.get("/queues").status_code == 401


# Days of history, which only an owner may make and drop.


async def test_a_worker_makes_and_drops_days_of_history_that_it_does_not_own(guarded: Guarded, owner: Settings) -> None:
    async with Database(owner, size=1) as db, Database(guarded.as_(owner, "worker"), size=2) as worker:
        days = await names_of_days(db)
        async with db.connection() as connection:
            await connection.alone(f"DROP TABLE aaiclick_queue.{days[-1]}")
        await ensure_partitions(worker)
        assert await names_of_days(db) == days
        for parent in ("attempts", "events"):
            async with db.connection() as connection:
                await connection.alone(
                    f"CREATE TABLE aaiclick_queue.{parent}_20200101 PARTITION OF aaiclick_queue.{parent} "
                    "FOR VALUES FROM ('2020-01-01 00:00+00') TO ('2020-01-02 00:00+00')"
                )
        dropped = await drop_old_days(worker, 86400 * 30)
        assert dropped.names == ["attempts_20200101", "events_20200101"]
        assert await names_of_days(db) == days
        ahead = days[-1]
        for name in (ahead, "tasks", "events_2020", "events_20200101; DROP TABLE x"):
            with pytest.raises(asyncpg.InvalidParameterValueError, match="no day of history"):
                await worker.fetch("SELECT aaiclick_queue.drop_day($1)", name)
        assert await worker.fetchval("SELECT aaiclick_queue.drop_day('events_20200101')") is False


async def test_a_worker_that_may_not_ask_for_the_timeline_takes_back_what_was_lost(
    guarded: Guarded, owner: Settings
) -> None:
    assert owner.postgres_url
    database = owner.postgres_url.rpartition("/")[2]
    guarded.run("REVOKE EXECUTE ON FUNCTION pg_walfile_name(pg_lsn) FROM PUBLIC", database)
    async with Database(guarded.as_(owner, "worker"), size=2) as db:
        await register(db, Identity(1, 1, 1, "gone", "0", ("default",)), lease_seconds=0.1)
        await until(lambda: _has_marked(db))
        assert not await db.fetchval("SELECT count(*) FROM aaiclick_queue.loops")


async def _has_marked(db: Database) -> bool:
    return (await Reaper(db).reap_once()).workers == 1


async def names_of_days(db: Database) -> list[str]:
    sql = "SELECT relname::text AS name FROM pg_class WHERE relispartition AND relkind = 'r' ORDER BY 1"
    return [row["name"] for row in await db.fetch(sql)]


async def test_a_function_with_the_owners_rights_takes_no_object_of_its_caller(
    guarded: Guarded, owner: Settings
) -> None:
    async with Database(guarded.as_(owner, "worker"), size=1) as db, db.connection() as connection:
        for sql in (
            "CREATE FUNCTION pg_temp.hashtext(text) RETURNS int LANGUAGE sql AS 'SELECT 1/0'",
            "CREATE FUNCTION pg_temp.format(text, text, text) RETURNS text LANGUAGE sql AS 'SELECT $$DROP TABLE x$$'",
            "SET search_path = pg_temp, pg_catalog",
        ):
            await connection.raw.execute(sql)
        await connection.fetch("SELECT aaiclick_queue.ensure_partitions(15)")
    async with Database(owner, size=1) as db:
        paths = await db.fetch(
            """SELECT p.proname::text AS name, p.proconfig AS config FROM pg_proc p
               WHERE p.prosecdef AND p.pronamespace = (SELECT relnamespace FROM pg_class
                                                       WHERE oid = to_regclass('aaiclick_queue.tasks'))"""
        )
    assert {row["name"]: row["config"][0] for row in paths} == {
        "ensure_partitions": "search_path=pg_catalog, pg_temp",
        "drop_day": "search_path=pg_catalog, pg_temp",
    }


# Before, after and between migrations.


async def test_roles_may_be_made_before_the_tables_and_are_kept_up_by_migrations(guarded: Guarded) -> None:
    with guarded.new_database("aaiclick_queue") as settings:
        await migrate.make_roles(settings)
        await migrate.upgrade(settings)
        guarded.make_logins("aaiclick_queue")
        before = await rights(settings)
        assert before
        await migrate.make_roles(settings)  # again changes nothing
        assert await rights(settings) == before
        await migrate.downgrade(settings, "0002")  # tables and views go, with their rights
        assert await rights(settings) != before
        await migrate.upgrade(settings)
        assert await rights(settings) == before
        async with connected(guarded.as_(settings, "enqueue")) as client:
            await sums.enqueue(1, client=client)


async def rights(settings: Settings) -> list[tuple[str, ...]]:
    sql = """SELECT c.relname::text AS what, r.rolname::text AS who, a.privilege_type::text AS right_
             FROM pg_class c CROSS JOIN aclexplode(c.relacl) a JOIN pg_roles r ON r.oid = a.grantee
             WHERE c.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = $1) AND r.rolname <> $2
             UNION ALL SELECT c.relname || '.' || t.attname, r.rolname, a.privilege_type
             FROM pg_attribute t JOIN pg_class c ON c.oid = t.attrelid CROSS JOIN aclexplode(t.attacl) a
             JOIN pg_roles r ON r.oid = a.grantee
             WHERE c.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = $1) AND r.rolname <> $2
             ORDER BY 1, 2, 3"""
    async with Database(settings, size=1) as db:
        return [tuple(row) for row in await db.fetch(sql, settings.postgres_schema, OWNER)]


def test_the_statements_can_be_handed_to_somebody_who_may_create_roles(guarded: Guarded) -> None:
    with guarded.new_database("other") as settings:
        asyncio.run(migrate.upgrade(settings))
        printed = cli(settings, "migrate", "roles", "--dry-run")
        assert printed.exit_code == 0, printed.output
        assert asyncio.run(rights(settings)) == []
        assert settings.postgres_url
        guarded.run(printed.output, settings.postgres_url.rpartition("/")[2])
        by_hand = asyncio.run(rights(settings))
        assert by_hand
        ran = cli(settings, "migrate", "roles")
        assert role_name(settings.postgres_schema, "enqueue") in ran.output
        assert asyncio.run(rights(settings)) == by_hand


def test_a_schema_whose_roles_would_share_a_name_is_refused() -> None:
    with pytest.raises(QueueError, match="shorter POSTGRES_SCHEMA"):
        role_name("s" * 60, "enqueue")
