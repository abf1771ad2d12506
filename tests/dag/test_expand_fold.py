"""The builtin tasks: one child for each item of a list, and one value from many results."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aaiclick_queue import Settings, task
from aaiclick_queue.builtin_calls import EXPAND, FOLD, HOWS, empty
from aaiclick_queue.codec import encode_json
from aaiclick_queue.flow.graph import PlannedGroup, Previous
from aaiclick_queue.flow.submit import Submitted
from aaiclick_queue.postgres import Database
from aaiclick_queue.references import group, node
from aaiclick_queue.tasks import registry
from tests.dag.test_dynamic import in_job
from tests.dag.written import planned, result_of, status_of_job, tasks_of, write_job
from tests.tools import count, put_one, row, running_worker, until

got: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_got() -> None:
    got.clear()


@task
async def give(value: Any) -> Any:
    return value


@task
async def double(value: int, times: Any = 2) -> int:
    if value < 0:
        raise ValueError("negative")
    return value * int(times)


@task
async def take(value: Any) -> None:
    got.append(value)


def expander(number: int, **given: Any) -> Any:
    """The expander of a map over node 1, in group 10."""
    spec = {"entrypoint": double.entrypoint, "queue": "default", "priority": 5, "max_attempts": 1}
    call = {
        "spec": spec | given.pop("spec", {}),
        "task": {"kwargs": "", "correlation_id": "c"} | given.pop("task", {}),
        "name": "double",
        "parameter": "value",
        "items": node(1),
    }
    return planned(number, EXPAND, kwargs=call | given, group=10, after=[1], spec={"max_attempts": 3})


async def mapped(db: Database, quick: Settings, items: Any, *more: Any, **given: Any) -> Submitted:
    groups = [PlannedGroup(number=10, name="map", mapped=True)]
    first = planned(1, give, kwargs={"value": items})
    return await in_job(db, quick, first, expander(2, **given), *more, groups=groups)


def taking(number: int, rule: str = "all_success") -> Any:
    return planned(number, take, kwargs={"value": group(10)}, after=[Previous(10, "group")], rule=rule)


async def test_a_map_over_a_result_has_one_task_for_each_item(db: Database, quick: Settings) -> None:
    job = await mapped(db, quick, [3, 1, 2], taking(3))
    assert await status_of_job(db, job.job_id) == "COMPLETED"
    assert got == [[6, 2, 4]]
    children = [one for one in await tasks_of(db, job.job_id) if one["map_index"] is not None]
    assert [(one["name"], one["map_index"], one["kwargs"]) for one in children] == [
        ("double[0]", 0, '{"value": 3}'),
        ("double[1]", 1, '{"value": 1}'),
        ("double[2]", 2, '{"value": 2}'),
    ]
    assert {(one["group_id"], one["parent_id"]) for one in children} == {(job.ids[10], job.ids[2])}
    assert {(one["priority"], one["correlation_id"], one["max_attempts"]) for one in children} == {(5, "c", 1)}
    assert await result_of(db, job.ids[2]) == "3"


async def test_a_map_over_nothing_has_ended(db: Database, quick: Settings) -> None:
    job = await mapped(db, quick, [], taking(3))
    assert await status_of_job(db, job.job_id) == "COMPLETED"
    assert got == [[]]
    assert len(await tasks_of(db, job.job_id)) == 3


@pytest.mark.parametrize(
    ("items", "shown"),
    [
        ({"a": 1}, 'a dict: {"a":1}'),
        ("text", 'a text: "text"'),
        (5, "a number: 5"),
        (None, "None: null"),
        (True, "true or false: true"),
    ],
)
async def test_a_map_over_what_is_no_list_fails_and_names_it(
    db: Database, quick: Settings, items: Any, shown: str
) -> None:
    job = await mapped(db, quick, items, taking(3))
    expanded = await row(db, "tasks", job.ids[2])
    assert (expanded["status"], expanded["attempt"]) == ("FAILED", 1)
    assert shown in json.loads(expanded["error"])["message"]
    assert (await row(db, "tasks", job.ids[3]))["status"] == "UPSTREAM_FAILED"
    assert await status_of_job(db, job.job_id) == "FAILED"


async def test_the_other_arguments_are_the_same_for_all_and_may_be_nodes(db: Database, quick: Settings) -> None:
    job = await in_job(
        db,
        quick,
        planned(1, give, kwargs={"value": [1, 2]}),
        planned(4, give, kwargs={"value": 10}),
        planned(
            2,
            EXPAND,
            kwargs={
                "spec": {"entrypoint": double.entrypoint, "queue": "default"},
                "task": {"kwargs": ""},
                "name": "double",
                "parameter": "value",
                "items": node(1),
                "constant": {"times": {"$$node": 4}},
            },
            group=10,
            after=[1, 4],
        ),
        taking(3),
        groups=[PlannedGroup(number=10, name="map", mapped=True)],
    )
    assert await status_of_job(db, job.job_id) == "COMPLETED"
    assert got == [[10, 20]]


async def test_keys_are_filled_in_for_each_child(db: Database, quick: Settings) -> None:
    job = await mapped(db, quick, [1, 2], task={"concurrency_key": "of-{value}"})
    keys = [one["concurrency_key"] for one in await tasks_of(db, job.job_id) if one["map_index"] is not None]
    assert keys == ["of-1", "of-2"]


async def test_an_item_that_does_not_fit_fails_the_expander_where_the_code_is_known(
    db: Database, quick: Settings
) -> None:
    job = await mapped(db, quick, [1, "two"])
    expanded = await row(db, "tasks", job.ids[2])
    assert expanded["status"] == "FAILED"
    assert "item 1 of the map: parameter 'value'" in json.loads(expanded["error"])["message"]
    assert len(await tasks_of(db, job.job_id)) == 2


async def test_a_parameter_that_is_not_there_fails_the_expander(db: Database, quick: Settings) -> None:
    job = await mapped(db, quick, [1], parameter="no_such")
    expanded = await row(db, "tasks", job.ids[2])
    assert "has no parameter 'no_such': it takes value, times" in json.loads(expanded["error"])["message"]


async def test_children_of_a_task_that_is_known_elsewhere_are_written(db: Database, quick: Settings) -> None:
    elsewhere = {"entrypoint": "tests.nowhere.known", "queue": "x"}
    job = await write_job(
        db,
        [planned(1, give, kwargs={"value": [1, "two"]}), expander(2, spec=elsewhere)],
        [PlannedGroup(number=10, name="map", mapped=True)],
    )
    async with running_worker(quick):
        await until(lambda: _is_completed(db, job.ids[2]))
    children = [one for one in await tasks_of(db, job.job_id) if one["map_index"] is not None]
    assert [one["kwargs"] for one in children] == ['{"value": 1}', '{"value": "two"}']


async def _is_completed(db: Database, task_id: int) -> bool:
    return bool((await row(db, "tasks", task_id))["status"] == "COMPLETED")


async def test_a_failed_item_fails_what_waits_for_all_and_not_what_waits_for_their_end(
    db: Database, quick: Settings
) -> None:
    job = await mapped(db, quick, [1, -1, 3], taking(3), taking(4, rule="all_done"))
    assert (await row(db, "tasks", job.ids[3]))["status"] == "UPSTREAM_FAILED"
    assert got == [[2, 6]]
    assert await status_of_job(db, job.job_id) == "FAILED"


async def test_thousands_of_items_fold_to_one_value(db: Database, quick: Settings) -> None:
    fold = planned(3, FOLD, kwargs={"how": "sum", "items": group(10)}, after=[Previous(10, "group")])
    job = await mapped(db, quick, list(range(2500)), fold)
    assert await count(db, "tasks") == 2503
    assert await result_of(db, job.ids[3]) == str(sum(range(2500)) * 2)


async def test_an_expander_outside_of_a_map_says_so(db: Database, quick: Settings) -> None:
    kwargs = {"spec": {}, "task": {}, "name": "x", "parameter": "value", "items": [1]}
    task_id = await put_one(db, encode_json(kwargs), entrypoint=EXPAND)
    async with running_worker(quick):
        await until(lambda: _is_failed(db, task_id))
    assert "in no job's group" in json.loads((await row(db, "tasks", task_id))["error"])["message"]


async def _is_failed(db: Database, task_id: int) -> bool:
    return bool((await row(db, "tasks", task_id))["status"] == "FAILED")


# Folds.


async def folded(db: Database, quick: Settings, how: str, items: Any) -> dict[str, Any]:
    task_id = await put_one(db, encode_json({"how": how, "items": items}), entrypoint=FOLD, max_attempts=3)
    async with running_worker(quick):
        await until(lambda: _is_over(db, task_id))
    return await row(db, "tasks", task_id)


async def _is_over(db: Database, task_id: int) -> bool:
    return (await row(db, "tasks", task_id))["status"] is not None


@pytest.mark.parametrize(
    ("how", "items", "value"),
    [
        ("collect", [1, None, "x"], [1, None, "x"]),
        ("concat", [[1], [], [2, [3]]], [1, 2, [3]]),
        ("sum", [1, 2.5, {"value": 3, "other": 9}], 6.5),
        ("sum", [1, 2], 3),
        ("first", [{"a": 1}, 2], {"a": 1}),
        ("last", [1, None], None),
        ("merge", [{"a": 1, "b": 1}, {"b": 2}, {}], {"a": 1, "b": 2}),
    ],
)
async def test_results_are_folded_in_their_order(
    db: Database, quick: Settings, how: str, items: Any, value: Any
) -> None:
    result = (await folded(db, quick, how, items))["result"]
    assert (None if result is None else json.loads(result)) == value


@pytest.mark.parametrize("how", HOWS)
async def test_nothing_folds_to_what_the_fold_starts_from(db: Database, quick: Settings, how: Any) -> None:
    result = (await folded(db, quick, how, []))["result"]
    assert (None if result is None else json.loads(result)) == empty(how)


@pytest.mark.parametrize(
    ("how", "items", "words"),
    [
        ("concat", [[1], 2], "concat takes a list from each task, and result 1 is a number: 2"),
        ("sum", [1, "x"], "result 1 is a text"),
        ("sum", [True], "result 0 is true or false"),
        ("sum", [{"no": 1}], "result 0 is a dict"),
        ("merge", [{}, None], "merge takes a dict from each task, and result 1 is None: null"),
        ("twist", [], "'twist'"),
        ("sum", 5, "items"),
    ],
)
async def test_what_cannot_be_folded_fails_and_says_which(
    db: Database, quick: Settings, how: str, items: Any, words: str
) -> None:
    folding = await folded(db, quick, how, items)
    assert (folding["status"], folding["attempt"]) == ("FAILED", 1)
    assert words in json.loads(folding["error"])["message"]


async def test_what_is_collected_may_be_larger_than_a_result(db: Database, quick: Settings) -> None:
    job = await in_job(
        db,
        quick,
        *(planned(n, give, kwargs={"value": "x" * 300_000}, group=10) for n in range(1, 6)),
        planned(7, FOLD, kwargs={"how": "collect", "items": group(10)}, after=[Previous(10, "group")]),
        groups=[PlannedGroup(number=10, name="g")],
    )
    assert await status_of_job(db, job.job_id) == "COMPLETED"
    assert len(json.loads(await result_of(db, job.ids[7]) or "")) == 5


# Who knows them.


def test_the_builtin_tasks_are_known_and_not_listed() -> None:
    assert EXPAND in registry
    assert registry[FOLD] is registry.get(FOLD)
    assert not {EXPAND, FOLD} & set(registry)
    assert registry.get("aaiclick_queue.no_such") is None
    with pytest.raises(KeyError):
        registry["aaiclick_queue.no_such"]


async def test_a_builtin_task_that_lost_its_worker_twice_runs_in_a_child(db: Database, quick: Settings) -> None:
    task_id = await put_one(db, encode_json({"how": "sum", "items": [1, 2]}), entrypoint=FOLD)
    await db.fetch("UPDATE aaiclick_queue.ready SET lost_count = 2 WHERE task_id = $1", task_id)
    async with running_worker(quick):
        await until(lambda: _is_completed(db, task_id))
    assert await result_of(db, task_id) == "3"
