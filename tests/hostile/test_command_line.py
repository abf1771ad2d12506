"""Whatever is typed on a command line ends with an exit code that says what is wrong, and never with a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from aaiclick_queue.cli import main
from aaiclick_queue.cli.program import (
    BAD_SETTINGS,
    DONE,
    NOT_FOUND,
    NOTHING_MATCHED,
    UNREACHABLE,
    USAGE,
)
from aaiclick_queue.settings import PREFIX

# With Postgres out of reach whatever is well-formed ends as UNREACHABLE; what needs none of it may be DONE.
EXPECTED = {DONE, USAGE, NOTHING_MATCHED, NOT_FOUND, UNREACHABLE, BAD_SETTINGS}
# These start servers or workers that go on until they are ended.
GO_ON = {("demo",), ("worker",), ("background",), ("top",), ("server",), ("fleet", "up"), ("local", "start")}
TYPED = ["", "garbage", "-1", "nan", "99999999999999999999", "a\x00b", "\ud800", "{", "2026-13-45", "é" * 300]
AT_ONCE = 0.2


def _commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            yield from _commands(below, (*path, name))
    else:
        yield path, command


def _lines(command: click.Command) -> Iterator[list[str]]:
    """Every argument and every option with every text, one at a time, and each option without its value."""
    count = sum(isinstance(one, click.Argument) for one in command.params)
    yield []
    yield ["--nonsense"]
    for typed in TYPED:
        yield ["--", *[typed] * count]
        yield ["--", *["1"] * count, typed]
    for option in command.params:
        if not isinstance(option, click.Option) or option.is_eager:
            continue
        flag = max(option.opts, key=len)
        if option.is_flag:
            yield [flag, "--", *["1"] * count]
        else:
            yield [flag]
            yield from ([f"{flag}={typed}", "--", *["1"] * count] for typed in TYPED)


@pytest.fixture
def _without_postgres(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(PREFIX + "POSTGRES_URL", "postgresql://nobody@127.0.0.1:1/nowhere")
    monkeypatch.setenv(PREFIX + "ENQUEUE_TIMEOUT_SECONDS", str(AT_ONCE))
    monkeypatch.setenv(PREFIX + "HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


ALL = [(path, command) for path, command in _commands(main) if path not in GO_ON]


@pytest.mark.usefixtures("_without_postgres")
@pytest.mark.parametrize(("path", "command"), ALL, ids=[" ".join(path) for path, _ in ALL])
def test_no_command_line_ends_in_a_traceback(path: tuple[str, ...], command: click.Command) -> None:
    for line in _lines(command):
        ended = CliRunner().invoke(main, [*path, *line], input="")
        assert ended.exit_code in EXPECTED, (line, ended.exit_code, ended.output)
        assert "Traceback" not in ended.output, (line, ended.output)


def test_every_command_that_is_left_out_is_there() -> None:
    assert {path for path, _ in _commands(main)} >= GO_ON
