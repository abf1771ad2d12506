"""What the shell may complete beyond commands and options: names of queues and ids of workers, asked of Postgres."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from ..postgres import Database

T = TypeVar("T")

PATIENCE_SECONDS = 2.0


def queue_names(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Queues that have work, a pause or a worker."""
    return [CompletionItem(name) for name in _queues() if name.startswith(incomplete)]


def served_queues(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The same for a list with commas: its last part."""
    before, comma, last = incomplete.rpartition(",")
    return [CompletionItem(f"{before}{comma}{name}") for name in _queues() if name.startswith(last)]


def capped_queues(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The same, each to be followed by its cap."""
    before, comma, last = incomplete.rpartition(",")
    return [CompletionItem(f"{before}{comma}{name}=") for name in _queues() if name.startswith(last)]


def worker_ids(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Workers that live."""
    from ..queue_views import list_workers

    found = _ask(list_workers)
    alive = [one for one in found or [] if one.status in ("ACTIVE", "STOPPING")]
    return [
        CompletionItem(one.id, help=f"{one.hostname} pid {one.pid}, {','.join(one.queues)}")
        for one in alive
        if one.id.startswith(incomplete)
    ]


def job_names(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of the newest jobs."""
    from ..job_views import read_jobs

    page = _ask(lambda db: read_jobs(db, limit=200))
    names = dict.fromkeys(one.name for one in page.jobs) if page else {}
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def registered_names(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of registered jobs."""
    from ..registered import read_registered_jobs

    return [CompletionItem(one.name) for one in _ask(read_registered_jobs) or [] if one.name.startswith(incomplete)]


def event_types(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Types of events."""
    from ..event_words import TYPES

    before, comma, last = incomplete.rpartition(",")
    return [CompletionItem(f"{before}{comma}{kind}") for kind in TYPES if kind.startswith(last.upper())]


def _queues() -> list[str]:
    from ..queue_views import list_queues

    return [view.name for view in _ask(list_queues) or []]


def _ask(read: Callable[[Database], Awaitable[T]]) -> T | None:
    """What Postgres says, if it says it soon; no error, for a shell is in the middle of a line."""
    import asyncio

    from ..settings import Settings
    from .output import database

    async def asked() -> T | None:
        settings = Settings.load()
        if settings.postgres_url is None:
            return None  # completing a word starts no server
        async with asyncio.timeout(PATIENCE_SECONDS), database(settings) as db:
            return await read(db)

    try:
        return asyncio.run(asked())
    except Exception:
        return None
