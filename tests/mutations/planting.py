"""Mutations: small faults planted into the flow, each of which a named test must catch.

A fault in a statement is planted where statements are sent, so that it is there for whoever sends it; a fault in Python
by changing what is called. `tests/mutations/test_planted.py` runs the named tests with the fault in place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from aaiclick_queue import postgres
from aaiclick_queue.flow import complete as completing
from aaiclick_queue.flow.mark import HeadScans, Mark
from aaiclick_queue.schema import schema_sql
from tests.races import orders

Plant = Callable[[pytest.MonkeyPatch], None]


@dataclass
class Mutation:
    """What is changed, and the tests that see it, as `module:test` with the values of their parameters."""

    name: str
    killed_by: tuple[tuple[str, dict[str, Any]], ...]
    changes: tuple[tuple[str, str], ...] = ()  # in every statement that has all of these words
    only: str = ""  # in statements that have these words too
    plant: Plant | None = None
    hangs: bool = False  # what sees it waits for ever
    sees: tuple[type[Exception], ...] = (AssertionError,)
    planted: int = field(default=0, compare=False)

    def apply(self, patch: pytest.MonkeyPatch) -> None:
        """Plant it until the patch is undone."""
        if self.plant is not None:
            self.plant(patch)
            self.planted += 1
        if self.changes:
            for module in (postgres, orders):
                patch.setattr(module, "schema_sql", self._changed)

    def _changed(self, sql: str, schema: str) -> str:
        if self.only in sql and all(old in sql for old, _ in self.changes):
            self.planted += 1
            for old, new in self.changes:
                sql = sql.replace(old, new)
        return schema_sql(sql, schema)


def _mark_is_never_reset(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HeadScans, "due", lambda self: self._last == 0.0)


def _scan_starts_at_the_mark(patch: pytest.MonkeyPatch) -> None:
    begin = Mark.begin

    def begin_at_the_mark(self: Any) -> Any:
        begin(self)
        self._from_head = False
        return self._position

    patch.setattr(Mark, "begin", begin_at_the_mark)


LATE_ARRIVALS = """
INSERT INTO aaiclick_queue.arrivals (gate_id, n)
SELECT at.gate_id, count(*) FROM aaiclick_queue.tasks t CROSS JOIN LATERAL (VALUES (t.member_gate), (t.exit_gate))
    AS at(gate_id) WHERE t.id = ANY($1::bigint[]) AND at.gate_id IS NOT NULL GROUP BY at.gate_id
"""
LATE_WAKE_UPS = """
INSERT INTO aaiclick_queue.outbox (queue, rank, order_key, n, task_ids)
SELECT queue, min(rank), min(order_key), count(*), array_agg(task_id) FROM aaiclick_queue.ready
WHERE task_id = ANY($1::bigint[]) GROUP BY queue
"""


def _afterwards(statement: str) -> Plant:
    """What a completion is to write with its statement is written by another one behind it."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        record = completing._record

        async def recorded(tx: Any, runs: Any, worker_id: int) -> set[int]:
            landed = await record(tx, runs, worker_id)
            await tx.fetch(statement, sorted(landed))
            return landed

        patch.setattr(completing, "_record", recorded)

    return plant


FENCE = "tests.flow.test_complete:test_nothing_is_written_without_the_whole_fence"
WRITES = "tests.flow.test_context:test_each_write_needs_the_whole_fence"
MARK = "tests.flow.test_claim:test_a_task_behind_the_mark_is_found"
DUE_MARK = "tests.flow.test_marks:test_a_task_that_was_due_before_the_mark_is_moved"
FOLD_MARK = "tests.flow.test_marks:test_an_end_that_commits_after_later_ones_were_folded_is_folded"
DIES = "tests.races.test_meetings:test_a_step_that_dies_anywhere_leaves_everything_whole"
KEY = "tests.flow.test_dedupe:test_the_end_of_a_task_frees_its_key"
SLOT = "tests.flow.test_admit:test_the_slot_of_a_cancelled_run_is_free_when_its_worker_says_that_it_has_ended"
SLOT_TWICE = "tests.races.test_twice:test_a_slot_that_is_given_back_twice_frees_nobody_elses"
SLOT_KEPT = "tests.flow.test_admit:test_a_run_that_is_handed_back_keeps_its_slot_in_line"
SKIPS = "tests.flow.test_reaper:test_a_lease_that_its_owner_is_writing_to_is_left_until_later"
LOST = "tests.flow.test_heartbeat:test_a_worker_that_was_marked_lost_stays_lost"
NO_TWICE = "tests.races.test_twice:test_a_gate_that_is_decided_early_tells_those_behind_it_once"
EARLY = "tests.races.test_fences:test_a_kept_progress_was_kept_while_the_lease_was_held"
NOT_ACTIVE = "tests.flow.test_claim:test_a_worker_that_is_not_active_gets_nothing"
EPOCH = "tests.flow.test_claim:test_each_claim_of_a_task_is_a_new_epoch_and_only_a_spent_attempt_counts"
COUNTS = "tests.flow.test_settle:test_all_counts_travel_through_every_place"
GONE = "tests.flow.test_heartbeat:test_a_run_that_was_cancelled_is_gone"
GONE_EPOCH = "tests.flow.test_heartbeat:test_a_run_whose_task_was_claimed_again_is_gone_and_the_new_run_is_not"
SECOND = "tests.flow.test_claim:test_a_second_worker_walks_on_instead_of_waiting"
MEET = "tests.races.test_meetings:test_three_steps_leave_everything_whole"
OPENING, ADMITTING = ("complete", "resolve", "claim"), ("complete", "admit", "beat")
DECIDED = "tests.races.test_twice:test_a_gate_that_was_decided_stays_as_it_is"
DIES_COMPLETING = ((DIES, {"name": "complete"}),)


def _outcome(kind: str) -> Any:
    from tests.flow.test_complete import OUTCOMES

    return next(one for one in OUTCOMES if kind in (type(one).__name__, getattr(one, "kind", "")))


def mutations() -> list[Mutation]:
    """All that are planted."""
    success, failure, retry = (_outcome(kind) for kind in ("Succeeded", "Failed", "RETRYING"))
    other, older = "another worker", "an older epoch"
    fences = [
        Mutation(
            f"{what} without {column}",
            ((FENCE, {"outcome": outcome, "breach": breach}),),
            ((predicate, instead),),
        )
        for what, outcome, parameter in (
            ("completion", success, "$6"),
            ("failure", failure, "$7"),
            ("retry", retry, "$7"),
        )
        for column, breach, predicate, instead in (
            ("worker_id", other, f"AND l.worker_id + 0 = {parameter}", f"AND {parameter}::bigint IS NOT NULL"),
            ("run_epoch", older, "AND l.run_epoch = run.run_epoch", ""),
        )
    ]
    writes = [
        Mutation("fenced writes without worker_id", ((WRITES, {"breach": "worker_id"}),),
                 (("AND worker_id + 0 = $3", "AND $3::bigint IS NOT NULL"),)),
        Mutation("fenced writes without run_epoch", ((WRITES, {"breach": "run_epoch"}),),
                 (("AND run_epoch = $2 ", "AND $2::int IS NOT NULL "),)),
        Mutation("a look instead of a lock", ((EARLY, {}),), ((" FOR UPDATE)", ")"),), only="WITH lease AS"),
        Mutation("a heartbeat that does not ask whose the lease is", ((GONE, {}),),
                 (("AND l.worker_id + 0 = $1 LIMIT 1)", "LIMIT 1)"),)),
        Mutation("a heartbeat that does not ask for the epoch", ((GONE_EPOCH, {}),),
                 (("AND l.run_epoch = run.run_epoch AND", "AND"),)),
    ]  # fmt: skip
    marks = [
        Mutation("the mark of the line is never reset", ((MARK, {}),), plant=_mark_is_never_reset, hangs=True),
        Mutation("the mark of delays is never reset", ((DUE_MARK, {}),), plant=_mark_is_never_reset, hangs=True),
        Mutation("delays are read from the mark alone", ((DUE_MARK, {}),), plant=_scan_starts_at_the_mark, hangs=True),
        Mutation(
            "arrivals are read from the mark alone", ((FOLD_MARK, {}),), plant=_scan_starts_at_the_mark, hangs=True
        ),
    ]
    nothing = (("GROUP BY queue\n", "GROUP BY queue HAVING false\n"),)
    well = ("FROM final) AS ended", "FROM final WHERE false) AS ended")
    together = [
        Mutation("an end without its arrival", DIES_COMPLETING, (well,), only="'COMPLETED'"),
        Mutation("a failure without its arrival", ((DIES, {"name": "fail"}),), (well,), only="'RELEASED'"),
        Mutation("an arrival behind the end", DIES_COMPLETING, (well,), only="'COMPLETED'",
                 plant=_afterwards(LATE_ARRIVALS)),
        Mutation("a wake-up behind the release", ((DIES, {"name": "release"}),), nothing, only="'RELEASED'",
                 plant=_afterwards(LATE_WAKE_UPS)),
        Mutation("what is due without a wake-up", ((DIES, {"name": "due"}),), nothing, only="not_before <= now()"),
        Mutation("what is let in without a wake-up", ((MEET, {"names": ADMITTING}),), nothing, only="chosen.limited"),
        Mutation("what a gate lets go without a wake-up", ((MEET, {"names": OPENING}),), nothing, only="goes_on"),
    ]  # fmt: skip
    keys = [
        Mutation("a completion that keeps the key", ((KEY, {"outcome": success}),),
                 (("SELECT task_id FROM ended WHERE flags & 1 = 1", "SELECT task_id FROM ended WHERE false"),)),
        Mutation("a failure that keeps the key", ((KEY, {"outcome": failure}),),
                 (("SELECT task_id FROM taken WHERE flags & 1 = 1", "SELECT task_id FROM taken WHERE false"),)),
        Mutation("a cancel that keeps the key", ((KEY, {"outcome": "cancelled"}),),
                 (("SELECT task_id FROM taken WHERE flags & 1 = 1", "SELECT task_id FROM taken WHERE false"),)),
    ]  # fmt: skip
    slots = [
        Mutation("a slot given back though its code runs", ((SLOT, {}),),
                 (("WHEN slot.seconds IS NULL AND taken.stops THEN 'stopping'", ""),)),
        Mutation("a slot given back by anybody", ((SLOT, {}),), (("AND s.worker_id = $3", "AND $3::bigint > 0"),)),
        Mutation("a slot given back by an end that did not land", ((SLOT_TWICE, {}),),
                 (("AND s.stopping = run.run_epoch AND s.worker_id = $3", "OR $3::bigint > 0"),)),
        Mutation("a slot given back by who is still in line", ((SLOT_KEPT, {}),),
                 (("THEN CASE WHEN slot.seconds IS NULL THEN 'as it is' ELSE 'unclaimed' END", "THEN 'free'"),)),
    ]  # fmt: skip
    others = [
        Mutation("a reaper that waits for locks", ((SKIPS, {}),), (("FOR UPDATE SKIP LOCKED", "FOR UPDATE"),),
                 only="WITH candidates", hangs=True),
        Mutation("a claim that waits for locks", ((SECOND, {}),),
                 (("LIMIT $5 FOR UPDATE SKIP LOCKED", "LIMIT $5 FOR UPDATE"),), hangs=True),
        Mutation("a lost worker that beats is found again", ((LOST, {}),),
                 (("AND status IN ('ACTIVE', 'STOPPING') RETURNING status, asked", "RETURNING status, asked"),
                  ("SET last_heartbeat = now(),", "SET status = 'ACTIVE', last_heartbeat = now(),"))),
        Mutation("a claim by whoever it is", ((NOT_ACTIVE, {"status": "LOST"}),), (("AND w.status = 'ACTIVE'", ""),)),
        Mutation("a claim in the epoch of the last one", ((EPOCH, {}),), (("taken.run_epoch + 1", "taken.run_epoch"),)),
        Mutation("a loss that is forgotten", ((COUNTS, {}),),
                 (("taken.lost_count + (taken.kind = 'LOST')::int", "0"),)),
        Mutation("a release that spends an attempt", ((EPOCH, {}),),
                 (("taken.attempt - 1 AS attempt", "taken.attempt AS attempt"),)),
        Mutation("a gate that tells twice", ((NO_TWICE, {}),),
                 (("e.next_gate_id > g.edge_cursor", "e.next_gate_id > 0"),)),
        Mutation("a gate that is decided again", ((DECIDED, {}),), (("WHEN g.state <> 'WAITING' THEN g.state", ""),)),
    ]  # fmt: skip
    return [*fences, *writes, *marks, *together, *keys, *slots, *others]
