"""The one task of ours that is a plain function, and so runs in a thread."""

from __future__ import annotations

from aaiclick_queue import task
from tests.bench.apps import tally


@task(entrypoint="bench.plain")
def plain(value: int) -> None:
    tally.ran()
