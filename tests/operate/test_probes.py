"""Probes of a worker: alive while it is, ready while it takes work, whatever Postgres, Redis and user code do."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from aaiclick_queue import health
from aaiclick_queue.errors import PortInUse
from aaiclick_queue.probes import Address, Probes
from aaiclick_queue.settings import PREFIX, Settings
from aaiclick_queue.testing.redis_server import free_port
from aaiclick_queue.vitals import Pen, Vitals, folder_of, live, read_all, ready
from tests.cli.running import command, environment, program, run
from tests.operate.looking import ask, get, wait_for
from tests.tools import Proxy, changed, until

MODULE = "tests.cli.cli_tasks"
NOW = 1000.0
WELL = Vitals(started=True, beat=NOW, turned=NOW, loop_seen=NOW)


# Verdicts.


def test_liveness_asks_neither_postgres_nor_redis() -> None:
    away = WELL._replace(beat=0.0, redis=False)
    assert live(away, NOW).ok
    assert not ready(away, NOW).ok
    assert ready(WELL._replace(redis=False), NOW) == ready(WELL, NOW)._replace(degraded=["redis"])


def test_a_blocked_event_loop_and_a_stuck_main_loop_are_no_life() -> None:
    assert live(WELL._replace(loop_seen=NOW - 6), NOW).checks["event_loop"] == "blocked for 6 s"
    stuck = WELL._replace(turned=NOW - 61)
    assert live(stuck, NOW).checks["main_loop"] == "has not turned for 61 s"
    assert live(stuck._replace(stopping=True), NOW).ok
    assert live(stuck._replace(turned=0.0), NOW).ok


def test_who_drains_or_has_lost_postgres_is_not_ready() -> None:
    assert ready(WELL._replace(stopping=True), NOW).checks["draining"] == "told to stop"
    assert ready(WELL, NOW + 21).checks["postgres"] == "did not answer a heartbeat for 21 s"
    assert not ready(Vitals(), NOW).ok


# The port.


async def test_a_port_in_use_is_an_error_that_says_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(PortInUse, match=rf"--probe-port {port}: .*in use\): give a free port"),
            Probes(Address("127.0.0.1", port), lambda: WELL, asyncio.get_running_loop()),
        ):
            raise AssertionError("not reached")


async def test_in_a_fleet_the_port_is_taken_when_its_holder_has_left() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = Address("127.0.0.1", taken.getsockname()[1])
        with Probes(address, Vitals, asyncio.get_running_loop(), waits=True):
            taken.close()
            await until(lambda: asyncio.to_thread(_answers, address.port))


def _answers(port: int) -> bool:
    try:
        return get(port, "/startupz")[0] == 503
    except OSError:
        return False


async def test_the_port_answers_while_the_loop_is_blocked() -> None:
    def vitals() -> Vitals:
        return Vitals(started=True, turned=time.monotonic(), beat=time.monotonic())

    with Probes(Address("127.0.0.1", 0), vitals, asyncio.get_running_loop()) as probes:
        await until(lambda: asyncio.to_thread(lambda: get(probes.address.port, "/livez")[0] == 200))
        probes._seen -= 10
        status, said = get(probes.address.port, "/livez?verbose")  # on the loop that is watched: it cannot answer
        assert (status, said.splitlines()[0][:26]) == (503, "[-]event_loop: blocked for")
        assert get(probes.address.port, "/nothing")[0] == 404
        with socket.create_connection(("127.0.0.1", probes.address.port)) as raw:
            raw.sendall(b"POST /livez HTTP/1.1\r\n\r\n")
            assert raw.recv(100).startswith(b"HTTP/1.1 405")
        with socket.create_connection(("127.0.0.1", probes.address.port)) as raw:
            raw.sendall(b"nonsense\r\n\r\n")
            assert raw.recv(100).startswith(b"HTTP/1.1 400")


# Processes.


def _is_ready(port: int) -> bool:
    return get(port, "/readyz")[0] == 200


def test_a_worker_tells_how_it_is_over_http_and_by_its_file(settings: Settings, tmp_path: Path) -> None:
    port = free_port()
    env = environment(changed(settings, lease_seconds=60), HOME=str(tmp_path))
    with program("worker", "-A", MODULE, "--probe-port", str(port), env=env) as worker:
        wait_for(lambda: get(port, "/readyz")[0] == 200)
        assert ask(port, "/readyz") == (200, {"status": "ok"})
        assert ask(port, "/livez") == (200, {"status": "ok"})
        assert ask(port, "/startupz") == (200, {"status": "ok"})
        assert "aaiclick_queue_tasks_claimed_total" in get(port, "/metrics")[1]
        assert run("health", "live", env=env).stdout == f"pid {worker.process.pid}: ok\n"
        wait_for(lambda: run("health", "ready", "--max-age", "1m", env=env).returncode == 0)
        worker.process.send_signal(signal.SIGSTOP)
        wait_for(lambda: run("health", "live", "--max-age", "1s", env=env).returncode == 1)
        worker.process.send_signal(signal.SIGCONT)
        worker.process.terminate()
        assert worker.ends() == 0
    assert run("health", "live", env=env).returncode == 1
    assert not list(folder_of(tmp_path).glob("*"))


def test_the_loops_alone_can_be_probed(settings: Settings, tmp_path: Path) -> None:
    port = free_port()
    env = environment(settings, HOME=str(tmp_path))
    with program("background", "--probe-port", str(port), env=env) as loops:
        wait_for(lambda: get(port, "/readyz")[0] == 200)
        assert get(port, "/livez")[0] == 200
        wait_for(lambda: 'aaiclick_queue_leader{component="background"} 1.0' in get(port, "/metrics")[1])
        wait_for(lambda: run("health", "ready", env=env).returncode == 0)
        loops.process.terminate()
        assert loops.ends() == 0


async def test_an_outage_of_postgres_makes_a_worker_unready_and_leaves_it_alive(
    settings: Settings, tmp_path: Path
) -> None:
    assert settings.postgres_url is not None
    port = free_port()
    async with Proxy(settings.postgres_url) as proxy:
        away = changed(settings, postgres_url=proxy.url, lease_seconds=3)
        env = environment(away, HOME=str(tmp_path), HEARTBEAT_SECONDS="0.5")
        with program("worker", "-A", MODULE, "--probe-port", str(port), env=env) as worker:
            await asyncio.to_thread(wait_for, lambda: get(port, "/readyz")[0] == 200)
            proxy.freeze()
            await asyncio.to_thread(wait_for, lambda: get(port, "/readyz")[0] == 503)
            assert "postgres" in ask(port, "/readyz")[1]["wrong"]
            assert get(port, "/livez")[0] == 200
            worker.process.kill()
            worker.process.wait()
            proxy.thaw()


def test_a_port_in_use_ends_a_worker_with_a_sentence(settings: Settings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ran = run("worker", "-A", MODULE, "--probe-port", port, env=environment(settings))
    assert ran.returncode == 1
    assert f"error: --probe-port {port}: 127.0.0.1:{port} cannot be listened on (address already in use)" in ran.stderr
    assert "fix: give a free port" in ran.stderr


def test_several_processes_take_the_ports_that_follow(settings: Settings, tmp_path: Path) -> None:
    port = free_port()
    env = environment(settings, HOME=str(tmp_path))
    with program("worker", "-A", MODULE, "--processes", "2", "--probe-port", str(port), env=env) as fleet:
        for one in (port, port + 1):
            wait_for(partial(_is_ready, one))
        fleet.process.terminate()
        assert fleet.ends() == 0


def test_without_its_extra_metrics_name_it_and_probes_work(settings: Settings) -> None:
    code = (
        "import sys; sys.modules['prometheus_client'] = None\n"
        "import asyncio, urllib.request, urllib.error\n"
        "from aaiclick_queue.probes import Address, Probes\n"
        "from aaiclick_queue.vitals import Vitals\n"
        "async def main():\n"
        "    with Probes(Address('127.0.0.1', 0), Vitals, asyncio.get_running_loop()) as probes:\n"
        "        await asyncio.to_thread(look, probes.address.port)\n"
        "def look(port):\n"
        "    print(urllib.request.urlopen(f'http://127.0.0.1:{port}/livez').status)\n"
        "    try: urllib.request.urlopen(f'http://127.0.0.1:{port}/metrics')\n"
        "    except urllib.error.HTTPError as error: print(error.code, error.read().decode())\n"
        "asyncio.run(main())"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment(settings))
    assert ran.stdout.splitlines()[:2] == [
        "200",
        "501 /metrics needs an optional part: pip install 'aaiclick-queue[metrics]'",
    ], ran.stderr


# The file.


def test_the_exec_probe_imports_next_to_nothing(tmp_path: Path) -> None:
    env = {**os.environ, PREFIX + "HOME": str(tmp_path)}
    words = [sys.executable, "-X", "importtime", *command("health", "live")[1:]]
    ran = subprocess.run(words, env=env, capture_output=True, text=True)
    assert ran.returncode == 1
    imported = {line.rsplit("|", 1)[-1].strip() for line in ran.stderr.splitlines()}
    assert imported & {"click", "pydantic", "asyncpg", "msgspec", "redis", "sqlalchemy", "asyncio"} == set()


def test_a_process_that_died_leaves_no_word_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Pen(tmp_path).write(Vitals(started=True, loop_seen=time.monotonic(), turned=time.monotonic()))
    (folder_of(tmp_path) / "999999999.json").write_text("{}")
    assert [one.pid for one in read_all(tmp_path)] == [os.getpid()]
    assert health.look("live", 30, tmp_path) == 0
    assert health.look("ready", 30, tmp_path) == 1
    assert "postgres has not answered a heartbeat" in capsys.readouterr().out
    assert [file.stem for file in folder_of(tmp_path).glob("*")] == [str(os.getpid())]


def test_a_home_that_cannot_be_written_is_no_trouble(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file where the folder should be")
    pen = Pen(tmp_path)
    pen.write(WELL)
    pen.erase()


@pytest.mark.parametrize(("text", "seconds"), [("30", 30), ("30s", 30), ("2m", 120), ("1.5h", 5400), ("soon", None)])
def test_times_are_read(text: str, seconds: float | None) -> None:
    assert health.seconds_of(text) == seconds
