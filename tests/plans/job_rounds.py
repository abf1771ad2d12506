"""The part of a round that is about jobs: written, resolved, added to, capped, cancelled, ended and pruned."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

from aaiclick_queue.flow import admit, cancel, inputs, prune_jobs, resolve
from aaiclick_queue.flow.claim import Claimed, Line, Wanted
from aaiclick_queue.flow.complete import complete
from aaiclick_queue.flow.enqueue import NewTask, Spec, TakeIds
from aaiclick_queue.flow.fenced import Fence
from aaiclick_queue.flow.graph import Plan, PlannedGroup, PlannedTask, Previous
from aaiclick_queue.flow.prune import LAST_ID
from aaiclick_queue.flow.reaper import FAIL_LATE_JOBS
from aaiclick_queue.flow.submit import Adding, NewJob, Submitted, add_to_job, submit_job
from aaiclick_queue.outcome import Ended, Error, Failed, Outcome, Succeeded
from aaiclick_queue.postgres import Database
from aaiclick_queue.schema import Transaction

ERROR = Error("ValueError", "no")
_numbers = itertools.count(1)


class JobRound:
    """Does with jobs of a queue of their own what a fleet does, `batch` tasks wide."""

    def __init__(self, flow: Database, application: Database, take: TakeIds, *, worker_id: int, batch: int) -> None:
        self._flow = flow
        self._application = application
        self._take = take
        self._worker_id = worker_id
        self._batch = batch
        self._queue = f"jobs of {worker_id}"
        self._line = Line({self._queue: 1})
        self._resolver = resolve.Resolver(flow)

    async def run(self) -> None:
        """All of it once."""
        job = await self._run_wide()
        await self._add()
        await self._let_in()
        await self._cancel()
        await self._fail()
        await self._prune(job)

    def _task(self, *previous: Previous, group: int | None = None, kwargs: str = "{}") -> PlannedTask:
        return PlannedTask(
            number=next(_numbers),
            name="a task",
            spec=Spec("shop.mail.send", self._queue, priority=5),
            task=NewTask(kwargs),
            group=group,
            previous=list(previous),
        )

    async def _submit(self, db: Transaction, plan: Plan, **job: object) -> Submitted:
        return await submit_job(db, NewJob(name="a job", **job), plan, self._take)  # type: ignore[arg-type]

    async def _claim(self, limit: int | None = None) -> list[Claimed]:
        self._line.head.want()
        return await self._line.claim(self._flow, Wanted(limit or 2 * self._batch, self._worker_id, 3600, 30))

    async def _end(self, runs: Sequence[Claimed], outcome: Outcome) -> None:
        now = time.monotonic()
        ended = [Ended(run.task_id, run.run_epoch, outcome, now, now, flags=run.flags) for run in runs]
        assert len(await complete(self._flow, ended, worker_id=self._worker_id)) == len(runs)

    async def _resolve(self, *, page: int = resolve.PAGE) -> None:
        while (done := await self._resolver.resolve_once(page=page)).folded or done.more:
            pass

    async def _run_wide(self) -> int:
        """One task, many behind it, one behind them all with their results, and a side that is not taken."""
        root = self._task()
        group = PlannedGroup(number=next(_numbers), name="all")
        fan = [self._task(Previous(root.number), group=group.number) for _ in range(self._batch)]
        named = f'{{"one": {{"$node": {root.number}}}, "all": {{"$group": {group.number}}}}}'
        join = self._task(Previous(group.number, "group"), kwargs=named)
        side = self._task(Previous(join.number, choices=("left",), known=("left", "right")), Previous(root.number))
        plan = Plan([root, *fan, join, side], [group])
        await self._submit(self._application, Plan([self._task() for _ in fan], []))
        await self._end(await self._claim(), Succeeded(None))
        job = await self._submit(self._flow, plan)
        await self._end(await self._claim(), Succeeded("1"))
        await self._resolve(page=max(1, self._batch // 2))
        runs = await self._claim()
        assert len(runs) == self._batch
        await self._end(runs, Succeeded("2"))
        await self._resolve()
        [filled] = await inputs.filled_in(self._flow, await self._claim())
        assert filled.kwargs.count("2") >= self._batch
        await self._end([filled], Succeeded('"right"'))
        await self._resolve()
        assert not await self._claim()
        return job.job_id

    async def _add(self) -> None:
        """A running task adds nodes behind others, open and ended, and in a group that is there, and is continued."""
        first, second, third = (self._task() for _ in range(3))
        group = PlannedGroup(number=next(_numbers), name="later", previous=[Previous(third.number)])
        inside, behind = self._task(group=group.number), self._task(Previous(first.number))
        job = await self._submit(self._flow, Plan([first, second, third, inside, behind], [group]))
        runs = {run.task_id: run for run in await self._claim()}
        await self._end([runs.pop(job.ids[second.number])], Succeeded(None))
        mine = runs[job.ids[first.number]]
        before = [Previous(job.ids[one.number]) for one in (second, third)]
        in_group = self._task(*before, group=job.ids[group.number])
        returned = self._task(*before)
        fence = Fence(mine.task_id, mine.run_epoch, self._worker_id)
        to = Adding(job.job_id, fence, returned=(Previous(returned.number),))
        async with self._flow.transaction() as tx:
            await add_to_job(tx, to, Plan([in_group, returned, self._task()], []), self._take)
        await self._end(list(runs.values()), Succeeded(None))
        await self._finish()

    async def _finish(self) -> None:
        await self._resolve()
        while runs := await self._claim():
            await self._end(runs, Succeeded(None))
            await self._resolve()

    async def _let_in(self) -> None:
        tasks = [self._task() for _ in range(self._batch)]
        await self._submit(self._flow, Plan(tasks, []), max_parallel=self._batch)
        admission = admit.Admission(self._flow)
        runs: list[Claimed] = []
        while not runs:  # the lane of the job comes behind those of the backlog
            await admission.admit_once(lanes=2, batch=2 * self._batch)
            runs = await self._claim()
        await self._end(runs, Succeeded(None))
        await self._finish()

    async def _cancel(self) -> None:
        first = self._task()
        fan = [self._task(Previous(first.number)) for _ in range(self._batch)]
        job = await self._submit(self._flow, Plan([first, *fan], []))
        ids = [job.ids[one.number] for one in fan]
        assert await cancel.cancel(self._flow, ids) == set(ids)
        await self._finish()

    async def _fail(self) -> None:
        """Jobs that fail at once, for a task or for their deadline."""
        for job in ({"fail_fast": True}, {"timeout": 0.0}):
            await self._submit(self._flow, Plan([self._task(), self._task()], []), **job)
            await self._end(await self._claim(1), Failed(ERROR))
            await self._resolve()
        await self._flow.fetch(FAIL_LATE_JOBS, self._batch)
        await self._end(await self._claim(), Succeeded(None))
        await self._resolve()

    async def _prune(self, job_id: int) -> None:
        for sql in (prune_jobs.COUNT_JOBS, prune_jobs.MARK_JOBS):
            [page] = await self._flow.fetch(sql, job_id - 1, LAST_ID, self._batch, 0.0, 0.0, 0.0, None)
            assert page["jobs"]
        remover = prune_jobs.Remover()
        while await remover.step(self._flow, rows=self._batch):
            pass
