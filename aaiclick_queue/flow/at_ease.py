"""At ease: commits that do not wait for the disk, for changes that a crash of Postgres may forget without harm.

A crash forgets the last commits as a whole, never one before another that it keeps. So a claim is forgotten only
together with everything that its run has written, and whatever is recorded of a run has made its claim durable.
"""

from __future__ import annotations

# For the transaction of the statement alone, so it costs no round trip and works behind pgbouncer. A subselect: it is
# evaluated once a statement, not once a row.
AT_EASE = "(SELECT set_config('synchronous_commit', 'off', true)) = 'off'"


def at_ease_unless(condition: str, *, source: str) -> str:
    """A condition that holds and lets the commit be at ease, unless a row of `source` is such a one."""
    return f"""(SELECT CASE WHEN bool_or({condition}) THEN true
                     ELSE set_config('synchronous_commit', 'off', true) = 'off' END FROM {source})"""
