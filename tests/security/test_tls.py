"""TLS and passwords of Postgres and Redis, on real servers with certificates made here."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import trustme
from click.testing import CliRunner
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from aaiclick_queue import Client, current, embedded, migrate, task
from aaiclick_queue.channel import Channel
from aaiclick_queue.cli import main
from aaiclick_queue.errors import PostgresUnavailable, StreamsDown
from aaiclick_queue.postgres import Database
from aaiclick_queue.postgres_install import Install
from aaiclick_queue.settings import PREFIX, Settings
from aaiclick_queue.streams import Hint, Streams
from tests.server.serving import served
from tests.servers import OwnPostgres, find_tool
from tests.tools import running_worker, until
from tests.wires.redis_server import OwnRedis, free_port

PASSWORD, QUOTED = "p@ss/w:rd", "p%40ss%2Fw%3Ard"
# The one line that a Redis of ours needs; %s is the prefix.
ACL = "~{%s}:* &{%s}:* -@all +ping +xadd +xreadgroup +xgroup +xinfo +xlen +publish +subscribe"


@task
async def double(number: int) -> int:
    return number * 2


@task
async def within(number: int) -> int:
    async with current().transaction():
        current().result(number)
    return number


@task
def within_thread(number: int) -> int:
    with current().transaction():
        current().result(number)
    return number


class Papers:
    """A CA, another that nobody trusts, and what they have signed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca, self.stranger = trustme.CA(), trustme.CA()
        self.ca.cert_pem.write_to_path(folder / "ca.pem")
        self.stranger.cert_pem.write_to_path(folder / "stranger.pem")
        for name, made in {
            "server": self.ca.issue_cert("localhost"),
            "client": self.ca.issue_cert("client.test", common_name="certified"),
            "forged": self.stranger.issue_cert("client.test", common_name="certified"),
        }.items():
            made.private_key_pem.write_to_path(folder / f"{name}.key")
            (folder / f"{name}.key").chmod(0o600)
            (folder / f"{name}.pem").write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))

    def __truediv__(self, name: str) -> Path:
        return self.folder / name


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    return Papers(tmp_path_factory.mktemp("papers"))


class TlsPostgres(OwnPostgres):
    """A server of the machine's, since that of the wheel has no TLS: over TLS only, by password or certificate."""

    def __init__(self, papers: Papers) -> None:
        binary = find_tool("postgres")
        assert binary
        folder = Path(binary).resolve().parents[1]
        said = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout
        account = embedded.lent_account(Path("/nonexistent"))
        super().__init__(install=Install(folder, int(said.split()[2].split(".")[0]), account), ssl="on")
        for name in ("server.pem", "server.key", "ca.pem"):
            (self._data / name).write_bytes((papers / name).read_bytes())
            (self._data / name).chmod(0o600)
            if account:
                os.chown(self._data / name, account.pw_uid, account.pw_gid)
        self._parameters |= {"ssl_cert_file": "server.pem", "ssl_key_file": "server.key", "ssl_ca_file": "ca.pem"}
        self.papers = papers

    def close_to_others(self) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            for role in ("app", "certified"):
                connection.execute(f"CREATE ROLE {role} LOGIN SUPERUSER PASSWORD '{PASSWORD}'".encode())
            connection.execute("CREATE ROLE filed LOGIN SUPERUSER PASSWORD 'in-a-file'")
            (self._data / "pg_hba.conf").write_text(
                "hostssl all certified 127.0.0.1/32 cert\nhostssl all all 127.0.0.1/32 scram-sha-256\n"
            )
            connection.execute("SELECT pg_reload_conf()")

    def login(self, user: str = f"app:{QUOTED}", host: str = "localhost", **options: Any) -> str:
        given = {"sslmode": "verify-full", "sslrootcert": self.papers / "ca.pem"} | options
        query = "&".join(f"{name}={value}" for name, value in given.items() if value)
        return f"postgresql://{user}@{host}:{self.port}/postgres?{query}"


@pytest.fixture(scope="module")
def postgres(papers: Papers) -> Iterator[TlsPostgres]:
    with TlsPostgres(papers) as server:
        server.close_to_others()
        yield server


def settings_of(url: str, tmp_path: Path, **more: Any) -> Settings:
    return Settings.load({}, postgres_url=url, lease_seconds=2, log_dir=tmp_path, **more)


async def is_encrypted(db: Database) -> bool:
    return bool(await db.fetchval("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"))


@pytest.mark.needs_tool("postgres")
@pytest.mark.parametrize("by", ["password", "certificate"])
async def test_every_way_to_postgres_takes_tls_and_a_checked_certificate(
    postgres: TlsPostgres, papers: Papers, tmp_path: Path, by: str
) -> None:
    own: dict[str, Any] = {"sslcert": papers / "client.pem", "sslkey": papers / "client.key"}
    url = postgres.login() if by == "password" else postgres.login("certified", **own)
    settings = settings_of(url, tmp_path, postgres_schema=f"by_{by}")
    await migrate.upgrade(settings)
    client = Client(settings)
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    async with running_worker(settings), Database(settings, size=1) as db:
        assert await is_encrypted(db)
        first = await double.enqueue(21, client=client)
        with Session(engine) as session, session.begin():
            second = double.options(client=client, connection=session).delay(4)
        assert await first.result(timeout=30) == 42
        await until(lambda: db.fetchval("SELECT status FROM aaiclick_queue.tasks WHERE id = $1", second.id))
        for block in (within, within_thread):
            assert await (await block.enqueue(7, client=client)).result(timeout=30) == 7
    await client.close()
    engine.dispose()
    given = {PREFIX + "POSTGRES_URL": url, PREFIX + "POSTGRES_SCHEMA": settings.postgres_schema}
    ran = await asyncio.to_thread(CliRunner().invoke, main, ["task", "list", "--json"], env=given)
    assert str(first.id) in ran.output


@pytest.mark.needs_tool("postgres")
def test_the_server_reads_over_tls(postgres: TlsPostgres, tmp_path: Path) -> None:
    settings = settings_of(postgres.login(), tmp_path, postgres_schema="served")
    given = {PREFIX + "POSTGRES_URL": postgres.login(), PREFIX + "POSTGRES_SCHEMA": "served"}
    assert CliRunner().invoke(main, ["migrate"], env=given).exit_code == 0
    with served(settings) as http:
        assert http.get("/queues").status_code == 200


@pytest.mark.needs_tool("postgres")
async def test_a_certificate_that_cannot_be_trusted_is_refused_and_told(
    postgres: TlsPostgres, papers: Papers, tmp_path: Path
) -> None:
    forged: dict[str, Any] = {"sslcert": papers / "forged.pem", "sslkey": papers / "forged.key"}
    for url, why in {
        postgres.login(
            sslrootcert=papers / "stranger.pem"
        ): "no TLS with Postgres.*CERTIFICATE_VERIFY_FAILED.*sslrootcert",
        postgres.login(host="127.0.0.1"): "no TLS with Postgres.*(?i:mismatch|not valid).*names this host",
        postgres.login(sslmode="disable", sslrootcert=""): "refused the login.*no encryption.*sslmode=verify-full",
        postgres.login("app:wrong"): "refused the login.*password",
        postgres.login("certified"): "refused the login.*certificate",
        postgres.login("certified", **forged): "Postgres",
    }.items():
        async with Database(settings_of(url, tmp_path), size=1) as db:
            with pytest.raises(PostgresUnavailable, match=why) as refused:
                await db.fetch("SELECT 1")
        assert QUOTED not in str(refused.value)
        assert "wrong" not in str(refused.value)


@pytest.mark.needs_tool("postgres")
async def test_a_password_may_be_in_a_file(
    postgres: TlsPostgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "pgpass"
    file.write_text(f"localhost:{postgres.port}:*:filed:in-a-file\n")
    file.chmod(0o600)
    monkeypatch.setenv("PGPASSFILE", str(file))
    settings = settings_of(postgres.login("filed"), tmp_path, postgres_schema="by_file")
    await migrate.upgrade(settings)
    async with Database(settings, size=1) as db:
        assert await migrate.current(db) == migrate.HEAD


# Redis.


@pytest.fixture(scope="module")
def tls_redis(papers: Papers) -> Iterator[tuple[OwnRedis, int]]:
    port = free_port()
    options = [
        "--tls-port",
        str(port),
        "--tls-cert-file",
        papers / "server.pem",
        "--tls-key-file",
        papers / "server.key",
    ]
    options += ["--tls-ca-cert-file", papers / "ca.pem", "--tls-auth-clients", "yes", "--requirepass", PASSWORD]
    with OwnRedis(*map(str, options), server=find_tool("redis-server")) as server:
        yield server, port


async def was_published(streams: Streams) -> bool:
    """A handshake on a busy machine may outlast the 250 ms that a wake-up is worth."""
    try:
        await streams.publish([Hint("mail", 0, 1, 1)])
    except StreamsDown:
        return False
    return True


@pytest.mark.needs_tool("redis-server")
async def test_redis_is_reached_by_tls_with_a_certificate_of_ones_own(
    tls_redis: tuple[OwnRedis, int], papers: Papers
) -> None:
    port = tls_redis[1]
    ca, own = (
        f"ssl_ca_certs={papers / 'ca.pem'}",
        f"ssl_certfile={papers / 'client.pem'}&ssl_keyfile={papers / 'client.key'}",
    )
    streams = Streams(f"rediss://:{QUOTED}@localhost:{port}/0?{ca}&{own}")
    assert (await streams.listen(["mail"], consumer="one", seconds=5)).rescan
    await until(lambda: was_published(streams))
    assert (await streams.listen(["mail"], consumer="one", seconds=5)).hints[0] == Hint("mail", 0, 1, 1)
    await streams.close()
    stranger = f"ssl_ca_certs={papers / 'stranger.pem'}"
    for url in (
        f"rediss://:{QUOTED}@localhost:{port}?{stranger}&{own}",  # a CA that has not signed it
        f"rediss://:{QUOTED}@127.0.0.1:{port}?{ca}&{own}",  # a host that it does not name
        f"rediss://:{QUOTED}@localhost:{port}?{ca}",  # no certificate of one's own
        f"rediss://:wrong@localhost:{port}?{ca}&{own}",
        f"redis://:{QUOTED}@localhost:{port}",  # no TLS at all
    ):
        refused = Streams(url)
        with pytest.raises(StreamsDown) as down:
            await refused.publish([Hint("mail", 0, 1, 1)])
        assert QUOTED not in str(down.value)
        await refused.close()


async def whole_use(url: str, prefix: str) -> None:
    """Every command that we ever send."""
    streams, channel = Streams(url, prefix=prefix), Channel(url, prefix=prefix)
    try:
        await streams.ping()
        await streams.listen(["mail"], consumer="one", seconds=1)
        await streams.publish([Hint("mail", 0, 1, 1)])
        assert (await streams.listen(["mail"], consumer="one", seconds=5)).hints
        assert (await streams.lengths(["mail"]))["mail"] >= 1
        await streams.sweep(["mail"], idle_seconds=0)
        await streams.leave(["mail"], "one")
        await channel.publish([1])
    finally:
        await streams.close()
        await channel.close()


async def test_a_redis_user_needs_the_documented_line_and_all_of_it() -> None:
    documented = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
    assert ACL % ("aaiq", "aaiq") in documented
    with OwnRedis() as server:
        from redis.asyncio import Redis

        admin: Any = Redis(port=server.port, protocol=2)
        words = (ACL % ("aaiq", "aaiq")).split()
        await admin.execute_command("ACL", "SETUSER", "queue", "reset", "on", f">{PASSWORD}", *words)
        url = f"redis://queue:{QUOTED}@127.0.0.1:{server.port}"
        await whole_use(url, "aaiq")
        denied = {entry["object"] for entry in await admin.acl_log()} - {"client|setinfo"}  # redis-py's, and no matter
        assert denied == set()
        with pytest.raises(StreamsDown, match="rights"):
            await whole_use(url, "other")  # keys of somebody else
        for word in words:
            if word.startswith("+"):
                await admin.execute_command("ACL", "SETUSER", "queue", word.replace("+", "-"))
                await admin.flushall()
                if word not in ("+subscribe", "+xinfo"):  # of nudges, which the next test has, and of a silent sweep
                    with pytest.raises(StreamsDown, match="rights"):
                        await whole_use(url, "aaiq")
                await admin.execute_command("ACL", "SETUSER", "queue", word)
        await admin.aclose()
        await asyncio.sleep(0)  # one turn of the loop closes the socket


async def test_the_whole_flow_runs_with_that_line(settings: Settings, caplog: pytest.LogCaptureFixture) -> None:
    with OwnRedis() as server:
        from redis.asyncio import Redis

        admin: Any = Redis(port=server.port, protocol=2)
        words = (ACL % ("aaiq", "aaiq")).split()
        await admin.execute_command("ACL", "SETUSER", "queue", "reset", "on", f">{PASSWORD}", *words)
        url = f"redis://queue:{QUOTED}@127.0.0.1:{server.port}"
        with_redis = settings.model_copy(update={"redis_url": url, "lease_seconds": 30})
        client = Client(with_redis)
        async with running_worker(with_redis):
            waiting = await double.options(countdown=2.5).enqueue(1, client=client)  # longer than a quiet second
            assert await (await double.enqueue(21, client=client)).result(timeout=30) == 42
            assert await waiting.result(timeout=30) == 2
        await client.close()
        denied = {entry["object"] for entry in await admin.acl_log()} - {"client|setinfo"}
        assert denied == set()
        assert "rights" not in caplog.text
        await admin.aclose()
        await asyncio.sleep(0)  # one turn of the loop closes the socket
