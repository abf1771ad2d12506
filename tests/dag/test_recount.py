"""What gates have to be, told from how tasks stand: by the rule of the database, and old decisions are given up."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from aaiclick_queue.flow.attach import LOOK_AT
from aaiclick_queue.flow.closure import Edge, Gate, Graph, Node, State
from aaiclick_queue.flow.recount import Counted, End, Verdict, decide, recount
from aaiclick_queue.flow.resolve import Resolver
from aaiclick_queue.postgres import Database

JOB = 1
RULES = ("all_success", "one_success", "all_done", "none_failed", "whole")
VERDICTS: tuple[Verdict, ...] = ("OPEN", "FAIL", "SKIP", "VETO")
MAKE_GATES = """
INSERT INTO aaiclick_queue.gates (id, job_id, total, remaining, kind, rule)
SELECT id, 1, total, total, 'WAIT', rule FROM unnest($1::bigint[], $2::int[], $3::text[]) AS given(id, total, rule)
"""
ARRIVE = """
INSERT INTO aaiclick_queue.arrivals (gate_id, n, failed, skipped, vetoed)
SELECT id, 1, (verdict = 'FAIL')::int, (verdict = 'SKIP')::int, (verdict = 'VETO')::int
FROM unnest($1::bigint[], $2::text[]) AS given(id, verdict)
"""
ONE_EACH = [(rule, came) for rule in RULES for n in (1, 2, 3) for came in itertools.product(VERDICTS, repeat=n)]


async def fold(db: Database, came: dict[int, Verdict]) -> dict[int, State]:
    await db.fetch(ARRIVE, list(came), list(came.values()))
    resolver = Resolver(db)
    while (await resolver.resolve_once()).folded:
        pass
    return {row["id"]: row["state"] for row in await db.fetch("SELECT id, state FROM aaiclick_queue.gates")}


@pytest.mark.breaks_invariants
async def test_a_recount_decides_as_folding_does_whatever_has_come(db: Database) -> None:
    cases = dict(enumerate(ONE_EACH, 100))
    await db.fetch(MAKE_GATES, list(cases), [len(came) for _, came in cases.values()], [r for r, _ in cases.values()])
    counted = {gate: Counted(total=len(came)) for gate, (_, came) in cases.items()}
    states: dict[int, State] = dict.fromkeys(cases, "WAITING")
    for step in range(3):
        found = await fold(db, {gate: came[step] for gate, (_, came) in cases.items() if len(came) > step})
        for gate, (rule, came) in cases.items():
            if len(came) > step:
                counted[gate].add(came[step])
            told = (rule, came, step)
            if states[gate] == "WAITING":
                states[gate] = decide(rule, counted[gate], "WAITING")
            assert states[gate] == found[gate], told
            assert decide(rule, counted[gate], found[gate]) == found[gate], told


@pytest.mark.breaks_invariants
async def test_a_recount_decides_as_folding_does_of_all_that_comes_at_once(db: Database) -> None:
    cases = dict(enumerate(ONE_EACH, 100))
    await db.fetch(MAKE_GATES, list(cases), [len(came) for _, came in cases.values()], [r for r, _ in cases.values()])
    pairs = [(gate, verdict) for gate, (_, came) in cases.items() for verdict in came]
    await db.fetch(ARRIVE, [gate for gate, _ in pairs], [verdict for _, verdict in pairs])
    await Resolver(db).resolve_once(limit=10_000)
    for row in await db.fetch("SELECT id, state FROM aaiclick_queue.gates"):
        rule, came = cases[row["id"]]
        counted = Counted(total=len(came))
        for verdict in came:
            counted.add(verdict)
        assert decide(rule, counted, "WAITING") == row["state"], (rule, came)


@pytest.mark.breaks_invariants
async def test_a_gate_that_waits_for_nothing_opens_when_it_is_looked_at(db: Database) -> None:
    await db.fetch(MAKE_GATES, [100 + at for at, _ in enumerate(RULES)], [0] * len(RULES), list(RULES))
    await db.fetch(LOOK_AT, [100 + at for at, _ in enumerate(RULES)])
    assert {*(await fold(db, {})).values()} == {"OPEN"}
    assert {decide(rule, Counted(), "WAITING") for rule in RULES} == {"OPEN"}


def test_a_veto_is_no_success_for_a_gate_that_one_had_opened() -> None:
    assert decide("one_success", Counted(total=2, came=1, vetoed=1), "OPEN") == "SKIP"
    assert decide("one_success", Counted(total=2, came=2, vetoed=1), "OPEN") == "OPEN"


def job(*tasks: Node, gates: tuple[Gate, ...] = (), edges: tuple[Edge, ...] = ()) -> Graph:
    every = (Gate(JOB, "JOB", "whole"), *gates)
    return Graph(JOB, {one.id: one for one in tasks}, {}, {one.id: one for one in every}, [*edges])


def counts(one: Counted) -> tuple[Any, ...]:
    return (one.total, one.came, one.failed, one.skipped, one.state, one.cursor)


def test_a_gate_that_is_decided_another_way_tells_its_edges_anew() -> None:
    gates = (Gate(10, "TASK", "whole", state="FAIL", cursor=31), Gate(31, "WAIT", "all_success", state="FAIL"))
    graph = job(Node(10, exit=10), Node(11, wait=31), gates=gates, edges=(Edge(10, 31),))
    counted = recount(graph, {10: End("OPEN")}).gates
    assert counts(counted[10]) == (1, 1, 0, 0, "OPEN", 0)
    assert counts(counted[31]) == (1, 0, 0, 0, "WAITING", 0)


def test_a_gate_that_stays_decided_has_told_what_it_told() -> None:
    gates = (Gate(10, "TASK", "whole", state="FAIL", cursor=31), Gate(31, "WAIT", "all_success", state="FAIL"))
    graph = job(Node(10, exit=10), Node(11, wait=31), gates=gates, edges=(Edge(10, 31),))
    counted = recount(graph, {10: End("FAIL"), 11: End("FAIL", by_gate=True)})
    assert counts(counted.gates[10]) == (1, 1, 1, 0, "FAIL", 31)
    assert counts(counted.gates[31]) == (1, 1, 1, 0, "FAIL", 0)
    assert not counted.lifted


def test_a_task_that_others_continue_counts_for_its_job_and_not_for_those_behind_it() -> None:
    gates = (Gate(30, "WAIT", "all_success"), Gate(31, "AFTER", "whole"))
    tasks = (Node(10, exit=30, after=31), Node(11, parent=10, exit=31), Node(12, wait=30))
    counted = recount(job(*tasks, gates=gates, edges=(Edge(31, 30),)), {10: End("OPEN")}).gates
    assert counts(counted[30]) == (1, 0, 0, 0, "WAITING", 0)
    assert counts(counted[31]) == (1, 0, 0, 0, "WAITING", 0)
    assert counts(counted[JOB])[:2] == (3, 1)


def test_a_task_whose_gate_is_gone_has_ended_as_it_has() -> None:
    counted = recount(job(Node(10, wait=31)), {10: End("FAIL", by_gate=True)})
    assert counts(counted.gates[JOB])[:3] == (1, 1, 1)
    assert not counted.lifted
