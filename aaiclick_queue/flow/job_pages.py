"""Pages over the tasks of one job, by place: for operations that concern a job and no more than it.

Before: operate. A job is walked by its own index, however long the line is that its tasks stand in.
"""

from __future__ import annotations

from .filter_pages import CANCELLED_FROM, NOT_YET, WANTED
from .move import AT_GATE, MOVED, MOVED_LATER, at_gate_again, delayed_again, in_line_again
from .place import in_line
from .settle import SETTLE

# $1 after which task, $2 how many to look at, $3 the filter, which names the job, $4 no newer than.
_PAGE = """
WITH page AS MATERIALIZED (
    SELECT t.id AS task_id FROM aaiclick_queue.tasks t
    WHERE t.job_id = ($3::jsonb->>'{word}')::bigint AND t.id > coalesce(($1::jsonb->>0)::bigint, 0)
      AND t.id <= $4::bigint
    ORDER BY t.job_id, t.id LIMIT $2
), wanted AS MATERIALIZED (
    SELECT found.ctid, page.task_id FROM page CROSS JOIN LATERAL (
        SELECT p.ctid FROM aaiclick_queue.tasks t JOIN aaiclick_queue.{place} p ON {at}
        WHERE t.id = page.task_id AND {wanted} OFFSET 0) AS found
), taken AS (
    DELETE FROM aaiclick_queue.{place} WHERE ctid = ANY(ARRAY(
        SELECT p.ctid FROM aaiclick_queue.{place} p JOIN wanted ON p.ctid = wanted.ctid AND p.task_id = wanted.task_id
        FOR UPDATE OF p SKIP LOCKED))
    RETURNING {returning}
), {action}
SELECT (SELECT count(*) FROM page) AS seen, (SELECT count(*) FROM wanted) AS wanted,
       (SELECT count(*) FROM taken) AS taken, (SELECT jsonb_build_array(max(task_id)) FROM page) AS after
"""
_BY_ID = "p.task_id = t.id"
AT = {
    "waiting": "p.gate_id = t.wait_gate AND p.task_id = t.id",
    "held": _BY_ID,
    "delayed": _BY_ID,
    "ready": in_line("p", "t"),
    "leases": _BY_ID,
}


def job_page(place: str, *, wanted: str, returning: str, action: str, word: str = "job") -> str:
    """A statement that takes those of a page of the job's tasks out of a place, and what becomes of them."""
    return _PAGE.format(place=place, at=AT[place], wanted=wanted, returning=returning, action=action, word=word)


# For a job that was paused, `$6` is the number of that limit: what is in line goes out of it, and what is held for
# another reason is held for this one too.
_IS_LIMITED = "EXISTS (SELECT FROM aaiclick_queue.limits m WHERE m.id = $6::bigint)"
LIMIT_JOB_PAGE = {
    "held": job_page(
        "held", wanted=f"p.crowd = '' AND {_IS_LIMITED}", returning=MOVED, action=in_line_again("$5::jsonb")
    ),
    "ready": job_page("ready", wanted=_IS_LIMITED, returning=MOVED, action=in_line_again("$5::jsonb")),
}
# To cancel a job: what waits for others first, so that no end of a run lets it start, and runs last. A pass is the last
# if it meets no open task, in whatever place: asked by place, one that moves from a later to an earlier one was missed.
_CANCEL_PAGE = """
WITH page AS MATERIALIZED (
    SELECT t.id AS task_id FROM aaiclick_queue.tasks t
    WHERE t.job_id = ($3::jsonb->>'job')::bigint AND t.id > coalesce(($1::jsonb->>0)::bigint, 0) AND t.id <= $4::bigint
      AND t.status IS NULL
    ORDER BY t.job_id, t.id LIMIT $2
), taken AS (
    DELETE FROM aaiclick_queue.{place} WHERE ctid = ANY(ARRAY(
        SELECT p.ctid FROM page JOIN aaiclick_queue.tasks t ON t.id = page.task_id
        JOIN aaiclick_queue.{place} p ON {at} FOR UPDATE OF p SKIP LOCKED))
    RETURNING {returning}
), {action}
SELECT (SELECT count(*) FROM page) AS seen, (SELECT count(*) FROM page) AS wanted,
       (SELECT count(*) FROM taken) AS taken, (SELECT jsonb_build_array(max(task_id)) FROM page) AS after,
       (SELECT array_agg(task_id) FROM taken) AS ids
"""
CANCEL_JOB_PAGE = {
    place: _CANCEL_PAGE.format(place=place, at=AT[place], returning=returning, action=SETTLE)
    for place, returning in CANCELLED_FROM.items()
}
# For filters that name a job: the same as filter_pages.py does with whole lines.
MOVE_OF_JOB_PAGE = {
    place: job_page(place, wanted=WANTED + NOT_YET, returning=returning, action=action, word="job_id")
    for place, returning, action in (
        ("waiting", AT_GATE, at_gate_again("$5::jsonb")),
        ("held", MOVED, in_line_again("$5::jsonb")),
        ("delayed", MOVED_LATER, delayed_again("$5::jsonb")),
        ("ready", MOVED, in_line_again("$5::jsonb")),
    )
}
CANCEL_OF_JOB_PAGE = {
    place: job_page(place, wanted=WANTED, returning=returning, action=SETTLE, word="job_id")
    for place, returning in CANCELLED_FROM.items()
}
