"""One round of everything that is hot, by the steps themselves, so that statements run with the arguments they get."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import time
from collections.abc import Callable, Sequence
from types import ModuleType

from aaiclick_queue import flags, flow
from aaiclick_queue.flow import (
    admit,
    cancel,
    claim,
    complete,
    dedupe,
    enqueue,
    fenced,
    heartbeat,
    plain,
    plan_tasks,
    prune,
    reaper,
    relay,
    settle,
    unknown,
)
from aaiclick_queue.flow.choose import Lane
from aaiclick_queue.flow.claim import Claimed, Line, Wanted, queues_in_line
from aaiclick_queue.flow.enqueue import NewTask, Spec, id_source
from aaiclick_queue.flow.heartbeat import Counters, Identity, register
from aaiclick_queue.flow.loop import Holder
from aaiclick_queue.outcome import Ended, Error, Failed, Later, Outcome, Released, Succeeded
from aaiclick_queue.postgres import LOCAL_FLOW_PLANS
from aaiclick_queue.spec import DedupeMode
from aaiclick_queue.streams import Streams
from aaiclick_queue.waiting import FINISHED
from tests.plans.explain import Explained, ExplainingDatabase
from tests.plans.job_rounds import JobRound
from tests.plans.operate_rounds import OperateRound
from tests.plans.schedule_rounds import ScheduleRound

SPEC = Spec("shop.mail.send", "default", priority=5)
LEASE_SECONDS = 86400
_ONE_BY_ONE = "only after a row that Postgres cannot work on has stopped all, a hundred at most"
COLD = {
    "relay.ENQUEUED_IN": "where spans are made alone, at most 128 rows by their key",
    "promotion.MEET_TIMELINE": "once a reaper and server, one row",
    "pause.PAUSE_QUEUE": "by hand, one row",
    "pause.RESUME_QUEUE": "by hand, one row",
    "reaper.TAKE_ORPHANED_RUNS": "once a minute, looks at every lease",
    "reaper.SWEEP_KEYS": "once a minute, looks at every key",
    "reaper.FORGET_WORKERS": "once a minute, looks at every worker",
    "reaper.ENSURE_PARTITIONS": "once a minute, a function",
    "enqueue.NODE": "once a process, reads no table",
    "days.OLD_DAYS": "every ten minutes, reads the catalog",
    "reaper.REFRESH_DEPTHS": "as seldom as it is slow, counts up to max_depth",
    "lines.QUEUES": "every fifteen seconds by one process, and by hand: counts ten thousand a queue",
    "sample.CREATED_IN_MINUTE": "once a minute by one process, reads what was created in it, 100,000 at most",
    "watch.SCHEDULE_NAMES": "where metrics are served alone, every fifteen seconds by one process: 200 names by id",
    "lines.COUNT_LONG_LINES": "as seldom as it is slow, counts whole lines",
    "reaper.SWEEP_SLOTS": "once a minute, looks at every slot",
    "admit.STOPPING_OF": "once a minute a worker, by an index on few rows",
    "reaper.FORGET_LAPSED": "once a minute, looks at every limit",
    "limits.": "by hand, or once a minute",
    "operate.": "by hand, a page of a thousand at a time",
    "operation.": "by hand, one row",
    "job_sets.": "by hand, a page of five thousand jobs at a time",
    "retry.": "by hand",
    "move.": "by hand",
    "wanted.": "by hand, counts ten thousand",
    "attach.ADOPT_ALL": "by hand, at a clear: the gates of one job",
    "attach.CONTINUED": "for choices behind a continued task, by id",
    "cycles.WRITTEN_AFTERS": "for an add behind written nodes: reads that job",
    "cycles.WRITTEN_RETURNS": "for an add behind written nodes: reads that job",
    "resolve.DROP_ORPHANS": "only where a gate is gone: a page of arrivals",
    "submit.EMPTY_GROUPS": "for an add behind written groups, by id",
    "filter_pages.": "by hand, a page of a thousand at a time",
    "job_control.": "by hand, one row",
    "job_graph.": "by hand, all of one job",
    "job_retry.": "by hand",
    "clear.": "by hand",
    "backfill.": "by hand, a page of a hundred ticks at a time",
    "register.": "by hand or at a worker's start, one row by its name",
    "reenter.": "by hand, at a clear or a retry: one job",
    "reset.": "by hand, a page of ten thousand of one job at a time",
    "sweep_gates.": "once a minute, a page of gates",
    "archive.": "only with a history, a page of a thousand by their ids",
    "prune.OVERDUE_PAGE": "only with a history, reads what COUNT_PAGE reads",
    "prune.PRUNE_KEPT_PAGE": "only with a history, reads what PRUNE_PAGE reads",
    "attach.ARRIVE_NOW": "for an id that was drawn by a clock behind",
    "days.DROP_DAY": "every ten minutes, a function that reads the catalog",
    "quarantine.": _ONE_BY_ONE,
    "reaper.TAKE_LOST_RUN": _ONE_BY_ONE,
    "reaper.TAKE_ORPHANED_RUN": _ONE_BY_ONE,
    "reaper.TAKE_OVERDUE_RUN": _ONE_BY_ONE,
    "reaper.LOST_IDS": _ONE_BY_ONE,
    "reaper.ORPHANED_IDS": _ONE_BY_ONE,
    "reaper.OVERDUE_IDS": _ONE_BY_ONE,
    "reaper.MOVE_ONE_DUE": _ONE_BY_ONE,
    "reaper.DUE_IDS": _ONE_BY_ONE,
    "resolve.NEXT_ARRIVALS": _ONE_BY_ONE,
    "resolve.DROP_ARRIVAL": _ONE_BY_ONE,
    "scheduler.HOLD_ONE": _ONE_BY_ONE,
}


def _statements() -> dict[str, str]:
    """Every statement that a step of the flow has as a constant, by module and name."""
    found = {"waiting.FINISHED": FINISHED}
    for info in pkgutil.iter_modules(flow.__path__):
        module = importlib.import_module(f"{flow.__name__}.{info.name}")
        for name, value in _made_in(module).items():
            several = value if isinstance(value, tuple) else (value,)
            for at, sql in enumerate(several):
                if name[0] != "_" and isinstance(sql, str) and STATEMENT.match(sql) and sql not in found.values():
                    found[f"{info.name}.{name}" + (f"[{at}]" if len(several) > 1 else "")] = sql
    return found


def _made_in(module: ModuleType) -> dict[str, object]:
    """The constants of a module without those that it has from others."""
    made = (node for node in ast.parse(inspect.getsource(module)).body if isinstance(node, ast.Assign))
    names = [target.id for node in made for target in node.targets if isinstance(target, ast.Name)]
    return {name: getattr(module, name) for name in names}


# Not the pieces that statements are made of: those begin otherwise, or have braces left to fill.
STATEMENT = re.compile(r"\s*(SELECT|WITH|INSERT|UPDATE|DELETE)\b(?!.*\{[a-z_]+\}).*\baaiclick_queue\.", re.DOTALL)
FLOW = {name: sql for name, sql in _statements().items() if name not in COLD and f"{name.split('.')[0]}." not in COLD}
# What runs on connections of the application's kind: its own enqueues, and the end of current().transaction().
APPLICATION = {
    "enqueue.ENQUEUE": enqueue.ENQUEUE,
    "complete.COMPLETE_SUCCEEDED": complete.COMPLETE_SUCCEEDED,
    "plan_tasks.INSERT_TASKS": plan_tasks.INSERT_TASKS,
}
STATEMENTS = [*FLOW, *(f"{name} for an application" for name in APPLICATION)]
KEYED: list[tuple[DedupeMode, float | None]] = [
    ("replace", None),
    ("skip", None),
    ("debounce", 60.0),
    ("debounce", 60.0),
    ("replace", 60.0),
]


class Round:
    """Does everything once, `batch` tasks at a time, and gives the plans by the names of STATEMENTS."""

    def __init__(
        self, flow: ExplainingDatabase, application: ExplainingDatabase, streams: Streams, *, worker_id: int, batch: int
    ) -> None:
        self._flow = flow
        self._application = application
        self._streams = streams
        self._worker_id = worker_id
        self._batch = batch

    async def run(self) -> dict[str, list[Explained]]:
        self._flow.explained.clear()
        self._application.explained.clear()
        self._take = (await id_source(self._flow)).take
        identity = Identity(self._worker_id, 1, 100, "here", "1", ("default",))
        await register(self._flow, identity, lease_seconds=LEASE_SECONDS)
        await self._enqueue()
        await self._use_keys()
        await self._hold_loops()
        claimed = await self._claim()
        await self._run_and_complete(claimed)
        await self._admit()
        await JobRound(self._flow, self._application, self._take, worker_id=self._worker_id, batch=self._batch).run()
        await ScheduleRound(self._flow, worker_id=self._worker_id, batch=self._batch).run()
        await OperateRound(self._flow, worker_id=self._worker_id, batch=self._batch).run()
        await self._reap()
        await self._cancel()
        await self._leave()
        await self._prune(min(one.task_id for one in claimed[: self._batch]))
        found = {name: _of(self._flow, sql) for name, sql in FLOW.items()}
        found |= {f"{name} for an application": _of(self._application, sql) for name, sql in APPLICATION.items()}
        return found

    async def _write(self, task: NewTask) -> list[int]:
        tasks = [task] * self._batch
        written = await enqueue.enqueue(self._flow, SPEC, tasks, self._take)
        if written.told:
            await self._flow.fetch(relay.FORGET_OUTBOX_ROWS, [told.outbox_id for told in written.told])
        return written.ids

    async def _enqueue(self) -> None:
        for _ in range(claim.LOWEST_EVERY + 2):
            await self._write(NewTask("{}"))
        ids = await self._write(NewTask("{}", countdown=0.001, expires=0.001))
        await enqueue.written_before(self._flow, SPEC, set(ids))
        await enqueue.enqueue(self._application, SPEC, [NewTask("{}")], self._take)
        assert await plain.insert_plain(self._flow, SPEC, [NewTask("{}")] * self._batch, self._take(self._batch))

    async def _use_keys(self) -> None:
        for mode, countdown in KEYED:
            key = dedupe.Key("k", mode, debounce_max=60.0)
            async with self._flow.transaction() as tx:
                await dedupe.enqueue_keyed(tx, SPEC, NewTask("{}", countdown=countdown), key, self._take)

    async def _hold_loops(self) -> None:
        holder = Holder(self._worker_id)
        await holder.hold_once(self._flow)
        await holder.let_go(self._flow)

    async def _claim(self) -> list[Claimed]:
        line = Line({"default": 1})
        want = Wanted(self._batch, self._worker_id, 3600, 30)
        claimed: list[Claimed] = []
        for _ in range(claim.LOWEST_EVERY + 1):
            claimed += await line.claim(self._flow, want)
        assert len(claimed) > self._batch * claim.LOWEST_EVERY  # the one from the lowest rank may be short
        assert "default" in await queues_in_line(self._flow)
        return claimed

    async def _run_and_complete(self, claimed: Sequence[Claimed]) -> None:
        held = [(one.task_id, one.run_epoch) for one in claimed[: 2 * self._batch]]
        for look in (False, True):
            await heartbeat.beat(
                self._flow,
                self._worker_id,
                held,
                lease_seconds=LEASE_SECONDS,
                look_for_strangers=look,
                counters=Counters(),
            )
        fence = fenced.Fence(claimed[0].task_id, claimed[0].run_epoch, self._worker_id)
        assert await fenced.keep_progress(self._flow, fence, "0.5")
        assert await fenced.keep_checkpoint(self._flow, fence, "{}")
        await fenced.load_checkpoint(self._flow, fence.task_id)
        assert await fenced.extend(self._flow, fence, 60)
        assert await fenced.hold_lease(self._flow, fence)
        child = Spec("shop.mail.send", "default", parent_id=fence.task_id)
        await fenced.spawn(self._flow, child, NewTask("{}", spawn_key="1"), self._take)

        await unknown.unknown_outcomes(self._flow, claimed[: self._batch], keep_seconds=60)
        error = Error("ValueError", "no")
        outcomes: list[Outcome] = [
            Later("RETRYING", error, 0.0),
            Later("SNOOZED", error, 0.0),
            Failed(error),
            Released(),
        ]
        at = self._batch
        await self._end(claimed[:at], lambda _: Succeeded('{"sent": true}'))
        await self._end(claimed[at : 2 * at], lambda position: outcomes[position % len(outcomes)])
        async with self._application.transaction() as tx:
            await tx.fetch(LOCAL_FLOW_PLANS)
            [ended] = _ended(claimed[-1:], lambda _: Succeeded(None))
            assert await complete.complete(tx, [ended], worker_id=self._worker_id)

    async def _end(self, claimed: Sequence[Claimed], outcome: Callable[[int], Outcome]) -> None:
        runs = _ended(claimed, outcome)
        assert len(await complete.complete(self._flow, runs, worker_id=self._worker_id)) == len(runs)
        await complete._landed_before(self._flow, runs, self._worker_id)
        await self._flow.fetch(FINISHED, [run.task_id for run in runs])

    async def _admit(self) -> None:
        """Tasks under limits and of a strict order: held, let in, claimed, and their slots given back."""
        await self._flow.fetch(SOME_LIMITS)
        line = Line({"limited": 1, "turns": 1})
        for queue in ("limited", "turns"):
            spec = Spec(
                "shop.mail.send", queue, flags=flags.HOOKED, hooks='{"success": {"entrypoint": "shop.mail.thank"}}'
            )
            task = NewTask(
                "{}", concurrency_key="acme", order_by=f"order {self._worker_id}" if queue == "turns" else None
            )
            written = await enqueue.enqueue(self._flow, spec, [task] * self._batch, self._take)
            await self._flow.fetch(relay.FORGET_OUTBOX_ROWS, [told.outbox_id for told in written.told])
        admission = admit.Admission(self._flow)
        lanes = [
            Lane(queue, "", "acme", order) for queue, order in (("limited", ""), ("turns", f"order {self._worker_id}"))
        ]
        admission.freed(lanes)
        assert (await admission.admit_once(lanes=2, batch=2 * self._batch)).count > 1
        claimed = await line.claim(self._flow, Wanted(2 * self._batch, self._worker_id, 3600, 30))
        admission.freed(lanes)
        await admission.admit_once(lanes=2, batch=2 * self._batch)
        now = time.monotonic()
        runs = [Ended(one.task_id, one.run_epoch, Succeeded("1"), now, now, flags=one.flags) for one in claimed]
        assert len(await complete.complete(self._flow, runs, worker_id=self._worker_id)) == len(runs)
        await admit.give_back_stopped(self._flow, [(claimed[0].task_id, 1)], worker_id=self._worker_id)
        written = await enqueue.enqueue(self._flow, spec, [NewTask("{}")] * self._batch, self._take)
        await self._flow.fetch(relay.FORGET_OUTBOX_ROWS, [told.outbox_id for told in written.told])
        assert await cancel.cancel(self._flow, written.ids)

    async def _reap(self) -> None:
        await self._flow.fetch(
            "UPDATE aaiclick_queue.workers SET lease_expires_at = now() - interval '1 s' WHERE id = $1", self._worker_id
        )
        reaping = reaper.Reaper(self._flow)
        reaped = await reaping.reap_once(self._batch)
        assert (reaped.workers, reaped.lost) == (1, self._batch)
        while (await reaping.due_once(self._batch))[0]:
            pass
        await relay.Relay(self._flow, self._streams).relay_once(self._batch, older=0)

    async def _cancel(self) -> None:
        ids = [*await self._write(NewTask("{}")), *await self._write(NewTask("{}", countdown=60.0))]
        ids += [row["task_id"] for row in await self._flow.fetch(LEASED, self._worker_id, self._batch)]
        assert await cancel.cancel(self._flow, ids) == set(ids)
        assert await cancel.cancel(self._flow, ids) == set()

    async def _leave(self) -> None:
        await settle.release_all(self._flow, self._worker_id, limit=self._batch)
        await heartbeat.set_status(self._flow, self._worker_id, "STOPPED", Counters())

    async def _prune(self, first: int) -> None:
        for sql in (prune.COUNT_PAGE, prune.PRUNE_PAGE):
            [page] = await self._flow.fetch(sql, first - 1, prune.LAST_ID, self._batch, 0.0, 0.0, 0.0, None)
            assert page["completed"] + page["failed"]
        await self._flow.fetch(prune.KEPT_PAGE, prune.LAST_ID, 1, self._batch)


SOME_LIMITS = """
INSERT INTO aaiclick_queue.limits (scope, name, kind, per_key, n, seconds)
VALUES ('queue', 'limited', 'running', false, 100000, NULL), ('queue', 'limited', 'rate', true, 100000, 0.01),
       ('queue', 'turns', 'fair', false, 1000, NULL) ON CONFLICT DO NOTHING
"""
LEASED = "SELECT task_id FROM aaiclick_queue.leases WHERE worker_id = $1 LIMIT $2"


def _ended(claimed: Sequence[Claimed], outcome: Callable[[int], Outcome]) -> list[Ended]:
    now = time.monotonic()
    return [Ended(one.task_id, one.run_epoch, outcome(at), now, now) for at, one in enumerate(claimed)]


def _of(db: ExplainingDatabase, sql: str) -> list[Explained]:
    return [one for one in db.explained if one.sql == sql]
