"""Outcomes: errors are kept in a bounded size and in a form that Postgres and JSON take."""

from __future__ import annotations

import json
import re

import msgspec
import pytest

from aaiclick_queue.codec import Signature
from aaiclick_queue.errors import ArgumentsDoNotFit
from aaiclick_queue.flow.execute import call_plainly
from aaiclick_queue.outcome import (
    MESSAGE_LIMIT,
    TRACEBACK_LIMIT,
    Cancelled,
    Error,
    Failed,
    Later,
    Lost,
    Outcome,
    Released,
    Succeeded,
    cut,
)


class Odd(Exception):
    def __str__(self) -> str:
        raise KeyError("no text")


def raised(error: BaseException) -> Error:
    with pytest.raises(type(error)) as caught:
        raise error
    return Error.of(caught.value)


def test_an_error_keeps_type_message_and_traceback() -> None:
    error = raised(ValueError("no such name"))
    assert (error.type, error.message) == ("ValueError", "no such name")
    assert "raise error" in error.traceback
    assert error.traceback.rstrip().endswith("ValueError: no such name")


def test_a_type_is_named_with_its_module_unless_everybody_knows_it() -> None:
    assert raised(KeyError()).type == "KeyError"
    assert raised(ArgumentsDoNotFit("no")).type == "ArgumentsDoNotFit"
    assert raised(msgspec.ValidationError()).type == "msgspec.ValidationError"


def test_a_traceback_starts_at_the_user_s_code_and_a_refusal_of_ours_has_none() -> None:
    def breaks() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no") as caught:
        call_plainly(breaks, {})
    frames = [line for line in _traced_below(caught.value).splitlines() if line.startswith("  File")]
    assert [frame.rsplit(" ", 1)[-1] for frame in frames] == ["breaks"]
    with pytest.raises(ArgumentsDoNotFit) as refused:
        Signature.of(breaks).decode('{"a": 1}')
    assert "test_outcome.py" in Error.of(refused.value).traceback
    assert _traced_below(refused.value) == ""


def _traced_below(error: BaseException) -> str:
    """As if the package itself had called: without the frame of the test."""
    assert error.__traceback__ is not None
    return Error.of(error.with_traceback(error.__traceback__.tb_next)).traceback


def test_causes_are_in_the_traceback() -> None:
    error = ValueError("second")
    error.__cause__ = KeyError("first")
    traceback = Error.of(error).traceback
    assert "first" in traceback
    assert "direct cause" in traceback


@pytest.mark.parametrize("length", [10, 100_000, 10_000_000])
def test_an_error_has_a_bounded_size(length: int) -> None:
    error = raised(ValueError("€" * length))
    assert len(error.message) <= MESSAGE_LIMIT + 100
    assert len(error.traceback) <= TRACEBACK_LIMIT + 100
    assert len(error.text()) < 300_000


def test_endless_recursion_has_a_traceback_that_can_be_read() -> None:
    def again(n: int) -> int:
        return again(n + 1)

    try:
        again(0)
    except RecursionError as error:
        kept = Error.of(error)
    assert kept.type == "RecursionError"
    assert len(kept.traceback.splitlines()) < 250


def test_an_exception_without_a_text_of_its_own_is_kept() -> None:
    assert raised(Odd()).message == "<the exception's own text raised KeyError>"


@pytest.mark.parametrize("text", ["a\x00b", "a\ud800b", "\x00" * 5000, "tab\tand \x1f and \u2028"])
def test_what_postgres_cannot_store_is_replaced(text: str) -> None:
    error = raised(ValueError(text))
    assert "\\u0000" not in error.text()
    assert msgspec.json.decode(error.text(), type=Error) == error
    error.text().encode()


def test_a_long_text_loses_its_middle_and_says_so() -> None:
    text = cut("a" * 1000 + "b" * 1000, 100)
    assert text.startswith("a" * 50)
    assert text.endswith("b" * 50)
    assert "1900 characters left out" in text
    assert cut("short", 100) == "short"
    assert cut("x" * 100, 100) == "x" * 100


@pytest.mark.parametrize(
    "outcome",
    [
        Succeeded("1"),
        Succeeded(None),
        Failed(Error("Boom")),
        Cancelled(Error("Boom")),
        Later("SNOOZED", Error("Boom"), 5.0),
        Lost(Error("Boom")),
        Released(),
    ],
)
def test_an_outcome_goes_from_process_to_process(outcome: Outcome) -> None:
    assert msgspec.json.decode(msgspec.json.encode(outcome), type=Outcome) == outcome


def test_an_error_is_known_by_the_last_line_that_is_the_user_s_own() -> None:
    def parse() -> None:
        json.loads("{")

    with pytest.raises(ValueError, match="Expecting") as raised:
        parse()
    assert re.fullmatch(r"test_outcome\.py:\d+ in parse", Error.of(raised.value).where)
