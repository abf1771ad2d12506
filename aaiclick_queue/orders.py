"""Orders: what a worker and its child processes say to each other, in frames over a socket of their own.

Before: slots, which hand a run to children. After: child, which executes it.
"""

from __future__ import annotations

import struct
from typing import Any, Literal

import msgspec

from .flow.claim import Claimed
from .outcome import Error, Outcome

HEAD = struct.Struct(">I")
is_child = False  # whether this process is a child
LONGEST = 1 << 30  # a longer frame was not written by us


class Begin(msgspec.Struct, frozen=True, tag=True):
    """To a new child: how it lives."""

    path: list[str]
    python_path: str | None  # the worker's own; the child's is ours, and not for what its tasks start
    settings: dict[str, Any]
    dsn: str
    logs: LogsOf | None


class LogsOf(msgspec.Struct, frozen=True):
    """How the worker writes its log lines, and the descriptor for them."""

    log_format: Literal["pretty", "json"]
    level: str
    colour: bool
    tracebacks: bool
    descriptor: int


class Load(msgspec.Struct, frozen=True, tag=True):
    """To a child without a run: import these. It says Loaded, or Refused."""

    modules: list[str]


class Order(msgspec.Struct, frozen=True, tag=True):
    """To a child without a run: run this. It says Began, and at last Done."""

    claimed: Claimed
    worker_id: int


class Halt(msgspec.Struct, frozen=True, tag=True):
    """To a child with a run: it is not wanted any more."""


class Loaded(msgspec.Struct, frozen=True, tag=True):
    """The modules are there."""

    megabytes: float


class Refused(msgspec.Struct, frozen=True, tag=True):
    """A module could not be imported, or an entrypoint is in none of them."""

    error: Error


class Began(msgspec.Struct, frozen=True, tag=True):
    """The run has started: from now on the child's end is the run's."""


class Opening(msgspec.Struct, frozen=True, tag=True):
    """The run waits for what its process opens first; it says Began once more when that is there."""


class SignOfLife(msgspec.Struct, frozen=True, tag=True):
    """The run goes on, and has `left` seconds from now."""

    left: float


class Committing(msgspec.Struct, frozen=True, tag=True):
    """The run's own transaction is about to end it, or has not."""

    now: bool
    committed: bool = False


class MadeReady(msgspec.Struct, frozen=True, tag=True):
    """The run has put tasks in line."""


class Done(msgspec.Struct, frozen=True, tag=True):
    """The run is over; no outcome: there is nothing to record."""

    outcome: Outcome | None
    committed: bool
    megabytes: float


Asked = Begin | Load | Order | Halt
Said = Loaded | Refused | Began | Opening | SignOfLife | Committing | MadeReady | Done

_encode = msgspec.msgpack.Encoder().encode
_asked = msgspec.msgpack.Decoder(Asked)
_said = msgspec.msgpack.Decoder(Said)


def frame(message: Asked | Said) -> bytes:
    """The message as it goes over the wire."""
    body = _encode(message)
    return HEAD.pack(len(body)) + body


def asked(body: bytes) -> Asked:
    """What the worker asks."""
    message: Asked = _asked.decode(body)
    return message


def said(body: bytes) -> Said:
    """What the child says; msgspec.DecodeError when it was not the child who said it."""
    message: Said = _said.decode(body)
    return message
