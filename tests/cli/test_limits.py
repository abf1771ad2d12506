"""`queue limit`, `queue limits`, `task limit|pause|resume`, `key limit`, and what PENDING tasks say of themselves."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cli.conftest import Invoke


def limits(invoke: Invoke) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(invoke("queue", "limits", "--json").stdout)
    return found


def said(invoke: Invoke, *arguments: str) -> list[str]:
    ran = invoke(*arguments)
    assert ran.exit_code == 0, ran.output
    return list(ran.stdout.splitlines())


def test_a_queue_s_limits_are_made_changed_shown_and_taken_away(invoke: Invoke) -> None:
    assert said(invoke, "queue", "limit", "mail") == ["queue mail has no limits"]
    made = said(invoke, "queue", "limit", "mail", "--max-running", "5", "--rate", "100/min", "--fair", "--per-key", "2")
    assert made == ["max-running: none → 5", "rate: none → 100/min", "per-key: none → 2", "fair: none → on"]
    assert said(invoke, "queue", "limit", "mail", "--max-running", "7") == ["max-running: 5 → 7"]
    assert said(invoke, "queue", "limit", "mail", "--rate", "none", "--no-fair", "--per-key", "none") == [
        "rate: 100/min → none",
        "per-key: 2 → none",
        "fair: on → none",
    ]
    [view] = limits(invoke)
    assert (view["scope"], view["name"], view["kind"], view["n"], view["used"]) == ("queue", "mail", "running", 7, 0)
    assert "@" in view["made_by"]
    header, line = said(invoke, "queue", "limit", "mail")
    assert header.split() == ["SCOPE", "NAME", "KIND", "LIMIT", "USED", "STOPPING", "UNTIL", "BY", "REASON"]
    assert line.split()[:6] == ["queue", "mail", "max-running", "7", "0", "0"]


def test_a_dry_run_changes_no_limit(invoke: Invoke) -> None:
    assert said(invoke, "queue", "limit", "mail", "--max-running", "5", "--max-depth", "9", "--dry-run") == [
        "max-running: none → would be 5",
        "max-depth: none → would be 9",
    ]
    assert limits(invoke) == []


def test_a_full_queue_refuses_what_is_enqueued_and_says_how_to_go_on(invoke: Invoke) -> None:
    assert said(invoke, "queue", "limit", "mail", "--max-depth", "1") == ["max-depth: none → 1"]
    assert invoke("task", "enqueue", "shop.send", "--queue", "mail").exit_code == 0
    ran = invoke("task", "enqueue", "shop.send", "--queue", "mail")
    assert ran.exit_code == 1
    assert "queue 'mail' has no room (max_depth 1)" in ran.stderr
    assert "`aaiclick-queue queue limit`" in ran.stderr
    [view] = limits(invoke)
    assert (view["kind"], view["n"], view["used"]) == ("depth", 1, 1)
    assert said(invoke, "queue", "limit", "mail", "--max-depth", "none") == ["max-depth: 1 → none"]
    assert invoke("task", "enqueue", "shop.send", "--queue", "mail").exit_code == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["--max-running", "0"],
        ["--max-running", "many"],
        ["--rate", "often"],
        ["--rate", "5/fortnight"],
        ["--rate", "0/s"],
        ["--rate", "1/0s"],
        ["--max-depth", "1000001"],
        ["--per-key", "-1"],
        ["--max-depth", "1.5"],
    ],
    ids=" ".join,
)
def test_a_limit_that_cannot_be_is_refused_and_nothing_is_written(invoke: Invoke, arguments: list[str]) -> None:
    ran = invoke("queue", "limit", "mail", *arguments)
    assert (ran.exit_code, ran.stdout) == (2, "")
    assert "fix: " in ran.stderr
    assert arguments[1] in ran.stderr
    assert "None" not in ran.stderr
    assert limits(invoke) == []


def test_tasks_in_line_come_under_a_new_limit_before_the_command_ends(invoke: Invoke) -> None:
    for _ in range(3):
        invoke("task", "enqueue", "shop.send", "--queue", "mail")
    said(invoke, "queue", "limit", "mail", "--max-running", "1")
    [queue] = json.loads(invoke("queue", "list", "--json").stdout)
    assert (queue["ready"], queue["held"], queue["paused_at"]) == (0, 3, None)
    [operation] = json.loads(invoke("operation", "list", "--json").stdout)
    assert (operation["kind"], operation["status"], operation["done"]) == ("limit", "DONE", 3)


def test_tasks_and_keys_are_limited_by_name(invoke: Invoke) -> None:
    assert said(invoke, "task", "limit", "shop.send", "--rate", "5/10s") == ["rate: none → 5/10s"]
    assert said(invoke, "key", "limit", "acme", "--max-running", "2") == ["max-running: none → 2"]
    assert [(one["scope"], one["name"]) for one in limits(invoke)] == [("key", "acme"), ("task", "shop.send")]
    assert "5/10s" in said(invoke, "task", "limit", "shop.send")[1]
    assert json.loads(invoke("key", "limit", "acme", "--json").stdout)[0]["n"] == 2
    ran = invoke("task", "limit", "send", "--rate", "5/10s")
    assert ran.exit_code == 0
    assert "go by the whole entrypoint" in ran.stderr


def test_a_paused_task_says_why_it_waits_until_it_is_resumed(invoke: Invoke) -> None:
    task_id = invoke("task", "enqueue", "shop.send").stdout.strip()
    assert said(invoke, "task", "pause", "shop.send", "--dry-run") == ["would pause shop.send"]
    assert limits(invoke) == []
    paused = said(invoke, "task", "pause", "shop.send", "--for", "30m", "--reason", "the provider is down")
    assert paused == ["paused shop.send for 30m"]
    [view] = limits(invoke)
    assert (view["kind"], view["reason"]) == ("pause", "the provider is down")
    assert view["until"] is not None
    [listed] = json.loads(invoke("task", "list", "--status", "PENDING", "--json").stdout)
    assert (listed["id"], listed["reason"]) == (task_id, "paused: the provider is down")
    assert "waits: paused: the provider is down" in invoke("task", "list").stdout
    shown = invoke("task", "get", task_id).stdout
    assert "PENDING" in shown
    assert "waits for    paused: the provider is down" in shown
    assert said(invoke, "task", "resume", "shop.send", "--dry-run") == ["would resume shop.send"]
    assert said(invoke, "task", "resume", "shop.send") == ["resumed shop.send"]
    assert invoke("task", "resume", "shop.send").exit_code == 3


@pytest.mark.parametrize("text", ["soon", "5x", "", "m", "1h 5"])
def test_a_duration_that_is_none_is_a_mistake_of_usage(invoke: Invoke, text: str) -> None:
    ran = invoke("task", "pause", "shop.send", "--for", text)
    assert ran.exit_code == 2
    assert "fix: write 90s, 30m, 1h30m or 2d" in ran.stderr
