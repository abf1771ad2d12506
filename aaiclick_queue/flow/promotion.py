"""Promotion: whether a standby has just taken over, for a reaper that has not looked at any server before.

Before: a reaper meets a server. After: nobody is marked as lost while workers have their lease period to find it.
"""

from __future__ import annotations

import logging

from ..errors import NotAllowed
from ..postgres import NOT_OFFERED, Database

log = logging.getLogger(__name__)

# A promotion begins a timeline, a restart goes on with the one of before; so what was replicated names another one than
# the server does. The moment of a promotion is told nowhere else: the standby was up before it. The first timeline of
# all is no news. Of functions that everybody may call.
MEET_TIMELINE = """
INSERT INTO aaiclick_queue.loops (name, holder, expires_at)
SELECT 'timeline', ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint, now()
ON CONFLICT (name) DO UPDATE
SET holder = excluded.holder, expires_at = now() + make_interval(secs => least($1::float8, 86400))
WHERE loops.holder <> excluded.holder
RETURNING expires_at > now() AS is_new
"""
# For a statement that judges workers by their leases. A moment too far ahead is nobody's lease period.
IS_SETTLED = """NOT EXISTS (SELECT FROM aaiclick_queue.loops t WHERE t.name = 'timeline'
              AND t.expires_at > now() AND t.expires_at < now() + interval '25 h')"""


async def meet_timeline(db: Database, lease_seconds: float) -> None:
    """Write down that this server is looked at; after a promotion, until when nobody may be judged."""
    try:
        rows = await db.fetch(MEET_TIMELINE, lease_seconds)
    except (NotAllowed, *NOT_OFFERED) as error:
        log.debug("this Postgres does not tell its timeline, a promotion is known by its restart alone: %s", error)
        return
    if rows and rows[0]["is_new"]:
        log.warning("a standby has taken over: no worker is taken for lost within the next %g s", lease_seconds)
