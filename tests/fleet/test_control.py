"""Who may talk to a fleet, where it is found, and what happens to nonsense."""

from __future__ import annotations

import os
import socket
import stat
from contextlib import suppress
from pathlib import Path

import pytest

from aaiclick_queue.errors import FleetBusy, SettingsError
from aaiclick_queue.fleet.address import SOCKET_BYTES, Address, folder_for, running
from aaiclick_queue.settings import Settings
from tests.cli.running import run
from tests.fleet.running import trial

ONE = '[groups.main]\nmodules = ["MODULE"]\n'


def test_a_name_is_taken_once_and_free_again_afterwards(home: Path) -> None:
    address = Address(home, "shop")
    assert (address.pid, running(home)) == (None, [])
    with address.taken():
        assert stat.S_IMODE(address.socket.lstat().st_mode) == 0o600
        assert stat.S_IMODE(address.socket.parent.lstat().st_mode) == 0o700
        assert (address.pid, running(home)) == (os.getpid(), ["shop"])
        with pytest.raises(FleetBusy, match=f"runs already .pid {os.getpid()}.") as refused, address.taken():
            pass
        assert refused.value.pid == os.getpid()
        with Address(home, "other").taken():
            assert running(home) == ["other", "shop"]
    assert (address.pid, running(home), address.socket.exists()) == (None, [], False)
    with address.taken():
        pass


def test_a_socket_that_was_left_behind_is_replaced(home: Path) -> None:
    address = Address(home, "shop")
    with address.taken():
        pass
    address.socket.write_text("left behind")
    with address.taken(), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(address.socket))


def test_a_home_with_a_long_path_gets_a_short_folder(tmp_path: Path) -> None:
    home = tmp_path / ("long" * 20)
    folder = folder_for(home)
    assert folder.parent == Path("/tmp")
    assert folder != folder_for(tmp_path / ("other" * 20))
    address = Address(home, "n" * 32)
    assert len(os.fsencode(address.socket)) <= SOCKET_BYTES
    try:
        with address.taken():
            assert running(home) == ["n" * 32]
        folder.chmod(0o755)
        with pytest.raises(SettingsError, match="open to others"), address.taken():
            pass
    finally:
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()


def test_a_home_that_cannot_be_made_is_told(home: Path) -> None:
    home.write_text("a file")
    with pytest.raises(SettingsError, match="AAICLICK_QUEUE_HOME"), Address(home, "shop").taken():
        pass


def ask_by_hand(address: Address, words: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(address.socket))
        client.settimeout(30)
        client.sendall(words)
        client.shutdown(socket.SHUT_WR)
        answer = b""
        while part := client.recv(1 << 16):
            answer += part
        return answer


def test_nonsense_is_refused_and_the_fleet_works_on(settings: Settings) -> None:
    with trial(settings, ONE) as fleet:
        fleet.up()
        fleet.wait_until_running(main=1)
        before = fleet.pids("main")
        for nonsense in (b"", b"hello\n", b"{}\n", b'{"type":"dance"}\n', b'{"type":"scale","sizes":{"main":"x"}}\n'):
            assert b'"type":"refused"' in ask_by_hand(fleet.address, nonsense)
        with suppress(OSError):  # it need not hear us out
            ask_by_hand(fleet.address, b"x" * (20 << 20))
        for size in (b"-1", b"1001", b"1e3"):
            assert b'"type":"refused"' in ask_by_hand(fleet.address, b'{"type":"scale","sizes":{"main":%s}}\n' % size)
        with socket.socket(socket.AF_UNIX) as client:  # gone before the answer
            client.connect(str(fleet.address.socket))
            client.sendall(b'{"type":"status"}\n')
        assert fleet.running(main=1)
        assert fleet.pids("main") == before

        again = fleet.cli("up", str(fleet.file))
        assert (again[0], again[1]) == (1, "")
        assert f"fleet 'trial' runs already (pid {fleet.program.process.pid})" in again[2]
        with trial(settings, ONE, HOME=str(fleet.home)) as other:
            other.up("--name", "second", "--log-format", "json")
            other.wait_for(lambda: running(fleet.home) == ["second", "trial"])
            code, _, err = fleet.cli("status")
            assert (code, "2 fleets run here: second, trial" in err) == (2, True)
            assert fleet.cli("down", "--name", "second")[0] == 0
        assert fleet.running(main=1)
        fleet.down()
        for request in (["status"], ["scale", "main=1"], ["reload"], ["down"]):
            assert fleet.cli(*request)[0] == 4
        assert fleet.cli("status", "--name", "nosuch")[0] == 4


def test_a_fleet_that_could_never_work_is_refused_at_once(settings: Settings, empty_postgres_url: str) -> None:
    with trial(settings, "[groups.main]\nmodule = 3\n") as fleet:
        assert fleet.cli("up", str(fleet.file))[0] == 78
        fleet.write(ONE + f'environment = {{ AAICLICK_QUEUE_POSTGRES_URL = "{empty_postgres_url}" }}\n')
        code, _, err = fleet.cli("up", str(fleet.file))
        assert (code, "aaiclick-queue migrate" in err) == (1, True)
        fleet.write(ONE + 'environment = { AAICLICK_QUEUE_POSTGRES_URL = "postgresql://127.0.0.1:1/x" }\n')
        assert fleet.cli("up", str(fleet.file))[0] == 69
        assert run("fleet", "up", env=fleet.env).returncode == 2
