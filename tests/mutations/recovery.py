"""More faults that are planted: in what recovers, what is asked again, keys and slots, and what opens gates."""

from __future__ import annotations

from typing import Any

import pytest

from aaiclick_queue.errors import TasksBusy
from aaiclick_queue.flow import cancel, dedupe
from aaiclick_queue.flow.mark import HeadScans
from aaiclick_queue.flow.reaper import Reaper
from aaiclick_queue.outcome import Succeeded
from tests.mutations.planting import Mutation, Plant

REAPER = "tests.flow.test_reaper:test_"
KEYS = "tests.flow.test_dedupe:test_"
ADMIT = "tests.flow.test_admit:test_"
CLAIM = "tests.flow.test_claim:test_"
BEAT = "tests.flow.test_heartbeat:test_"
LANES = "tests.races.test_limits:test_two_admissions_that_look_at_different_lanes_keep_the_limit_of_both"
GATES = "tests.races.test_gates:test_"
JOBS = "tests.races.test_jobs:test_"
OUTAGE = REAPER + "after_an_outage_nobody_is_marked_for_a_lease_period"
OTHER_SERVER = REAPER + "on_another_server_than_before_nobody_is_marked_for_a_lease_period"
PROMOTED = REAPER + "a_reaper_that_meets_another_timeline_than_was_written_down_marks_nobody"
LOST_TOO_OFTEN = REAPER + "a_task_that_is_lost_too_often_fails_with_the_cause"
ALONE = REAPER + "a_run_that_was_alone_may_be_lost_twice_as_often"
UNKNOWN_LEASES = BEAT + "leases_that_the_worker_does_not_know_of_are_named_when_asked_for"
SWEPT_SLOTS = ADMIT + "the_sweep_leaves_the_slots_of_those_in_line_and_of_those_that_run"
WAYS_OUT = ADMIT + "every_way_out_of_a_lease_gives_the_slot_back"
GOES_ON = ADMIT + "the_end_of_a_run_leaves_the_slot_of_one_before_it_that_goes_on"
DEBOUNCED = KEYS + "debounce_moves_one_that_waits_and_follows_one_that_runs"
TAKEN_OVER = KEYS + "two_that_take_over_a_key_at_once_leave_one_open_task"


def _no_want(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HeadScans, "want", lambda self: None)


def _no_second(patch: pytest.MonkeyPatch) -> None:
    due = HeadScans.due
    patch.setattr(HeadScans, "due", lambda self: self._wanted and due(self))


def _sees_well(patch: pytest.MonkeyPatch) -> None:
    """An outage is not noticed."""
    mark = Reaper._mark_lost

    async def marks(self: Any, limit: int) -> int:
        self._blind_until = 0.0
        self._seen = float("inf")
        return await mark(self, limit)

    patch.setattr(Reaper, "_mark_lost", marks)


def _set(module: Any, name: str, value: Any) -> Plant:
    return lambda patch: patch.setattr(module, name, value)


def _answers() -> list[Mutation]:
    same_epoch = "tests.flow.test_complete:test_what_another_worker_recorded_under_the_same_epoch_is_not_taken_for_ours"
    return [
        Mutation(
            "somebody else's record is taken for ours",
            ((same_epoch, {}),),
            (("AND t.worker_id = $4", "AND $4::bigint > 0"), ("AND a.worker_id = $4", "")),
        ),
        Mutation(
            "strangers are those that were claimed just now",
            ((UNKNOWN_LEASES, {}),),
            (("AND l.claimed_at < now() - interval '5 s' AND", "AND"),),
        ),
        Mutation("strangers are those that are known", ((UNKNOWN_LEASES, {}),), ((" AND l.task_id <> ALL($3)", ""),)),
        Mutation(
            "a short claim does not look behind the mark",
            ((CLAIM + "a_short_claim_looks_behind_the_mark_at_once", {}),),
            plant=_no_want,
        ),
        Mutation(
            "full claims never look behind the mark",
            ((CLAIM + "a_task_behind_the_mark_is_found_though_every_claim_is_full", {}),),
            plant=_no_second,
            hangs=True,
        ),
        Mutation(
            "a claim from a paused queue",
            ((CLAIM + "a_paused_queue_keeps_its_rows_and_holds_up_no_other", {}),),
            (("AND q.paused_at IS NOT NULL)", "AND false)"),),
        ),
        Mutation(
            "a claim that forgets losses",
            (("tests.flow.test_settle:test_all_counts_travel_through_every_place", {}),),
            (("taken.attempt + 1, taken.lost_count,", "taken.attempt + 1, 0,"),),
        ),
        Mutation(
            "a job that starts with each of its tasks",
            (("tests.dag.test_closing:test_a_job_starts_once_with_the_first_of_its_tasks", {}),),
            (("AND j.status || '' = 'PENDING' FOR", "AND j.status || '' IN ('PENDING', 'RUNNING') FOR"),),
        ),
        Mutation(
            "a claim under a limit that a crash may forget",
            ((CLAIM + "a_claim_under_a_limit_or_an_order_waits_for_the_disk_and_others_do_not", {}),),
            (("bool_or(taken.flags & 6 <> 0)", "bool_or(false)"),),
        ),
    ]


def _reaping() -> list[Mutation]:
    return [
        Mutation("a reaper that does not know of an outage", ((OUTAGE, {}),), plant=_sees_well),
        Mutation(
            "a reaper that takes one server for another",
            ((OTHER_SERVER, {}),),
            (("AND extract(epoch FROM pg_postmaster_start_time())::text = $3", "AND $3::text <> ''"),),
        ),
        Mutation(
            "a reaper that does not know of a promotion",
            ((PROMOTED, {}),),
            (("t.expires_at > now() AND t.expires_at <", "t.expires_at < now() AND t.expires_at <"),),
        ),
        Mutation(
            "one loss more", ((LOST_TOO_OFTEN, {}),), (("l.lost_count + 1 >= $2::int", "l.lost_count >= $2::int"),)
        ),
        Mutation(
            "a run alone has one budget",
            ((ALONE, {"losses": 4, "place": "delayed"}),),
            (("THEN 2 ELSE 1 END", "THEN 1 ELSE 1 END"),),
        ),
        Mutation(
            "a loss without a trace",
            ((REAPER + "a_silent_worker_is_lost_and_its_runs_come_back_at_no_attempt", {}),),
            (("'UNKNOWN', 'LOST', 'CLEARED') AND worker_id", "'UNKNOWN', 'CLEARED') AND worker_id"),),
        ),
        Mutation(
            "workers are forgotten before their leases",
            ((REAPER + "old_workers_are_forgotten_but_not_while_they_own_a_lease", {}),),
            (("AND NOT EXISTS (SELECT FROM aaiclick_queue.leases l WHERE l.worker_id = o.id)", ""),),
        ),
        Mutation(
            "an overdue run spends nothing",
            (
                (
                    REAPER + "a_run_past_its_deadline_is_taken_and_spends_its_attempt",
                    {"max_attempts": 3, "place": "delayed"},
                ),
            ),
            (("THEN 'RETRYING' ELSE 'FAILED' END", "THEN 'LOST' ELSE 'FAILED' END"),),
        ),
        Mutation(
            "a timer is forgotten while its task moves",
            (("tests.flow.test_resilience:test_a_task_that_moves_while_it_expires_keeps_its_timer", {}),),
            (("task_id = ANY($2::bigint[]) OR EXISTS", "true OR task_id = ANY($2::bigint[]) OR EXISTS"),),
        ),
        Mutation(
            "a cancel that looks once",
            (("tests.flow.test_cancel:test_a_task_is_never_missed_while_it_moves", {}),),
            plant=_set(cancel, "PASSES", 1),
            sees=(TasksBusy,),
        ),
    ]


def _keys() -> list[Mutation]:
    return [
        Mutation(
            "a job that keeps its key",
            (
                (
                    "tests.dag.test_closing:test_the_key_of_a_job_is_free_with_its_end",
                    {"outcome": Succeeded("1"), "status": "COMPLETED"},
                ),
            ),
            (("SELECT id FROM closed)) FOR UPDATE", "SELECT id FROM closed WHERE false)) FOR UPDATE"),),
        ),
        Mutation(
            "a sweep that keeps keys",
            ((KEYS + "the_sweep_removes_keys_of_ended_tasks_and_keys_whose_time_is_over", {}),),
            (("WHERE coalesce(d.until < now(),", "WHERE false AND coalesce(d.until < now(),"),),
        ),
        Mutation(
            "the end of a task frees a key with a time of its own",
            ((KEYS + "a_key_is_free_again_after_its_time_and_not_before", {}),),
            ((" AND d.until IS NULL\n", "\n"),),
            only="'COMPLETED'",
        ),
        Mutation(
            "a key that is looked at and not held",
            ((TAKEN_OVER, {"place": "final", "mode": "skip"}),),
            (("AND key = $2::text FOR UPDATE", "AND key = $2::text"),),
        ),
        Mutation(
            "debounce without an end",
            ((KEYS + "debounce_puts_a_task_off_at_most_so_long_after_the_first_call", {}),),
            (
                (
                    "d.first_at + make_interval(secs => $4::float8))",
                    "now() + 0 * make_interval(secs => $4::float8) + interval '9 days')",
                ),
            ),
        ),
        Mutation(
            "debounce leaves what is in line",
            ((DEBOUNCED, {"place": "ready"}),),
            plant=_set(dedupe, "DEBOUNCE_PLACES", dedupe.DEBOUNCE_PLACES[:2]),
        ),
    ]


def _slots() -> list[Mutation]:
    return [
        Mutation(
            "the end of a run frees the slot of one that still stops",
            ((GOES_ON, {"outcome": Succeeded("1")}),),
            (("AND s.stopping = 0 FOR UPDATE", "FOR UPDATE"),),
        ),
        Mutation(
            "a completion keeps its slot",
            ((WAYS_OUT, {"outcome": Succeeded("1"), "place": ["COMPLETED"]}),),
            (("WHERE ends_at IS NULL OR ends_at <= now()", "WHERE ends_at <= now()"),),
        ),
        Mutation(
            "a start of a rate ends with its run",
            (("tests.flow.test_rates:test_a_start_counts_for_a_period_after_its_run_has_ended", {}),),
            (("WHERE ends_at IS NULL OR ends_at <= now()", "WHERE true"), ("AND held.ends_at > now()", "AND false")),
        ),
        Mutation(
            "a stopped run frees the slot of the next",
            ((ADMIT + "a_run_that_has_stopped_leaves_the_slot_of_the_next_one", {}),),
            (("AND s.stopping = run.run_epoch AND s.worker_id = $3", "AND $3::bigint > 0"),),
        ),
        Mutation(
            "the sweep frees slots of those in line",
            ((SWEPT_SLOTS, {}),),
            (
                (
                    "AND NOT EXISTS (SELECT FROM aaiclick_queue.ready r WHERE",
                    "AND (true OR EXISTS (SELECT FROM aaiclick_queue.ready r WHERE",
                ),
                ("= t.id) END", "= t.id)) END"),
            ),
        ),
        Mutation(
            "the sweep frees slots of those that run",
            ((SWEPT_SLOTS, {}),),
            (("ELSE NOT EXISTS (SELECT FROM aaiclick_queue.leases l WHERE l.task_id = s.task_id)", "ELSE true"),),
        ),
        Mutation(
            "a run that is handed back passes by a new limit",
            (("tests.flow.test_handed_back:test_runs_that_are_handed_back_are_let_in_by_a_limit_made_since", {}),),
            (("ON m.scope = its.scope AND m.name = its.name", "ON false"),),
            only="'RELEASED'",
        ),
        Mutation(
            "a run that goes on keeps its slot for the next",
            ((ADMIT + "a_run_that_is_handed_back_while_its_thread_goes_on_waits_for_another_slot", {}),),
            (("AND NOT taken.stops\n", "\n"),),
        ),
        Mutation(
            "a retry keeps its turn",
            ((ADMIT + "a_retry_that_is_due_waits_for_its_turn_like_everybody", {"scope": "queue", "name": "default"}),),
            (("taken.flags & ~2, t.queue,", "taken.flags, t.queue,"),),
        ),
        Mutation(
            "two admissions at once",
            ((LANES, {}),),
            (("pg_try_advisory_xact_lock(hashtext('aaiclick_queue.admission')) AS got", "true AS got"),),
        ),
    ]


def _gates() -> list[Mutation]:
    return [
        Mutation(
            "a resolver that waits for gates",
            ((GATES + "a_gate_that_somebody_holds_for_long_keeps_no_other_job_waiting", {}),),
            (("ORDER BY g.id FOR UPDATE SKIP LOCKED\n), taken", "ORDER BY g.id\n), taken"),),
            hangs=True,
        ),
        Mutation(
            "a cancelled job that goes on",
            (("tests.dag.test_cancel_job:test_nothing_is_let_in_between_the_cancel_and_its_operation", {}),),
            (("AND NOT (j.status = 'CANCELLED' OR j.failing_at IS NOT NULL) AS goes_on", "AS goes_on"),),
        ),
        Mutation(
            "a gate whose next page nobody asks for",
            ((JOBS + "two_open_a_gate_page_by_page_and_stop_anywhere", {}),),
            (
                (
                    "SELECT g.id, 0 FROM aaiclick_queue.gates g WHERE",
                    "SELECT g.id, 0 FROM aaiclick_queue.gates g WHERE false AND",
                ),
            ),
        ),
        Mutation(
            "a job whose row was held stays open",
            ((GATES + "a_job_whose_row_is_held_closes_later_though_another_gate_is_held_too", {}),),
            (
                (
                    "OR (g.remaining = 0 AND EXISTS (SELECT FROM aaiclick_queue.jobs j WHERE",
                    "OR (false AND EXISTS (SELECT FROM aaiclick_queue.jobs j WHERE",
                ),
            ),
        ),
        Mutation(
            "a child behind a look at its lease",
            (("tests.races.test_fences:test_a_child_is_written_while_the_lease_is_held_or_not_at_all", {}),),
            (("AND worker_id + 0 = $3 FOR UPDATE", "AND worker_id + 0 = $3"),),
        ),
        Mutation(
            "a tick that fires again",
            (("tests.races.test_schedules:test_a_tick_that_has_a_run_gets_no_second_one", {"run_type": "BACKFILL"}),),
            (("WHERE excluded.outcome = 'FIRED' AND t.job_id IS NULL", "WHERE excluded.outcome = 'FIRED'"),),
        ),
    ]


def more() -> list[Mutation]:
    """All of them."""
    return [*_answers(), *_reaping(), *_keys(), *_slots(), *_gates()]
