"""The one task of ours that runs in a child process."""

from __future__ import annotations

from aaiclick_queue import task
from tests.bench.apps import tally


@task(entrypoint="bench.burnt", isolation="process")
def burnt(value: int) -> None:
    tally.burn()
    tally.ran()
