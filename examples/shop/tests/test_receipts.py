"""Receipts in line: what the code does, without a database."""

from __future__ import annotations

import pytest
from shop import post
from shop.tasks import send_receipt

from aaiclick_queue import Status, TaskFailed
from aaiclick_queue.testing import Eager
from aaiclick_queue.testing import eager as run_in_line


def test_a_receipt_names_the_sum(eager: Eager) -> None:
    assert send_receipt.delay("ada@example.com", 5).get() == "Thank you! We have charged 0.05 €."
    eager.assert_enqueued(send_receipt, to="ada@example.com")


def test_a_receipt_is_given_up_after_five_attempts(eager: Eager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(post, "is_open", False)
    with pytest.raises(TaskFailed, match="does not answer"):
        send_receipt.delay("ada@example.com", 5).get()
    [failed] = eager.tasks(status=Status.FAILED)
    assert failed.attempt == 5


def test_an_error_can_come_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(post, "is_open", False)
    with run_in_line(raising=True), pytest.raises(ConnectionError):
        send_receipt.delay("ada@example.com", 5)
