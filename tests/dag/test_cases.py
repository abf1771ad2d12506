"""Cases that job layers get wrong, each by name."""

from __future__ import annotations

import time
from collections.abc import Mapping

import pytest

from aaiclick_queue.errors import BadJob, GroupClosed, JobEnded
from aaiclick_queue.flow.claim import Line, Wanted
from aaiclick_queue.flow.complete import complete
from aaiclick_queue.flow.enqueue import TakeIds, id_source
from aaiclick_queue.flow.graph import Plan, PlannedGroup, Previous
from aaiclick_queue.flow.resolve import Resolver
from aaiclick_queue.flow.submit import Adding, add_to_job
from aaiclick_queue.outcome import Ended, Outcome, Succeeded
from aaiclick_queue.postgres import Database
from tests.dag.hands import FAILS, SKIPS, Hands, add, job_row, settle, statuses
from tests.dag.written import planned
from tests.planned import Job, group_before
from tests.races.orders import Play, Stage
from tests.races.props import Props
from tests.tools import register_worker


async def status(db: Database, job: Job) -> str:
    return str((await job_row(db, job.id))["status"])


async def ran(db: Database, job: Job, outcomes: Mapping[int, Outcome] | None = None) -> list[int]:
    """The numbers of the tasks in the order in which they ran, to the end of the job."""
    names = {given: number for number, given in job.ids.items()}
    hands = await Hands.register(db)
    by_id = {job[number]: outcome for number, outcome in (outcomes or {}).items()}
    order = [names[task_id] for task_id in await hands.run(by_id)]
    assert await status(db, job) in ("COMPLETED", "FAILED")
    return order


async def came_to(db: Database, job: Job, *numbers: int) -> list[str]:
    found = await statuses(db, job.id)
    return [found[job[number]] for number in numbers]


# Groups.


async def test_a_group_with_tasks_only_in_nested_groups_is_over_when_those_are(db: Database) -> None:
    job = Job()
    outer = job.group()
    inner = [job.group(parent=job.group(parent=outer)) for _ in range(2)]
    inside = [job.task(group=group) for group in inner for _ in range(2)]
    last = job.task(group_before(outer))
    await job.submit(db)
    order = await ran(db, job)
    assert {*order[:4]} == {*inside}
    assert order[4:] == [last]


async def test_what_waits_for_a_parent_group_does_not_start_after_its_first_nested_group(db: Database) -> None:
    job = Job()
    outer = job.group()
    one, other = (job.task(group=job.group(parent=outer)) for _ in range(2))
    last = job.task(group_before(outer))
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.take(job[one], job[other])
    await hands.end(job[one])
    await settle(db)
    assert await came_to(db, job, last) == ["PENDING"]
    await hands.end(job[other])
    assert await hands.run() == [job[last]]


async def test_a_group_that_waits_holds_back_tasks_at_any_depth(db: Database) -> None:
    job = Job()
    first = job.task()
    outer = job.group(first)
    deep = job.task(group=job.group(parent=job.group(parent=outer)))
    await job.submit(db)
    assert await ran(db, job) == [first, deep]


@pytest.mark.parametrize("depth", [1, 3])
async def test_an_empty_group_is_done_at_once_whatever_it_waits_for(db: Database, depth: int) -> None:
    job = Job()
    slow = job.task()
    group = job.group(slow)
    for _ in range(depth - 1):
        group = job.group(parent=group)
    behind = job.task(group_before(group))
    both = job.task(group_before(group), slow)
    await job.submit(db)
    await settle(db)
    assert await came_to(db, job, behind, both) == ["QUEUED", "PENDING"]
    assert {*await ran(db, job)} == {slow, behind, both}


async def test_a_job_without_a_task_completes(db: Database) -> None:
    job = Job()
    job.group(parent=job.group())
    await job.submit(db)
    await settle(db)
    row = await job_row(db, job.id)
    assert (row["status"], row["started_at"] is not None) == ("COMPLETED", True)


async def test_a_task_that_is_added_to_a_group_holds_back_those_that_wait_for_it(db: Database) -> None:
    job = Job()
    group = job.group()
    first = job.task(group=group)
    last = job.task(group_before(group))
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.take(job[first])
    [more] = await hands.spawn(job[first], job.id, planned(901), group=job[group])
    await hands.end(job[first])
    # At its end, before anybody has folded that: the group has not ended yet, so it takes another one.
    [late] = await add(db, Adding(job.id), planned(902, group=job[group]))
    await settle(db)
    assert await came_to(db, job, last) == ["PENDING"]
    assert await hands.run() == [*sorted([more, late]), job[last]]


async def test_a_group_that_has_ended_takes_no_more_tasks(db: Database) -> None:
    job = Job()
    outer = job.group()
    group = job.group(parent=outer)
    first, other = job.task(group=group), job.task(group=outer)
    job.task(group_before(group))
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.take(job[first], job[other])
    await hands.end(job[first])
    await settle(db)
    for new in (
        [planned(901, group=job[group])],
        [planned(901, group=900), PlannedGroup(number=900, name="new", parent=job[group])],
    ):
        with pytest.raises(GroupClosed, match=f"group {job[group]} has ended"):
            await add(db, Adding(job.id), *new)
    [more] = await add(db, Adding(job.id), planned(901, group=job[outer]))
    await hands.end(job[other])
    assert more in await hands.run()
    with pytest.raises(JobEnded):
        await add(db, Adding(job.id), planned(901))


async def test_a_group_that_was_written_empty_has_ended(db: Database) -> None:
    job = Job()
    empty = job.group()
    first = job.task()
    await job.submit(db)
    with pytest.raises(GroupClosed, match="has ended"):
        await add(db, Adding(job.id), planned(901, group=job[empty]))
    # For one that is added it is as for those of the plan: no parent at all.
    hands = await Hands.register(db)
    await hands.take(job[first])
    behind = Previous(job[empty], "group")
    [skipped, failed] = await add(
        db,
        Adding(job.id),
        planned(902, after=[behind, Previous(job[first])]),
        planned(903, after=[behind._replace(any_of=True), Previous(job[first], any_of=True)]),
    )
    await hands.end(job[first], outcome=SKIPS)
    await settle(db)
    found = await statuses(db, job.id)
    assert (found[skipped], found[failed]) == ("SKIPPED", "SKIPPED")


# Two parents that end at the same moment.


@pytest.mark.parametrize("rule", ["all_success", "all_done", "one_success"])
async def test_two_parents_end_in_the_same_millisecond_on_different_workers(
    stage: Stage, props: Props, rule: str
) -> None:
    async def scene(play: Play) -> None:
        job = Job()
        group = job.group()
        one, other = job.task(group=group), job.task(group=group)
        join = job.task(one, other, rule=rule)
        behind = job.task(group_before(group))
        await job.submit(props.db)
        workers = [await Hands.register(props.db) for _ in range(2)]
        [first] = await _claim_one(props.db, workers[0])
        [second] = await _claim_one(props.db, workers[1])

        async def end(db: Database, hands: Hands, task_id: int) -> None:
            await Hands(db, hands.worker_id).finish([hands.held.pop(task_id)])
            await Resolver(db).resolve_once()

        await play.run(one=lambda db: end(db, workers[0], first), other=lambda db: end(db, workers[1], second))
        assert sorted(await workers[0].run()) == sorted(job.of([join, behind]))
        assert await status(props.db, job) == "COMPLETED"

    await stage.in_every_order(scene, preemptions=3)


async def _claim_one(db: Database, hands: Hands) -> list[int]:
    [run] = await Line({"default": 1}).claim(db, Wanted(1, hands.worker_id, 3600, 30))
    hands.held[run.task_id] = run
    return [run.task_id]


# Branches and rules.


async def test_a_diamond_with_one_branch_skipped_still_joins(db: Database) -> None:
    job = Job()
    top = job.task()
    left, right = (job.task(Previous(top, choices=(side,))) for side in ("?true", "?false"))
    below = job.task(right)
    join = job.task(left, below)
    await job.submit(db)
    assert await ran(db, job, {top: Succeeded("true")}) == [top, left, join]
    assert await came_to(db, job, right, below, join) == ["SKIPPED", "SKIPPED", "COMPLETED"]
    assert await status(db, job) == "COMPLETED"


async def test_one_success_starts_once_though_more_succeed_later(db: Database) -> None:
    job = Job()
    parents = job.tasks(3)
    child = job.task(*parents, rule="one_success")
    behind = job.task(child)
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.take(*job.of(parents))
    await hands.end(job[parents[0]])
    await settle(db)
    await hands.take(job[child])
    await hands.end(job[child])
    await hands.end(*job.of(parents[1:]))
    assert await hands.run() == [job[behind]]
    assert await status(db, job) == "COMPLETED"


async def test_one_success_whose_run_goes_on_while_the_others_fail(db: Database) -> None:
    job = Job()
    parents = job.tasks(2)
    child = job.task(*parents, rule="one_success")
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.take(*job.of(parents))
    await hands.end(job[parents[0]])
    await settle(db)
    await hands.take(job[child])
    await hands.end(job[parents[1]], outcome=FAILS)
    await settle(db)
    assert await came_to(db, job, child) == ["RUNNING"]
    await hands.end(job[child])
    await settle(db)
    assert await status(db, job) == "FAILED"


async def test_all_done_runs_after_failures_and_a_gate_that_is_born_decided_opens(db: Database) -> None:
    job = Job()
    failing = job.task()
    below = job.task(failing)
    cleanup = job.task(failing, below, rule="all_done")
    await job.submit(db)
    assert await ran(db, job, {failing: FAILS}) == [failing, cleanup]
    assert await came_to(db, job, below) == ["UPSTREAM_FAILED"]
    job = Job()
    keep, failing = job.task(), job.task()
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.take(job[keep], job[failing])
    await hands.end(job[failing], outcome=FAILS)
    await settle(db)
    new = [
        planned(901 + at, after=[job[failing]], rule=rule)
        for at, rule in enumerate(("all_done", "none_failed", "always"))
    ]
    [done, none_failed, always] = await add(db, Adding(job.id), *new)
    await settle(db)
    found = await statuses(db, job.id)
    assert [found[one] for one in (done, none_failed, always)] == ["QUEUED", "UPSTREAM_FAILED", "QUEUED"]


async def test_a_task_that_is_continued_has_failed_for_those_behind_it_when_its_continuation_has(db: Database) -> None:
    job = Job()
    first = job.task()
    behind, cleanup = job.task(first), job.task(first, rule="all_done")
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.take(job[first])
    [more] = await hands.continue_by(job[first], job.id, planned(901))
    await settle(db)
    assert await came_to(db, job, behind, cleanup) == ["PENDING", "PENDING"]
    await hands.take(more)
    await hands.end(more, outcome=FAILS)
    assert await hands.run() == [job[cleanup]]
    assert await came_to(db, job, first, behind) == ["COMPLETED", "UPSTREAM_FAILED"]


@pytest.mark.parametrize(
    ("value", "chosen"), [("true", "then"), ("0", "otherwise"), ("[]", "otherwise"), ('"?false"', "then")]
)
async def test_what_continues_a_task_decides_at_its_branch(db: Database, value: str, chosen: str) -> None:
    job = Job()
    first = job.task()
    sides = {
        "then": job.task(Previous(first, choices=("?true",))),
        "otherwise": job.task(Previous(first, choices=("?false",))),
    }
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.take(job[first])
    [more] = await hands.continue_by(job[first], job.id, planned(901))
    await settle(db)
    await hands.take(more)
    [even_more] = await hands.continue_by(more, job.id, planned(902))
    await settle(db)
    await hands.take(even_more)
    await hands.end(even_more, outcome=Succeeded(value))
    assert await hands.run() == [job[sides[chosen]]]
    # And for one that comes later.
    found = await statuses(db, job.id)
    assert {found[job[number]] for number in sides.values()} == {"COMPLETED", "SKIPPED"}


async def test_a_branch_asks_what_continues_a_task_also_when_it_is_added_later(db: Database) -> None:
    job = Job()
    first, last = job.task(), job.task()
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.take(job[first], job[last])
    [more] = await hands.continue_by(job[first], job.id, planned(901))
    await settle(db)
    await hands.take(more)
    await hands.end(more, outcome=Succeeded("false"))
    await settle(db)
    new = [
        planned(902 + at, after=[Previous(job[first], choices=(side,))]) for at, side in enumerate(("?true", "?false"))
    ]
    [then, otherwise] = await add(db, Adding(job.id), *new)
    await settle(db)
    found = await statuses(db, job.id)
    assert (found[then], found[otherwise]) == ("SKIPPED", "QUEUED")


@pytest.mark.parametrize("value", ['"*"', '"?true"', '["*"]', '["?true", "?false"]'])
async def test_a_name_that_looks_like_a_word_of_ours_is_a_name(db: Database, value: str) -> None:
    job = Job()
    pick = job.task()
    red = job.task(Previous(pick, choices=("red",), known=("blue", "red")))
    open_red = job.task(Previous(pick, choices=("red",)))
    default = job.task(Previous(pick, choices=("*",), known=("red",)))
    falsy = job.task(Previous(pick, choices=("?false",)))
    await job.submit(db)
    assert await ran(db, job, {pick: Succeeded(value)}) == [pick, default]
    assert await came_to(db, job, red, open_red, falsy) == ["UPSTREAM_FAILED", "SKIPPED", "SKIPPED"]


# Cycles.


def _two_groups() -> tuple[Job, int, int, int, int]:
    job = Job()
    one, other = job.group(name="one"), job.group(name="other")
    return job, one, other, job.task(group=one, name="a"), job.task(group=other, name="b")


async def test_cycles_through_groups_are_refused_and_named(db: Database) -> None:
    def between_groups() -> Job:
        job, one, other, *_ = _two_groups()
        job.plan.groups[0].previous = [group_before(other)]
        job.plan.groups[1].previous = [group_before(one)]
        return job

    def from_task_to_its_group() -> Job:
        job, one, *_ = _two_groups()
        job.plan.tasks[0].previous = [group_before(one)]
        return job

    def from_group_to_its_task() -> Job:
        job, _, _, a, _ = _two_groups()
        job.plan.groups[0].previous = [Previous(a)]
        return job

    def through_nested() -> Job:
        job, one, *_ = _two_groups()
        job.plan.groups[1].parent = one
        job.plan.groups[1].previous = [group_before(one)]
        return job

    def a_parent_behind_its_nested() -> Job:
        job, one, other, *_ = _two_groups()
        job.plan.groups[1].parent = one
        job.plan.groups[0].previous = [group_before(other)]
        return job

    def task_and_group() -> Job:
        job, one, _, _, b = _two_groups()
        job.plan.groups[0].previous = [Previous(b)]
        job.plan.tasks[1].previous = [group_before(one)]
        return job

    def through_empty_groups() -> Job:
        job = Job()
        first = job.group(name="first")
        second = job.group(group_before(first), name="second")
        job.plan.groups[0].previous = [group_before(second)]
        job.task()
        return job

    def long_way() -> Job:
        job, _, other, a, _ = _two_groups()
        middle = job.task(group_before(other), name="middle")
        job.plan.groups[0].previous = [Previous(middle)]
        job.plan.tasks[1].previous = [Previous(a)]
        return job

    for make in (
        between_groups, from_task_to_its_group, from_group_to_its_task, through_nested, a_parent_behind_its_nested,
        task_and_group, through_empty_groups, long_way,
    ):  # fmt: skip
        job = make()
        with pytest.raises(BadJob, match=r"cycle.*→.*take one of these arrows out") as caught:
            await job.submit(db)
        shown = str(caught.value).split(": ", 1)[1].split(";")[0].split(" → ")
        assert shown[0] == shown[-1], (make.__name__, shown)
        assert len(shown) > 1
    assert not await db.fetch("SELECT FROM aaiclick_queue.jobs")
    assert not await db.fetch("SELECT FROM aaiclick_queue.gates")


async def test_what_is_added_can_close_no_circle(db: Database) -> None:
    job = Job()
    group = job.group()
    first, inside = job.task(), job.task(group=group)
    behind = job.task(group_before(group))
    waiting = job.group(behind)
    job.task(group=waiting)
    after_first = job.task(first)
    later = job.group(after_first)
    job.task(group=later)
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.take(job[first], job[inside])
    circles = {
        "in a group, behind what waits for it": lambda: add(
            db, Adding(job.id), planned(901, group=job[group], after=[job[behind]])
        ),
        "behind its own group": lambda: add(
            db, Adding(job.id), planned(902, group=job[group], after=[Previous(job[group], "group")])
        ),
        "behind one in a group that waits for this one's": lambda: add(
            db, Adding(job.id), planned(903, group=job[waiting]), planned(904, group=job[group], after=[903])
        ),
        "going on behind what waits for the end": lambda: hands.continue_by(
            job[first], job.id, planned(905, after=[job[after_first]])
        ),
        "going on behind itself": lambda: hands.continue_by(job[first], job.id, planned(906, after=[job[first]])),
        "going on in a group that waits for the end": lambda: hands.continue_by(
            job[first], job.id, planned(907, group=job[later])
        ),
    }
    for what, add_it in circles.items():
        with pytest.raises(BadJob, match="cycle"):
            await add_it()  # type: ignore[no-untyped-call]
            raise AssertionError(what)
    await hands.end(*hands.held)
    await hands.run()
    assert await status(db, job) == "COMPLETED"


async def test_two_who_add_at_once_do_not_make_a_circle_together(stage: Stage, props: Props) -> None:
    async def scene(play: Play) -> None:
        job, one, other, *_ = _two_groups()
        await job.submit(props.db)
        take = (await id_source(props.db)).take
        results = await play.run(
            one=lambda db: _add(db, take, job, one, other), other=lambda db: _add(db, take, job, other, one)
        )
        assert [type(result) for result in results].count(BadJob) == 1, results
        await (await Hands.register(props.db)).run()
        assert await status(props.db, job) == "COMPLETED"

    await stage.in_every_order(scene, preemptions=2)


async def _add(db: Database, take: TakeIds, job: Job, into: int, behind: int) -> None:
    new = planned(901, group=job[into], after=[Previous(job[behind], "group")])
    async with db.transaction() as tx:
        await add_to_job(tx, Adding(job.id), Plan([new]), take)


# Sizes.


async def run_all(db: Database, worker_id: int, *, limit: int = 5000) -> int:
    """Claim, complete and resolve until nothing is left; gives how many ran."""
    line, resolver, count = Line({"default": 1}), Resolver(db), 0
    while True:
        runs = await line.claim(db, Wanted(limit, worker_id, 3600, 30))
        now = time.monotonic()
        ended = [Ended(run.task_id, run.run_epoch, Succeeded("1"), now, now, flags=run.flags) for run in runs]
        count += len(await complete(db, ended, worker_id=worker_id)) if ended else 0
        resolved = await resolver.resolve_once()
        if not (runs or resolved.folded or resolved.more):
            return count


async def test_a_fan_in_of_ten_thousand_starts_once_when_all_are_done(db: Database) -> None:
    job = Job()
    many = job.tasks(10_000)
    last = job.task(*many)
    await job.submit(db)
    worker = await register_worker(db)
    line = Line({"default": 1})
    held = await line.claim(db, Wanted(1, worker, 3600, 30))
    assert await run_all(db, worker) == 9_999
    assert await came_to(db, job, last) == ["PENDING"]
    now = time.monotonic()
    await complete(db, [Ended(held[0].task_id, 1, Succeeded("1"), now, now, flags=held[0].flags)], worker_id=worker)
    assert await run_all(db, worker) == 1
    assert await status(db, job) == "COMPLETED"


async def test_one_then_twenty_thousand_then_one(db: Database) -> None:
    job = Job()
    first = job.task()
    many = job.tasks(20_000, first)
    last = job.task(*many)
    await job.submit(db)
    worker = await register_worker(db)
    assert await run_all(db, worker) == 20_002
    assert await status(db, job) == "COMPLETED"
    assert await came_to(db, job, last) == ["COMPLETED"]
    assert not await db.fetch("SELECT FROM aaiclick_queue.gates WHERE remaining <> 0 OR failed + skipped + vetoed > 0")


async def test_a_failure_reaches_twenty_thousand_behind_it_page_by_page(db: Database) -> None:
    job = Job()
    first = job.task()
    many = job.tasks(20_000, first)
    job.task(*many)
    cleanup = job.task(*many[:5], rule="all_done")
    await job.submit(db)
    assert await ran(db, job, {first: FAILS}) == [first, cleanup]
    assert [*(await statuses(db, job.id)).values()].count("UPSTREAM_FAILED") == 20_001


async def test_a_chain_of_a_thousand_runs_in_order(db: Database) -> None:
    job = Job()
    chain = [job.task()]
    for _ in range(999):
        chain.append(job.task(chain[-1]))
    await job.submit(db)
    assert await ran(db, job) == chain
