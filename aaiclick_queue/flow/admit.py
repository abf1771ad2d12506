"""Admission: lets held tasks into the line as far as their limits allow. Before: place. After: the claim.

One pass at a time in the whole fleet, under an advisory lock: the slots are counted by a statement that begins after
the lock was got, so no two passes can give out the same slot. Choosing is a pure decision (flow/choose.py).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from ..postgres import Connection, Database
from ..schema import Transaction
from .choose import Candidate, Chosen, Known, Lane, Limit, choose, needed
from .outbox import append_from

# A process that freezes inside a pass must not stop all others: Postgres ends its transaction.
ADMISSION_LOCK = """
SELECT pg_try_advisory_xact_lock(hashtext('aaiclick_queue.admission')) AS got,
       set_config('idle_in_transaction_session_timeout', '5s', true)
"""
# What is over without having said so: rates whose period has passed, adopted runs that have ended, runs told to stop
# whose worker is over. A rate counts from the claim, and the claim knows nothing of it: its lease says when it was.
SETTLE_SLOTS = """
WITH claimed AS (
    UPDATE aaiclick_queue.slots s SET ends_at = l.claimed_at + make_interval(secs => s.seconds)
    FROM aaiclick_queue.leases l WHERE s.ctid = ANY(ARRAY(
        SELECT u.ctid FROM aaiclick_queue.slots u JOIN aaiclick_queue.leases l ON l.task_id = u.task_id
        WHERE u.seconds IS NOT NULL AND u.ends_at IS NULL FOR UPDATE OF u SKIP LOCKED)) AND l.task_id = s.task_id
), over AS (
    DELETE FROM aaiclick_queue.slots WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM aaiclick_queue.slots WHERE ends_at <= now() FOR UPDATE SKIP LOCKED))
), adopted AS (
    DELETE FROM aaiclick_queue.slots WHERE ctid = ANY(ARRAY(
        SELECT s.ctid FROM aaiclick_queue.slots s WHERE s.adopted AND s.ends_at IS NULL AND NOT s.stopping > 0
        AND NOT EXISTS (SELECT FROM aaiclick_queue.leases l WHERE l.task_id = s.task_id) FOR UPDATE SKIP LOCKED))
)
DELETE FROM aaiclick_queue.slots WHERE ctid = ANY(ARRAY(
    SELECT s.ctid FROM aaiclick_queue.slots s WHERE s.stopping > 0 AND NOT EXISTS (
        SELECT FROM aaiclick_queue.workers w WHERE w.id = s.worker_id AND w.status IN ('ACTIVE', 'STOPPING'))
    FOR UPDATE SKIP LOCKED))
"""
# A loose index scan: one step a lane, however many tasks wait in each.
LANES = """
WITH RECURSIVE lanes AS (
    (SELECT queue, entrypoint, key, chain, crowd FROM aaiclick_queue.held
     WHERE (queue, entrypoint, key, chain, crowd) > ($1::text, $2::text, $3::text, $4::text, $5::text)
     ORDER BY queue, entrypoint, key, chain, crowd LIMIT 1)
    UNION ALL
    SELECT next.queue, next.entrypoint, next.key, next.chain, next.crowd FROM lanes CROSS JOIN LATERAL (
        SELECT h.queue, h.entrypoint, h.key, h.chain, h.crowd FROM aaiclick_queue.held h
        WHERE (h.queue, h.entrypoint, h.key, h.chain, h.crowd)
              > (lanes.queue, lanes.entrypoint, lanes.key, lanes.chain, lanes.crowd)
        ORDER BY h.queue, h.entrypoint, h.key, h.chain, h.crowd LIMIT 1) AS next)
SELECT queue, entrypoint, key, chain, crowd FROM lanes LIMIT $6
"""
# Of a strict order only the first of all, whichever lane that is in: if a limit keeps it, it keeps those behind it too.
FIRST_OF_LANES = """
SELECT lane.n, line.task_id, line.rank, line.order_key
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[]) WITH ORDINALITY
     AS lane(queue, entrypoint, key, chain, crowd, n)
CROSS JOIN LATERAL (
    SELECT h.task_id, h.rank, h.order_key FROM aaiclick_queue.held h
    WHERE h.queue = lane.queue AND h.entrypoint = lane.entrypoint AND h.key = lane.key AND h.chain = lane.chain
      AND h.crowd = lane.crowd
    ORDER BY h.rank, h.order_key, h.task_id LIMIT $6) AS line
WHERE lane.chain = '' OR line.task_id = (SELECT c.task_id FROM aaiclick_queue.held c WHERE c.chain = lane.chain
                                         AND c.chain <> '' ORDER BY c.chain, c.order_key, c.task_id LIMIT 1)
"""
LIMITS_OF_LANES = """
SELECT m.id, m.scope, m.name, m.kind, m.per_key, m.n, m.seconds, m.turn FROM aaiclick_queue.limits m
WHERE (m.until IS NULL OR m.until > now()) AND (
    (m.scope = 'queue' AND m.name = ANY($1::text[])) OR (m.scope = 'task' AND m.name = ANY($2::text[]))
    OR (m.scope = 'key' AND m.name = ANY($3::text[])) OR (m.scope = 'job' AND m.name = ANY($4::text[])))
"""
USED_SLOTS = """
SELECT u.limit_id, u.key, used.n, used.last_turn, used.next_end, used.holders
FROM unnest($1::bigint[], $2::text[]) AS u(limit_id, key)
CROSS JOIN LATERAL (
    SELECT count(*) AS n, max(s.order_key) AS last_turn, extract(epoch FROM min(s.ends_at) - now())::float8 AS next_end,
           CASE WHEN u.limit_id = 0 THEN array_agg(s.task_id) FILTER (WHERE s.stopping = 0) END AS holders
    FROM aaiclick_queue.slots s WHERE s.limit_id = u.limit_id AND s.key = u.key
      AND (s.ends_at IS NULL OR s.ends_at > now())
) AS used
"""
USED_BY_FAIR = """
SELECT u.limit_id, (SELECT count(*) FROM aaiclick_queue.slots s WHERE s.limit_id = u.limit_id
                      AND (s.ends_at IS NULL OR s.ends_at > now())) AS n
FROM unnest($1::bigint[]) AS u(limit_id)
"""
HEADS_OF_LINE = """
SELECT line.queue, line.rank, (SELECT r.order_key FROM aaiclick_queue.ready r
                               WHERE r.queue = line.queue AND r.rank = line.rank
                               ORDER BY r.queue, r.rank, r.order_key, r.task_id LIMIT 1) AS turn
FROM unnest($1::text[], $2::int[]) AS line(queue, rank)
"""
ADMIT = f"""
WITH taken AS (
    DELETE FROM aaiclick_queue.held WHERE ctid = ANY(ARRAY(
        SELECT h.ctid FROM unnest($1::bigint[]) AS chosen(task_id) JOIN aaiclick_queue.held h
            ON h.task_id = chosen.task_id
        FOR UPDATE OF h SKIP LOCKED))
    RETURNING task_id, run_epoch, attempt, lost_count, snoozes, flags, queue
), moved AS (
    INSERT INTO aaiclick_queue.ready (queue, rank, order_key, task_id, run_epoch, attempt, lost_count, snoozes, flags)
    SELECT taken.queue, -t.priority::int, chosen.order_key, taken.task_id, taken.run_epoch, taken.attempt,
           taken.lost_count, taken.snoozes, taken.flags | chosen.limited
    FROM unnest($1::bigint[], $2::bigint[], $3::int[]) AS chosen(task_id, order_key, limited)
    JOIN taken ON taken.task_id = chosen.task_id JOIN aaiclick_queue.tasks t ON t.id = taken.task_id
    ON CONFLICT DO NOTHING RETURNING queue, rank, order_key, task_id
), slots AS (
    INSERT INTO aaiclick_queue.slots (task_id, limit_id, key, seconds, order_key)
    SELECT slot.task_id, slot.limit_id, slot.key, slot.seconds, slot.order_key
    FROM unnest($4::bigint[], $5::bigint[], $6::text[], $7::float8[], $8::bigint[])
         AS slot(task_id, limit_id, key, seconds, order_key)
    JOIN taken ON taken.task_id = slot.task_id
    ON CONFLICT DO NOTHING
), turns AS (
    UPDATE aaiclick_queue.limits m SET turn = greatest(m.turn, last.turn)
    FROM unnest($9::bigint[], $10::bigint[]) AS last(id, turn) WHERE m.id = last.id
), told AS (
    {append_from("moved")}
)
SELECT count(*) AS n FROM moved
"""
GIVE_BACK_STOPPED = """
DELETE FROM aaiclick_queue.slots s USING unnest($1::bigint[], $2::int[]) AS run(task_id, run_epoch)
WHERE s.task_id = run.task_id AND s.stopping = run.run_epoch AND s.worker_id = $3
"""
STOPPING_OF = "SELECT task_id, stopping FROM aaiclick_queue.slots WHERE worker_id = $1 AND stopping > 0"
LANES_A_PASS = 200
BATCH = 500
FROM_THE_START = Lane("", "", "", "")


class Admitted:
    """What a pass did: how many it let in, whether lanes are left to look at, seconds until a rate has room again."""

    def __init__(self, count: int = 0, *, lanes: int = 0, more: bool = False, busy: bool = False) -> None:
        self.count = count
        self.lanes = lanes
        self.more = more
        self.busy = busy
        self.next_end: float | None = None


class Admission:
    """The admission of one process: it goes round the lanes, and looks first where a slot was freed here."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._after = FROM_THE_START
        self._freed: set[Lane] = set()

    def freed(self, lanes: Iterable[Lane]) -> None:
        """Runs of these lanes have ended: their next ones may come."""
        self._freed.update(lanes)

    async def admit_once(self, *, lanes: int = LANES_A_PASS, batch: int = BATCH) -> Admitted:
        """One bounded pass."""
        first, self._freed = self._freed, set()
        # One lane more than are looked at tells whether the round is over: a full last page did not, and never ended.
        rows = await self._db.fetch(LANES, *self._after, lanes + 1)
        page, more = [Lane(*row) for row in rows[:lanes]], len(rows) > lanes
        looked_from, self._after = self._after, page[-1] if more else FROM_THE_START
        looked = list(dict.fromkeys([*first, *page]))
        if not looked:
            return Admitted(more=looked_from != FROM_THE_START)
        async with self._db.transaction() as tx:
            [lock] = await tx.fetch(ADMISSION_LOCK)
            if not lock["got"]:
                self._freed |= first
                self._after = looked_from
                return Admitted(lanes=len(looked), busy=True)
            await tx.fetch(SETTLE_SLOTS)
            admitted = await _admit(tx, looked, batch)
        admitted.more = more
        return admitted


async def _admit(tx: Connection, lanes: Sequence[Lane], batch: int) -> Admitted:
    candidates = await _candidates(tx, lanes, each=max(4, batch // len(lanes)))
    limits = await _limits(tx, lanes)
    known: Known = {}
    slots = {lane: needed(lane, limits, known) for lane in lanes}
    next_end = await _count_used(tx, limits, known)
    await _find_turns(tx, limits, candidates)
    chosen = choose(candidates, slots, limits, most=batch)
    admitted = Admitted(await _let_in(tx, chosen, limits) if chosen else 0, lanes=len(lanes))
    admitted.next_end = next_end
    return admitted


async def _candidates(tx: Transaction, lanes: Sequence[Lane], *, each: int) -> dict[Lane, list[Candidate]]:
    columns = [list(column) for column in zip(*lanes, strict=True)]
    found: dict[Lane, list[Candidate]] = {}
    for row in await tx.fetch(FIRST_OF_LANES, *columns, each):
        found.setdefault(lanes[row["n"] - 1], []).append(Candidate(row["rank"], row["order_key"], row["task_id"]))
    for line in found.values():
        line.sort()
    return found


async def _limits(tx: Transaction, lanes: Sequence[Lane]) -> dict[int, Limit]:
    names = (
        {lane.queue for lane in lanes},
        {lane.entrypoint for lane in lanes},
        {lane.key for lane in lanes},
        {lane.job for lane in lanes},
    )
    return {row["id"]: Limit(**dict(row)) for row in await tx.fetch(LIMITS_OF_LANES, *map(list, names))}


async def _count_used(tx: Transaction, limits: dict[int, Limit], known: Known) -> float | None:
    """Fill in what is taken; returns the seconds until the first slot of a rate ends."""
    rows = await tx.fetch(USED_SLOTS, [limit_id for limit_id, _ in known], [key for _, key in known])
    for row in rows:
        slot = known[row["limit_id"], row["key"]]
        slot.used, slot.last_turn, slot.holders = row["n"], row["last_turn"], frozenset(row["holders"] or ())
    fair = [limit.id for limit in limits.values() if limit.kind == "fair"]
    for row in await tx.fetch(USED_BY_FAIR, fair) if fair else ():
        limits[row["limit_id"]].used = row["n"]
    ends = [row["next_end"] for row in rows if row["next_end"] is not None]
    return min(ends, default=None)


async def _find_turns(tx: Transaction, limits: dict[int, Limit], candidates: dict[Lane, list[Candidate]]) -> None:
    """Where the next turn of each fair queue is: at the head of its line, so that a newcomer is not behind a window."""
    fair = {limit.name: limit for limit in limits.values() if limit.kind == "fair"}
    heads = {(lane.queue, one.rank) for lane, line in candidates.items() if lane.queue in fair for one in line}
    if not heads:
        return
    pairs = sorted(heads)
    rows = await tx.fetch(HEADS_OF_LINE, [queue for queue, _ in pairs], [rank for _, rank in pairs])
    for row in rows:
        if row["turn"] is not None:
            fair[row["queue"]].heads[row["rank"]] = row["turn"]


async def _let_in(tx: Transaction, chosen: Sequence[Chosen], limits: dict[int, Limit]) -> int:
    slots = [(one, slot) for one in chosen for slot in one.slots]
    fair = [limit for limit in limits.values() if limit.kind == "fair"]
    [row] = await tx.fetch(
        ADMIT,
        [one.task_id for one in chosen],
        [one.order_key for one in chosen],
        [2 if any(slot.limit_id for slot in one.slots) else 0 for one in chosen],
        [one.task_id for one, _ in slots],
        [slot.limit_id for _, slot in slots],
        [slot.key for _, slot in slots],
        [slot.seconds for _, slot in slots],
        [one.order_key if slot.is_turn else None for one, slot in slots],
        [limit.id for limit in fair],
        [limit.turn for limit in fair],
    )
    count: int = row["n"]
    return count


async def give_back_stopped(tx: Transaction, runs: Sequence[tuple[int, int]], *, worker_id: int) -> None:
    """The code of these runs, which were told to stop, has ended: their slots are free."""
    await tx.fetch(GIVE_BACK_STOPPED, [task_id for task_id, _ in runs], [run_epoch for _, run_epoch in runs], worker_id)


class Strays:
    """Slots kept for runs of this worker that it knows nothing of: cancelled before the answer to their claim was lost.

    Given back when they were seen in two looks, so that one whose claim is just being answered is left in peace.
    """

    def __init__(self) -> None:
        self._seen: set[tuple[int, int]] = set()

    async def give_back_once(self, tx: Transaction, worker_id: int, at_work: Container[int]) -> int:
        """Give back those that belong to no run at work here; returns how many."""
        rows = await tx.fetch(STOPPING_OF, worker_id)
        stray = {(row["task_id"], row["stopping"]) for row in rows if row["task_id"] not in at_work}
        over, self._seen = stray & self._seen, stray
        if over:
            await give_back_stopped(tx, sorted(over), worker_id=worker_id)
        return len(over)
