"""Prune by hand: all that is overdue at once, or for so many seconds and on from there. Part of prune."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial

import msgspec

from ..postgres import Database
from .archive import Archive, Keeper
from .prune import LAST_ID, Policy, Pruned, Walk, first_beyond
from .prune_jobs import Remover

AFTER = "^[0-2]-[0-9]{1,19}$"
OVER = 3  # behind tasks, jobs and the rows of jobs


class Stretch(msgspec.Struct, frozen=True):
    """A part of a pruning: what it came to, from where another one goes on, and whether the archive took nothing."""

    pruned: Pruned
    after: str | None = None  # None: it came to the end
    is_away: bool = False


async def prune_all(db: Database, policy: Policy, *, dry_run: bool = False, archive: Archive | None = None) -> Pruned:
    """Prune all that is overdue now, page by page."""
    return (await prune_for(db, policy, dry_run=dry_run, archive=archive)).pruned


async def prune_for(  # noqa: PLR0913 - one parameter a fact
    db: Database,
    policy: Policy,
    *,
    seconds: float = math.inf,
    after: str | None = None,
    dry_run: bool = False,
    tell: Callable[[Pruned, int], None] = lambda *_: None,
    archive: Archive | None = None,
) -> Stretch:
    """The same for so long, from where a stretch before it has ended; a page at least, so that it comes to an end.

    `tell` hears after each page what was pruned and the last id.
    """
    course, until = Course(db, policy, archive, dry_run=dry_run), time.monotonic() + seconds
    await course.begin(after)
    while await course.step():
        tell(course.pruned, course.last_id)
        if time.monotonic() >= until:
            break
    return course.stretch()


class Course:
    """A pruning by hand: over tasks, over jobs, then the rows of jobs that were marked."""

    def __init__(self, db: Database, policy: Policy, archive: Archive | None, *, dry_run: bool) -> None:
        self._db, self._policy, self._dry_run = db, policy, dry_run
        self._keeper = None if archive is None else Keeper(archive)
        self._remover = Remover(self._keeper)
        self._walks: list[Walk] = []
        self._at = 0
        self._beyond: int | None = None
        self.pruned = Pruned()
        self.last_id = 0

    async def begin(self, after: str | None) -> None:
        """From the first task, or from where a stretch has ended."""
        self._at, self.last_id = place_of(after)
        policy = self._policy
        self._beyond = None if policy.max_tasks is None else await first_beyond(self._db, policy.max_tasks)
        if not policy.ages and self._beyond is None:
            self._at = OVER
            return
        youngest = 0.0 if self._beyond is not None else min(policy.ages, default=0.0)
        self._walks = [Walk(youngest), Walk(youngest, of_jobs=True)]
        if self._at < len(self._walks):
            self._walks[self._at].after = self.last_id

    async def step(self) -> bool:
        """One page; False when there was none to prune any more."""
        if self._at < len(self._walks):
            await self._walk(self._walks[self._at])
        elif self._at == OVER or self._dry_run or not await self._remover.step(self._db):
            self._at = OVER
        return self._at != OVER

    def stretch(self) -> Stretch:
        """What it has come to so far."""
        after = None if self._at == OVER else f"{self._at}-{self.last_id}"
        return Stretch(self.pruned, after, self._keeper is not None and self._keeper.is_away)

    async def _walk(self, walk: Walk) -> None:
        upto = LAST_ID if self._policy.ages else self._beyond or 0
        step = walk.count if self._dry_run else partial(walk.step, keeper=self._keeper)
        self.pruned.add(await step(self._db, self._policy, beyond=self._beyond, upto=upto))
        self.last_id = walk.after
        if walk.over_at is not None:
            self._at, self.last_id = self._at + 1, 0


def place_of(after: str | None) -> tuple[int, int]:
    """Where a stretch has ended: the number of its walk, and behind which id."""
    walk, _, last_id = (after or "0-0").partition("-")
    return int(walk), min(int(last_id), LAST_ID)
