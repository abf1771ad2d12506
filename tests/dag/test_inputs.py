"""Inputs: what a task gets for the nodes in its arguments, and what becomes of it when that cannot be read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aaiclick_queue import Settings, task
from aaiclick_queue.errors import PostgresUnavailable, Skip
from aaiclick_queue.flags import INPUTS
from aaiclick_queue.flow.claim import Claimed
from aaiclick_queue.flow.graph import PlannedGroup, PlannedTask
from aaiclick_queue.flow.inputs import filled_in, spliced
from aaiclick_queue.flow.resolve import Resolver
from aaiclick_queue.outcome import Error, Failed, Skipped, Succeeded
from aaiclick_queue.postgres import Database
from aaiclick_queue.references import completed, group, node, nodes
from tests.dag.written import ended, planned, result_of, tasks_of, write_job
from tests.tools import claim, end, place_of, register_worker, running_worker, until

got: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_got() -> None:
    got.clear()


@task
async def give(value: Any) -> Any:
    return value


@task
def give_in_thread(value: Any) -> Any:
    return value


@task
async def fail() -> None:
    raise RuntimeError("no")


@task
async def skip() -> None:
    raise Skip("not today")


@task
async def take(value: Any) -> None:
    got.append(value)


@task(isolation="process")
def length(value: list[Any]) -> int:
    return len(value)


class Written:
    """A job whose tasks a test ends by hand, with what it likes."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._line: dict[int, Claimed] = {}
        self.ids: dict[int, int] = {}
        self.job_id = 0

    async def write(self, *tasks: PlannedTask, groups: tuple[PlannedGroup, ...] = ()) -> None:
        written = await write_job(self._db, tasks, groups)
        self.ids, self.job_id = written.ids, written.job_id
        self._worker = await register_worker(self._db)

    async def run(self, number: int) -> Claimed:
        """The run of the task, claimed when its turn has come."""
        resolver = Resolver(self._db)
        while self.ids[number] not in self._line:
            while (await resolver.resolve_once()).more:
                pass
            claimed = await claim(self._db, self._worker, 1000)
            assert claimed, f"{number} is not in line"
            self._line |= {one.task_id: one for one in claimed}
        return self._line[self.ids[number]]

    async def end(self, number: int, result: Any) -> None:
        outcome = result if isinstance(result, Failed | Skipped) else Succeeded(json.dumps(result))
        assert await end(self._db, await self.run(number), outcome, worker_id=self._worker)

    async def kwargs(self, number: int) -> Any:
        [filled] = await filled_in(self._db, [await self.run(number)])
        return json.loads(filled.kwargs)

    async def continue_by(self, number: int, result: Any) -> None:
        """The task has returned others: its result names them."""
        await self._db.fetch(
            "UPDATE aaiclick_queue.tasks SET after_gate = 1, result = $2::text::jsonb WHERE id = $1",
            self.ids[number],
            json.dumps(result),
        )


@pytest.fixture
def job(db: Database) -> Written:
    return Written(db)


async def test_a_node_in_the_arguments_becomes_its_result(db: Database, quick: Settings) -> None:
    value = {"deep": [{"x": node(1)}, nodes([1, 2]), "text"]}
    job = await write_job(
        db,
        [
            planned(1, give, kwargs={"value": {"é": 1.5}}),
            planned(2, give_in_thread, kwargs={"value": 'a "quote"'}),
            planned(3, take, kwargs={"value": value}, after=[1, 2]),
        ],
    )
    async with running_worker(quick):
        assert await ended(db, job.job_id) == "COMPLETED"
    assert got == [{"deep": [{"x": {"é": 1.5}}, [{"é": 1.5}, 'a "quote"'], "text"]}]


async def test_a_process_gets_its_inputs_too(db: Database, quick: Settings) -> None:
    job = await write_job(
        db,
        [planned(1, give, kwargs={"value": [1, 2, 3]}), planned(2, length, kwargs={"value": node(1)}, after=[1])],
    )
    async with running_worker(quick, modules=(length.function.__module__,)):
        assert await ended(db, job.job_id) == "COMPLETED"
    assert await result_of(db, job.ids[2]) == "3"


async def test_what_failed_was_skipped_or_gave_nothing_is_none(db: Database, quick: Settings) -> None:
    job = await write_job(
        db,
        [
            planned(1, fail, spec={"max_attempts": 1}),
            planned(2, skip),
            planned(3, give, kwargs={"value": None}),
            planned(4, take, kwargs={"value": nodes([1, 2, 3])}, after=[1, 2, 3], rule="all_done"),
            planned(5, take, kwargs={"value": completed([1, 2, 3])}, after=[4]),
        ],
    )
    async with running_worker(quick):
        assert await ended(db, job.job_id) == "FAILED"
    assert got == [[None, None, None], [None]]  # where only what completed is asked for, the others are no items


async def test_a_group_gives_what_completed_in_the_order_of_its_tasks(job: Written) -> None:
    await job.write(
        *(planned(n, group=11 if n == 4 else 10) for n in (1, 4, 2, 3)),
        planned(5, kwargs={"value": group(10)}, after=[1, 2, 3, 4], rule="all_done"),
        groups=(PlannedGroup(number=10, name="all"), PlannedGroup(number=11, name="inner", parent=10)),
    )
    await job.end(3, "three")
    await job.end(2, Failed(Error("X", "no")))
    await job.end(4, {"four": 4})
    await job.end(1, [1])
    assert await job.kwargs(5) == {"value": [[1], {"four": 4}, "three"]}


async def test_a_map_gives_its_items_in_their_order_and_nothing_else(job: Written) -> None:
    await job.write(
        planned(1, group=10),
        planned(2, group=10, map_index=1),
        planned(3, group=10, map_index=0),
        planned(4, group=11),
        planned(5, group=10, map_index=2),
        planned(6, kwargs={"value": group(10)}, after=[1, 2, 3, 4, 5], rule="all_done"),
        groups=(PlannedGroup(number=10, name="map", mapped=True), PlannedGroup(number=11, name="more", parent=10)),
    )
    await job.end(1, {"expanded": 3})
    await job.end(2, "b")
    await job.end(3, "a")
    await job.end(4, "added by an item")
    await job.end(5, Skipped(Error("Skipped", "")))
    assert await job.kwargs(6) == {"value": ["a", "b"]}


async def test_a_map_inside_a_group_counts_by_its_items(job: Written) -> None:
    await job.write(
        planned(1, group=10),
        planned(2, group=11),
        planned(3, group=11, map_index=0),
        planned(4, group=10),
        planned(5, kwargs={"value": group(10)}, after=[1, 2, 3, 4]),
        groups=(PlannedGroup(number=10, name="all"), PlannedGroup(number=11, name="map", parent=10, mapped=True)),
    )
    for number, result in ((1, "plain"), (2, "expander"), (3, "item"), (4, "behind the map")):
        await job.end(number, result)
    assert await job.kwargs(5) == {"value": ["plain", "item", "behind the map"]}


async def test_an_empty_group_gives_an_empty_list(job: Written) -> None:
    await job.write(planned(1, kwargs={"value": group(10)}), groups=(PlannedGroup(number=10, name="empty"),))
    assert await job.kwargs(1) == {"value": []}


async def test_a_task_that_was_continued_gives_what_continued_it(job: Written) -> None:
    await job.write(
        *(planned(n) for n in (1, 2, 3, 4)),
        planned(5, kwargs={"value": node(1), "list": nodes([2, 4])}, after=[1, 2, 3, 4]),
    )
    for number in (1, 2, 3, 4):
        await job.end(number, f"own {number}")
    await job.run(5)
    await job.continue_by(1, node(job.ids[2]))
    await job.continue_by(2, {"all": [node(job.ids[3]), nodes([job.ids[4], job.ids[3]])]})
    two = {"all": ["own 3", ["own 4", "own 3"]]}
    assert await job.kwargs(5) == {"value": two, "list": [two, "own 4"]}


async def test_what_continues_a_member_of_a_group_is_no_second_member(job: Written) -> None:
    await job.write(
        *(planned(n, group=10) for n in (1, 2, 3)),
        planned(4, kwargs={"value": group(10)}, after=[1, 2, 3]),
        groups=(PlannedGroup(number=10, name="g"),),
    )
    for number in (1, 2, 3):
        await job.end(number, number)
    await job.run(4)
    await job.continue_by(1, {"is": node(job.ids[3])})
    assert await job.kwargs(4) == {"value": [{"is": 3}, 2]}


async def test_results_that_name_each_other_end_somewhere(job: Written) -> None:
    await job.write(planned(1), planned(2), planned(3, kwargs={"value": node(1)}, after=[1, 2]))
    await job.end(1, 1)
    await job.end(2, 2)
    await job.run(3)
    await job.continue_by(1, [1, node(job.ids[2])])
    await job.continue_by(2, [2, node(job.ids[1])])
    assert await job.kwargs(3) == {"value": [1, [2, None]]}


@pytest.mark.breaks_invariants
async def test_a_task_may_have_been_continued_a_thousand_times(job: Written, db: Database) -> None:
    count = 1200
    await job.write(
        *(planned(n) for n in range(1, count + 1)), planned(count + 1, kwargs={"value": node(1)}, after=[1])
    )
    await db.fetch(
        "UPDATE aaiclick_queue.tasks t SET status = 'COMPLETED', after_gate = 1,"
        " result = jsonb_build_object('$node', n) FROM unnest($1::bigint[], $2::bigint[]) AS u(id, n)"
        " WHERE t.id = u.id",
        [job.ids[n] for n in range(1, count)],
        [job.ids[n + 1] for n in range(1, count)],
    )
    await db.fetch(
        "UPDATE aaiclick_queue.tasks SET status = 'COMPLETED', result = '\"end\"' WHERE id = $1", job.ids[count]
    )
    text = f'{{"$node":{job.ids[1]}}}'
    assert await spliced(db, text, job.job_id) == '"end"'


async def test_a_users_data_that_looks_like_a_node_stays_as_it_is(job: Written) -> None:
    await job.write(planned(1), planned(2), planned(3, kwargs={"value": node(1)}, after=[1, 2]))
    await job.end(1, {"$node": job.ids[2]})
    await job.end(2, "secret")
    assert await job.kwargs(3) == {"value": {"$node": job.ids[2]}}


async def test_a_task_of_another_job_gives_nothing(db: Database, job: Written) -> None:
    await job.write(planned(1, group=10), groups=(PlannedGroup(number=10, name="g"),))
    await job.end(1, "secret")
    other = Written(db)
    first = job.ids
    await other.write(planned(1, kwargs={"a": node(first[1]), "b": nodes([first[1]]), "c": group(first[10])}))
    assert await other.kwargs(1) == {"a": None, "b": [None], "c": []}


@pytest.mark.parametrize("number", [0, 2**63 - 1, 2**63, 10**30])
async def test_an_id_that_cannot_be_gives_nothing(job: Written, number: int) -> None:
    await job.write(planned(1, kwargs={"a": node(number), "b": group(number)}))
    assert await job.kwargs(1) == {"a": None, "b": []}


async def test_one_statement_reads_the_inputs_of_all_runs_of_a_claim(job: Written, db: Database) -> None:
    await job.write(
        *(planned(n) for n in range(1, 41)),
        *(planned(100 + n, kwargs={"value": node(n)}, after=[n]) for n in range(1, 41)),
    )
    for number in range(1, 41):
        await job.end(number, number)
    runs = [await job.run(100 + n) for n in range(1, 41)]
    statements: list[str] = []

    class Counting:
        async def fetch(self, sql: str, *args: Any) -> Any:
            statements.append(sql)
            return await db.fetch(sql, *args)

    filled = await filled_in(Counting(), runs)
    assert [json.loads(one.kwargs)["value"] for one in filled] == list(range(1, 41))
    assert len(statements) == 1


async def test_only_tasks_that_name_others_are_flagged(db: Database) -> None:
    job = await write_job(db, [planned(1), planned(2, kwargs={"value": node(1)})])
    flags = {row["task_id"]: row["flags"] for row in await db.fetch("SELECT task_id, flags FROM aaiclick_queue.ready")}
    assert [bool(flags[job.ids[n]] & INPUTS) for n in (1, 2)] == [False, True]


async def test_runs_whose_inputs_cannot_be_read_are_handed_back(
    db: Database, quick: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = iter([PostgresUnavailable("away"), RuntimeError("broken")])

    async def failing(*args: Any) -> Any:
        if (error := next(failures, None)) is not None:
            raise error
        return await filled_in(*args)

    monkeypatch.setattr("aaiclick_queue.worker.filled_in", failing)
    job = await write_job(
        db, [planned(1, give, kwargs={"value": 7}), planned(2, take, kwargs={"value": node(1)}, after=[1])]
    )
    async with running_worker(quick) as worker:
        assert await ended(db, job.job_id) == "COMPLETED"
        assert worker.ends.outside == set()
    assert next(failures, None) is None
    assert got == [7]
    [_, second] = await tasks_of(db, job.job_id)
    assert (second["attempt"], second["run_epoch"]) == (1, 3)


async def test_runs_are_not_started_after_the_lease_was_given_up(
    db: Database, quick: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers: list[Any] = []

    async def fencing(*args: Any) -> Any:
        filled = await filled_in(*args)
        if workers:
            workers.pop()._fence()
        return filled

    monkeypatch.setattr("aaiclick_queue.worker.filled_in", fencing)
    job = await write_job(
        db, [planned(1, give, kwargs={"value": 7}), planned(2, take, kwargs={"value": node(1)}, after=[1])]
    )
    async with running_worker(quick) as worker:
        workers.append(worker)
        assert await ended(db, job.job_id) == "COMPLETED"
    [_, second] = await tasks_of(db, job.job_id)
    assert (got, second["run_epoch"]) == ([7], 2)


async def test_a_heartbeat_knows_the_runs_whose_inputs_are_on_their_way(
    db: Database, quick: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []

    async def looking(connection: Any, claimed: Any) -> Any:
        seen.append((claimed[0].task_id, claimed[0].run_epoch) in workers[0].held())
        return await filled_in(connection, claimed)

    monkeypatch.setattr("aaiclick_queue.worker.filled_in", looking)
    job = await write_job(
        db, [planned(1, give, kwargs={"value": 7}), planned(2, take, kwargs={"value": node(1)}, after=[1])]
    )
    async with running_worker(quick) as worker:
        workers = [worker]
        assert await ended(db, job.job_id) == "COMPLETED"
    assert seen == [True]


@pytest.mark.breaks_invariants
async def test_inputs_may_be_larger_than_any_payload(db: Database, quick: Settings) -> None:
    count = 20_000
    text = "x" * 100
    job = await write_job(
        db,
        [*(planned(n) for n in range(1, count + 1)), planned(count + 1, take, kwargs={"value": group(count + 2)})],
        [PlannedGroup(number=count + 2, name="many")],
    )
    await db.fetch(
        "WITH gone AS (DELETE FROM aaiclick_queue.ready WHERE task_id = ANY($1::bigint[]))"
        " UPDATE aaiclick_queue.tasks SET status = 'COMPLETED', group_id = $2, result = to_jsonb($3::text)"
        " WHERE id = ANY($1::bigint[])",
        [job.ids[n] for n in range(1, count + 1)],
        job.ids[count + 2],
        text,
    )
    async with running_worker(quick):
        await until(lambda: got)
        await until(lambda: _is_final(db, job.ids[count + 1]))
    assert (len(got[0]), set(got[0])) == (count, {text})


async def _is_final(db: Database, task_id: int) -> bool:
    return await place_of(db, task_id) == ["COMPLETED"]
