"""Fifteen things that one does with Airflow, each as it is written here. docs/from-airflow.md has the tables.

Run it: python examples/airflow_idioms.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from aaiclick_queue import (
    EndedTask,
    Fail,
    Group,
    Plan,
    Settings,
    Skip,
    Snooze,
    Worker,
    branch,
    current,
    job,
    limit_task,
    retry_failed_tasks,
    task,
    when,
)
from aaiclick_queue.errors import JobFailed
from aaiclick_queue.reading import get_tasks_for_job

idioms: list[Callable[[], Awaitable[None]]] = []


def idiom(function: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
    """One of the fifteen; its first line says what it is."""
    idioms.append(function)
    return function


def show(what: str, value: Any, expected: Any) -> None:
    assert value == expected, f"{what}: {value!r} instead of {expected!r}"
    print(f"     {what}  →  {value!r}")


async def states(job_id: int) -> dict[str, str]:
    """The tasks of a run and where they are."""
    return {one.name or "": str(one.status) for one in await get_tasks_for_job(job_id)}


@task
def extract(day: str) -> list[int]:
    return [int(part) for part in day.split("-")]


@task
def transform(row: int, factor: int = 10) -> int:
    return row * factor


@task
def load(rows: Any) -> str:
    return f"loaded {rows}"


@job
def etl(day: str) -> Any:
    return load(extract(day))


@idiom
async def taskflow() -> None:
    """TaskFlow: @dag and @task, results passed on (no XCom to pull)"""
    run = await etl.enqueue("2026-11-16")
    show("etl", await run.result(timeout=30), "loaded [2026, 11, 16]")


@idiom
async def params() -> None:
    """params, conf: arguments of the function, checked when a run is made"""
    runs = [await etl.enqueue(day=f"2026-01-0{n}") for n in (1, 2)]
    show("two runs", [await run.result(timeout=30) for run in runs], ["loaded [2026, 1, 1]", "loaded [2026, 1, 2]"])


seen: list[str] = []


@task
async def step(name: str) -> str:
    seen.append(name)
    return name


@job
def arrows() -> Any:
    first, left, right, last = step("first"), step("left"), step("right"), step("last")
    first >> [left, right] >> last
    return last


@idiom
async def dependencies() -> None:
    """first >> [left, right] >> last"""
    await (await arrows.enqueue()).result(timeout=30)
    show("order", [seen[0], sorted(seen[1:3]), seen[3]], ["first", ["left", "right"], "last"])


@job
def grouped() -> Any:
    with Group("checks", max_parallel=1) as checks:
        step("types")
        with Group("limits"):
            step("lower")
            step("upper")
    report = step("report")
    step("start") >> checks >> report
    return report


@idiom
async def task_groups() -> None:
    """TaskGroup: nested, waited for as a whole"""
    seen.clear()
    await (await grouped.enqueue()).result(timeout=30)
    show("order", [seen[0], sorted(seen[1:4]), seen[4]], ["start", ["lower", "types", "upper"], "report"])


@job
def mapped(day: str) -> Any:
    parts = transform.map(extract(day), factor=2, max_parallel=4)
    return {"all": parts.collect(), "sum": parts.sum()}


@idiom
async def mapping() -> None:
    """transform.partial(factor=2).expand(row=extract(day)), and what reduces it"""
    run = await mapped.enqueue("1-2-3")
    show("mapped", await run.result(timeout=30), {"all": [2, 4, 6], "sum": 12})


@task
def pick(rows: list[int]) -> str:
    return "large" if sum(rows) > 100 else "small"


@job
def branched(day: str) -> Any:
    rows = extract(day)
    large, small = load.options(name="large")(rows), load.options(name="small")(rows)
    branch(pick(rows), {"large": large, "small": small})
    join = step.options(name="join")("join")
    [large, small] >> join
    return [large, small, join]


@idiom
async def branching() -> None:
    """@task.branch: the other side is skipped, the join runs"""
    run = await branched.enqueue("1-2-3")
    show("branched", await run.result(timeout=30), [None, "loaded [1, 2, 3]", "join"])
    show("the other side", (await states(run.id))["large"], "SKIPPED")


@task
def has_rows(rows: list[int]) -> bool:
    return bool(rows)


@task
def only_sundays(day: str) -> str:
    raise Skip(f"{day} is no Sunday")


@job
def short() -> Any:
    loaded = load([])
    when(has_rows([]), then=loaded)
    skipped = step.options(name="after")("after")
    only_sundays("Monday") >> skipped
    return [loaded, skipped]


@idiom
async def short_circuits() -> None:
    """ShortCircuitOperator, AirflowSkipException"""
    show("short", await (await short.enqueue()).result(timeout=30), [None, None])


@task(max_attempts=1)
def query() -> int:
    raise Fail("the table is not there")


@job
def with_teardown() -> Any:
    setup, work = step.options(name="create cluster")("create"), query()
    teardown = step.options(name="delete cluster", rule="all_done", critical=False)("delete")
    setup >> work >> teardown
    work >> load.options(name="after")(work)


@idiom
async def teardowns() -> None:
    """setup and teardown: rule='all_done'"""
    run = await with_teardown.enqueue()
    try:
        await run.result(timeout=30)
    except JobFailed as failed:
        print(f"     {failed.failed[0]}")
    found = await states(run.id)
    show("query, after, delete cluster", [found[n] for n in ("query", "after", "delete cluster")],
         ["FAILED", "UPSTREAM_FAILED", "COMPLETED"])  # fmt: skip


first_is_there = asyncio.Event()


@task
async def mirror(name: str) -> str:
    if name == "slow":
        await first_is_there.wait()
    return name


@task
async def take(answers: list[str | None]) -> list[str | None]:
    first_is_there.set()
    return answers


@job
def first_of() -> Any:
    return take.options(rule="one_success")([mirror("slow"), mirror("quick")])


@idiom
async def one_success() -> None:
    """trigger_rule='one_success': at the first one"""
    show("first_of", await (await first_of.enqueue()).result(timeout=30), [None, "quick"])


told: asyncio.Queue[str] = asyncio.Queue()


@task
async def alert(ended: EndedTask) -> None:
    assert ended.error is not None
    await told.put(f"{ended.name} failed after {ended.attempt} attempts: {ended.error.message}")


@task(max_attempts=3, retry_delay=0.05, retry_factor=2, on_failure=alert)
async def unreliable(works_in: int) -> str:
    if current().attempt < works_in:
        raise ConnectionError("no route")
    return f"worked in attempt {current().attempt}"


@job
def retried(works_in: int) -> Any:
    return unreliable(works_in)


@idiom
async def retries() -> None:
    """retries=2, retry_exponential_backoff, on_failure_callback"""
    show("retried(2)", await (await retried.enqueue(2)).result(timeout=30), "worked in attempt 2")
    await (await retried.enqueue(9)).wait(timeout=30)
    show("the callback", await asyncio.wait_for(told.get(), 30), "unreliable failed after 3 attempts: no route")


files: set[str] = set()


@task
async def file_is_there(name: str) -> str:
    if name not in files:
        raise Snooze(in_=0.1)  # no slot is taken and no attempt spent meanwhile
    return name


@job
def sensing() -> Any:
    return load(file_is_there("data.csv"))


@idiom
async def sensors() -> None:
    """a sensor in mode 'reschedule': Snooze until it is there"""
    run = await sensing.enqueue()
    files.add("data.csv")
    show("sensing", await run.result(timeout=30), "loaded data.csv")


@task
async def trigger(day: str) -> str:
    run = await etl.enqueue(day)
    result: str = await run.result(timeout=30)
    return result


@idiom
async def triggers() -> None:
    """TriggerDagRunOperator: a task that starts another job and waits for it"""
    show("trigger", await (await trigger.enqueue("1-1")).result(timeout=30), "loaded [1, 1]")


running, most = 0, 0


@task
async def call_api(n: int) -> int:
    global running, most  # noqa: PLW0603 - what is counted here
    running += 1
    most = max(most, running)
    await asyncio.sleep(0.02)
    running -= 1
    return n


@job
def pooled() -> Any:
    return call_api.map(list(range(6))).sum()


@idiom
async def pools() -> None:
    """pools: at most two at once, in all runs and all workers"""
    await limit_task("airflow_idioms.call_api", max_running=2)
    runs = [await pooled.enqueue() for _ in range(2)]
    show("sums", [await run.result(timeout=30) for run in runs], [15, 15])
    assert most <= 2
    print(f"     at most {most} at once")


@task
def walk(depth: int) -> Any:
    """Adds tasks to its own job while it runs; what it returns stands for its result."""
    return transform(depth) if depth == 0 else load([walk(depth - 1), depth])


@job
def tree() -> Any:
    return walk(2)


@idiom
async def dynamic() -> None:
    """tasks that nobody knew when the run began"""
    show("tree", await (await tree.enqueue()).result(timeout=30), "loaded ['loaded [0, 1]', 2]")


@idiom
async def recovery() -> None:
    """clear what failed and go on from there"""
    attempts_left.append(1)
    run = await repaired.enqueue()
    await run.wait(timeout=30)
    show("at first", await states(run.id), {"mend": "FAILED", "load": "UPSTREAM_FAILED"})
    await retry_failed_tasks(run.id)
    show("then", await run.result(timeout=30), "loaded mended")


attempts_left: list[int] = []


@task(max_attempts=1)
async def mend() -> str:
    if attempts_left:
        attempts_left.pop()
        raise RuntimeError("broken")
    return "mended"


@job
def repaired() -> Any:
    return load(mend())


async def main() -> None:
    async with asyncio.TaskGroup() as group:
        worker = Worker(Settings.load(), Plan(slots=20))
        group.create_task(worker.run())
        for number, one in enumerate(idioms, start=1):
            print(f"{number:>2} · {one.__doc__}")
            await one()
        worker.stop()
    assert len(idioms) == 15


if __name__ == "__main__":
    asyncio.run(main())
