"""What holds for every command: help, start time, exit codes, errors, colour, ends by signals and pipes."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
from collections.abc import Iterator
from urllib.parse import urlsplit

import click
import pytest
from click.testing import CliRunner

import aaiclick_queue
from aaiclick_queue.cli import main
from aaiclick_queue.cli.program import _what_and_fix, colour
from aaiclick_queue.settings import PREFIX, Settings
from tests.cli.running import PROJECT, command, environment, program, run

HEAVY = {"sqlalchemy", "alembic", "asyncpg", "redis", "rich", "pydantic", "asyncio", "msgspec"}


def paths(group: click.Group = main, before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, one in group.commands.items():
        yield (*before, name)
        if isinstance(one, click.Group):
            yield from paths(one, (*before, name))


def test_the_command_line_is_imported_without_anything_heavy() -> None:
    code = "import sys, aaiclick_queue.cli; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=True)
    assert set(ran.stdout.split()) & HEAVY == set()


@pytest.mark.parametrize("path", list(paths()), ids=" ".join)
def test_every_command_explains_itself(path: tuple[str, ...]) -> None:
    short, long = (CliRunner().invoke(main, [*path, flag]) for flag in ("-h", "--help"))
    assert short.exit_code == 0
    assert short.output == long.output
    assert short.output.startswith(f"Usage: aaiclick-queue {' '.join(path)}")
    assert len(short.output.splitlines()) > 4


def test_the_first_help_shows_examples_and_every_command() -> None:
    shown = CliRunner().invoke(main, ["--help"]).output
    assert "Examples:" in shown
    assert all(name in shown for name in main.commands)


def test_the_version_is_the_package_s() -> None:
    assert CliRunner().invoke(main, ["--version"]).output == f"aaiclick-queue {aaiclick_queue.__version__}\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_for_the_shell(shell: str) -> None:
    shown = CliRunner().invoke(main, ["completion", shell])
    assert shown.exit_code == 0
    assert f"_AAICLICK_QUEUE_COMPLETE={shell}_complete" in shown.output


def test_completion_knows_the_commands() -> None:
    env = environment() | {
        "_AAICLICK_QUEUE_COMPLETE": "bash_complete",
        "COMP_WORDS": "aaiclick-queue queue pa",
        "COMP_CWORD": "2",
    }
    assert run(env=env).stdout == "plain,pause\n"


def test_a_mistyped_command_is_answered_with_the_nearest_one() -> None:
    said = CliRunner().invoke(main, ["queue", "lsit"])
    assert (said.exit_code, said.stdout) == (2, "")
    assert said.stderr == "error: there is no command 'lsit'\nfix: did you mean 'list'?\n"


def test_a_wrong_option_points_to_the_help() -> None:
    said = CliRunner().invoke(main, ["queue", "list", "--limit", "0"])
    assert said.exit_code == 2
    assert "fix: aaiclick-queue queue list --help\n" in said.stderr


@pytest.mark.parametrize(
    ("variable", "value", "part"),
    [
        ("LEASE_SECOND", "3", "did you mean AAICLICK_QUEUE_LEASE_SECONDS?"),
        ("LEASE_SECONDS", "soon", "AAICLICK_QUEUE_LEASE_SECONDS = 'soon'"),
        ("POSTGRES_URL", "postgresql://user:secret@host:port/db", "its port is no number"),
        ("REDIS_URL", "http://:secret@host", "redis://"),
        ("POSTGRES_URL", "mysql://user:secret@host/db", "postgresql://"),
    ],
)
def test_a_bad_setting_ends_with_78_and_says_which(variable: str, value: str, part: str) -> None:
    said = CliRunner().invoke(main, ["queue", "list"], env={PREFIX + variable: value})
    assert (said.exit_code, said.stdout) == (78, "")
    assert part in said.stderr
    assert "fix: " in said.stderr
    assert "secret" not in said.stderr
    assert "Traceback" not in said.stderr


def test_an_unreachable_postgres_ends_with_69_and_keeps_the_password_secret() -> None:
    ran = run("queue", "list", env=environment(POSTGRES_URL="postgresql://ada:secret@127.0.0.1:1/shop"))
    assert (ran.returncode, ran.stdout) == (69, "")
    assert ran.stderr.startswith("error: cannot reach Postgres at postgresql://ada:***@127.0.0.1:1/shop")
    assert "\nfix: start it" in ran.stderr
    assert "secret" not in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize(
    ("part", "other", "what", "fix"),
    [
        ("login", "walker:secret", "refused the login (", "correct user and password in AAICLICK_QUEUE_POSTGRES_URL"),
        ("database", "/no_such_database", "has no such database (", "create it with createdb"),
    ],
)
def test_what_postgres_refuses_is_told_in_two_lines(
    empty_postgres_url: str, part: str, other: str, what: str, fix: str
) -> None:
    parts = urlsplit(empty_postgres_url)
    if part == "login":
        parts = parts._replace(netloc=f"{other}@{parts.netloc.rpartition('@')[2]}")
    else:
        parts = parts._replace(path=other)
    ran = run("queue", "list", env=environment(POSTGRES_URL=parts.geturl()))
    assert ran.returncode == 69
    error, mend = ran.stderr.splitlines()
    assert error.startswith("error: Postgres at postgresql://")
    assert what in error
    assert mend.startswith(f"fix: {fix}")
    assert "secret" not in ran.stderr


def test_verbose_shows_the_traceback_of_an_error() -> None:
    env = environment(POSTGRES_URL="postgresql://ada:secret@127.0.0.1:1/shop")
    ran = run("-v", "queue", "list", env=env)
    assert ran.returncode == 69
    assert "Traceback" in ran.stderr


def test_a_schema_without_tables_asks_for_a_migration(empty_postgres_url: str) -> None:
    ran = run("queue", "list", env=environment(POSTGRES_URL=empty_postgres_url))
    assert ran.returncode == 1
    assert "fix: run `aaiclick-queue migrate`" in ran.stderr


def test_ctrl_c_is_quiet_and_ends_with_130(settings: Settings) -> None:
    with program("queue", "list", "--watch", "0.1", env=environment(settings)) as watching:
        watching.wait_for(lambda: watching.stdout)
        watching.process.send_signal(signal.SIGINT)
        assert watching.ends() == 130
        assert watching.stderr.strip() == ""


def test_sigterm_ends_with_143(settings: Settings) -> None:
    with program("queue", "list", "--watch", "0.1", env=environment(settings)) as watching:
        watching.wait_for(lambda: watching.stdout)
        watching.process.send_signal(signal.SIGTERM)
        assert watching.ends() == 143
        assert watching.stderr.strip() == ""


def test_a_closed_pipe_is_quiet(settings: Settings) -> None:
    with subprocess.Popen(
        command("queue", "list", "--watch", "0.1", "--json"),
        env=environment(settings),
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as watching:
        assert watching.stdout is not None
        assert watching.stderr is not None
        assert watching.stdout.readline() == "[]\n"
        watching.stdout.close()
        assert watching.stderr.read() == ""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colour_is_for_terminals_that_want_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert colour(Terminal())
    assert not colour(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not colour(Terminal())
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert not colour(Terminal())


@pytest.mark.parametrize(
    ("message", "what", "fix"),
    [
        ("no tables yet: run `migrate`", "no tables yet", "run `migrate`"),
        ("cannot reach X (why: because): start it", "cannot reach X (why: because)", "start it"),
        ("task 'a: b' is odd", "task 'a: b' is odd", ""),
        ("X is no setting; did you mean Y?", "X is no setting", "did you mean Y?"),
        ("AAICLICK_QUEUE_X is no setting (did you mean Y?)", "AAICLICK_QUEUE_X is no setting", "did you mean Y?"),
        ("it did not start: mend it\nit said: no\n", "it did not start\nit said: no\n", "mend it"),
    ],
)
def test_what_is_wrong_and_how_to_mend_it_are_two_lines(message: str, what: str, fix: str) -> None:
    assert _what_and_fix(message) == (what, fix)
