"""The doctor looks by itself: what is broken is an alarm and a gauge until it is mended."""

from __future__ import annotations

import pytest

from aaiclick_queue import Settings, doctor
from aaiclick_queue.alarms import read_alarms
from aaiclick_queue.checks import Check
from aaiclick_queue.flow.loop import Holder
from aaiclick_queue.flow.watch import Watch
from aaiclick_queue.postgres import Database
from aaiclick_queue.server.metrics import Collector

STRAY = "INSERT INTO aaiclick_queue.ready (queue, rank, order_key, task_id) VALUES ('mail', 0, 7, 7)"
QUIET = "SELECT 1 WHERE false"
BROKEN = "whatever waits or runs is a task"


async def test_what_the_doctor_finds_is_an_alarm_and_a_gauge_until_it_is_mended(
    settings: Settings, db: Database
) -> None:
    holder = Holder(7)
    watch = Watch(db, holder, doctor.examine, rests=0)
    await watch._doctor_pass()
    assert await read_alarms(db) == []  # another process holds the loops
    await holder.hold_once(db)
    await db.fetch(STRAY)
    await watch._doctor_pass()
    [alarm] = await read_alarms(db)
    assert (alarm.kind, alarm.what, alarm.data["count"]) == ("invariant", BROKEN, 1)
    assert alarm.text.startswith(f"it is not so that {BROKEN}")
    found = (await Collector(db).read())["invariant_violations"]
    assert {name: n for (name,), n in found.items() if n} == {BROKEN: 1.0}
    assert len(found) == len(doctor.CHECKS)
    await db.fetch("DELETE FROM aaiclick_queue.ready")
    await watch._doctor_pass()
    assert await read_alarms(db) == []
    types = [row["type"] for row in await db.fetch("SELECT type FROM aaiclick_queue.system_events ORDER BY id")]
    assert types == ["INVARIANT_BROKEN", "ORCHESTRATOR_CLEARED"]
    await holder.let_go(db)


async def test_a_check_that_takes_too_long_is_left_to_who_waits_for_it(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Check("it is quick", "SELECT pg_sleep(60)", "", "")
    broken = Check("it is one", "SELECT 1", "one", "")
    monkeypatch.setattr(doctor, "CHECKS", (slow, broken))
    monkeypatch.setattr(doctor, "LOOP_SECONDS", 0.05)
    assert [one.what for one in await doctor.examine(db)] == ["it is one"]


async def test_who_waits_for_an_answer_is_told_of_which_checks_nothing_is_known(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    statements = {"slow": "SELECT pg_sleep(60)", "one": "SELECT 1", "no": QUIET}
    monkeypatch.setattr(doctor, "CHECKS", tuple(Check(name, sql, "", "") for name, sql in statements.items()))
    monkeypatch.setattr(doctor, "NOTICES", ())
    monkeypatch.setattr(doctor, "EACH_SECONDS", 0.05)
    found = await doctor.check_soon(db)
    assert [(one.name, one.ok, one.count) for one in found] == [("slow", None, 0), ("one", False, 1), ("no", True, 0)]
    assert "aaiclick-queue doctor" in found[0].fix
    monkeypatch.setattr(doctor, "ALL_SECONDS", 0.0)
    assert [one.ok for one in await doctor.check_soon(db)] == [None, None, None]


async def test_each_check_is_told_of_when_it_was_made(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "CHECKS", (Check("one", "SELECT 1", "", ""), Check("no", QUIET, "", "")))
    told: list[str] = []
    found = await doctor.check(db, tell=lambda one: told.append(one.name))
    assert told == [one.name for one in found] == ["one", "no"]
