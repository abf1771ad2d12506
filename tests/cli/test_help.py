"""Help with examples, and what the shell completes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import click
import pytest

from aaiclick_queue.cli import main
from aaiclick_queue.settings import Settings
from tests.cli.conftest import Invoke
from tests.cli.running import environment, run, worker
from tests.cli.test_worker import enqueue


def leaves(group: click.Group = main, before: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name, one in group.commands.items():
        if isinstance(one, click.Group):
            yield from leaves(one, (*before, name))
        else:
            yield (*before, name), one


LEAVES = dict(leaves())


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_the_help_of_every_command_has_an_example_of_it(path: tuple[str, ...]) -> None:
    epilog = LEAVES[path].epilog or ""
    assert epilog.startswith("\b\nExamples:\n"), f"{' '.join(path)} has no examples"
    assert f"aaiclick-queue {' '.join(path)}" in epilog


def examples() -> list[str]:
    found = [line for one in LEAVES.values() for line in (one.epilog or "").splitlines()]
    found += (main.epilog or "").splitlines()
    lines = [re.split(r"\s{2,}|\s\|\s| > | < ", line.strip())[0] for line in found]
    return sorted({line for line in lines if line.startswith("aaiclick-queue ")})


@pytest.mark.parametrize("line", examples())
def test_every_example_is_a_command_with_options_that_exist(line: str) -> None:
    words = shlex.split(line)[1:]
    command: click.Command = main
    # With its own settings: a command keeps the help option of the first context that asks for it.
    context = click.Context(main, info_name="aaiclick-queue", **main.context_settings)
    while isinstance(command, click.Group) and words and words[0] in command.commands:
        command = command.commands[words.pop(0)]
        context = click.Context(command, parent=context, info_name=command.name)
    assert command is not main, line
    command.make_parser(context).parse_args(list(words))


def complete(settings: Settings | None, line: str) -> list[str]:
    """What the shell would offer at the end of the line."""
    env = environment(settings) | {
        "_AAICLICK_QUEUE_COMPLETE": "bash_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split(" ")) - 1),
    }
    ran = run(env=env)
    assert ran.stderr == ""
    return [row.split(",", 1)[1] for row in ran.stdout.splitlines() if row]


def test_commands_and_options_are_completed() -> None:
    assert complete(None, "aaiclick-queue to") == ["token", "top"]
    assert "stacks" in complete(None, "aaiclick-queue workers s")
    offered = complete(None, "aaiclick-queue worker --")
    assert {"--reload", "--burst", "--max-tasks", "--max-memory", "--limit"} <= set(offered)
    assert "--parent-fd" not in offered
    assert complete(None, "aaiclick-queue top --in") == ["--interval"]
    assert [one.upper() for one in complete(None, "aaiclick-queue task list --status F")] == ["FAILED"]


def test_names_of_queues_and_ids_of_workers_are_completed(settings: Settings, invoke: Invoke) -> None:
    enqueue(invoke, "add", "--queue", "mail")
    enqueue(invoke, "add", "--queue", "reports")
    with worker(settings):
        assert complete(settings, "aaiclick-queue queue pause ma") == ["mail"]
        assert complete(settings, "aaiclick-queue task list --queue ") == ["default", "mail", "reports"]
        assert complete(settings, "aaiclick-queue worker -Q mail,re") == ["mail,reports"]
        assert complete(settings, "aaiclick-queue worker --limit re") == ["reports="]
        [found] = complete(settings, "aaiclick-queue workers stacks ")
        assert found in invoke("workers", "list").stdout


def test_completing_without_postgres_is_quiet() -> None:
    assert complete(None, "aaiclick-queue queue pause ma") == []
    env = environment(POSTGRES_URL="postgresql://127.0.0.1:1/shop") | {
        "_AAICLICK_QUEUE_COMPLETE": "bash_complete",
        "COMP_WORDS": "aaiclick-queue queue pause ma",
        "COMP_CWORD": "3",
    }
    ran = run(env=env)
    assert (ran.stdout.strip(), ran.stderr) == ("", "")
