"""What a run can come to. Executing returns one of these values; everything later is a decision over it."""

from __future__ import annotations

import asyncio
import re
import sysconfig
import traceback
from collections.abc import Sequence
from concurrent.futures import thread
from pathlib import Path
from typing import Literal

import msgspec

from .redaction import hidden

MESSAGE_LIMIT = 2_000
TRACEBACK_LIMIT = 64_000
PACKAGE = str(Path(__file__).parent) + "/"
DEMO = PACKAGE + "demo/"  # its tasks are written as users write theirs
# The way from the worker to the user's function.
INSTALLED = (sysconfig.get_path("stdlib") + "/", "<")
WAY = (PACKAGE, str(Path(asyncio.__file__).parent) + "/", thread.__file__)


class Error(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error as it is kept with an attempt."""

    type: str
    message: str = ""
    traceback: str = ""
    where: str = ""  # `mail.py:88 in send`: the same trouble is known by it

    @classmethod
    def of(cls, raised: BaseException, secrets: Sequence[str] = ()) -> Error:
        """The error of an exception, without these secrets and cut: a 10 MB message costs nobody else anything."""
        name = type(raised).__qualname__
        if (module := type(raised).__module__).split(".")[0] not in ("builtins", "__main__", "aaiclick_queue"):
            name = f"{module}.{name}"
        try:
            message = str(raised)
        except Exception as broken:
            message = f"<the exception's own text raised {type(broken).__name__}>"
        trace = _trace(raised)
        if secrets:
            message, trace = hidden(message, secrets), hidden(trace, secrets)
        return cls(name, cut(message, MESSAGE_LIMIT), cut(trace, TRACEBACK_LIMIT), _where(trace))

    @classmethod
    def read(cls, text: str) -> Error:
        """The error of a row; whatever another client has written there, as its message."""
        try:
            return msgspec.json.decode(text, type=cls)
        except msgspec.ValidationError:
            return cls("Unknown", cut(text, MESSAGE_LIMIT))

    def without(self, secrets: Sequence[str]) -> Error:
        """The same without these secrets, for one that was written with them."""
        if not secrets:
            return self
        told = {"message": hidden(self.message, secrets), "traceback": hidden(self.traceback, secrets)}
        return msgspec.structs.replace(self, **told)

    def text(self) -> str:
        """JSON that Postgres takes."""
        return msgspec.json.encode(self).decode()


def _trace(raised: BaseException) -> str:
    """The traceback from the user's first frame on; none for a refusal of ours that no user code led to."""
    told = traceback.TracebackException.from_exception(raised, limit=-50, compact=True)
    if type(raised).__module__.split(".")[0] == __package__ and _users(told) is None:
        return ""
    part: traceback.TracebackException | None = told
    while part is not None:
        del part.stack[: _users(part) or 0]
        part = part.__cause__ or part.__context__
    return "".join(told.format())


def _where(trace: str) -> str:
    """The last frame of a traceback that is neither Python's nor of something installed: `tasks.py:9 in send`."""
    frames = re.findall(r'^[ |]*File "([^"\n]+)", line (\d+), in (\S+)$', trace, re.MULTILINE)
    theirs = [frame for frame in frames if not frame[0].startswith(INSTALLED) and "-packages/" not in frame[0]]
    for file, line, name in reversed(theirs or frames):
        return f"{file.rsplit('/', 1)[-1]}:{line} in {name}"
    return ""


def _users(told: traceback.TracebackException) -> int | None:
    """Where the user's first frame is."""
    return next((number for number, frame in enumerate(told.stack) if not _on_the_way(frame)), None)


def _on_the_way(frame: traceback.FrameSummary) -> bool:
    return frame.filename.startswith(WAY) and not frame.filename.startswith(DEMO)


def cut(text: str, limit: int) -> str:
    """The text, with its middle left out when it is too long; without what Postgres cannot store."""
    if len(text) > limit:
        half = limit // 2
        text = f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"
    return text.replace("\x00", "�").encode("utf-8", "replace").decode()


class Succeeded(msgspec.Struct, frozen=True, tag=True):
    """The function returned; `result` is its encoded value."""

    result: str | None


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The task is over and has failed."""

    error: Error


class Cancelled(msgspec.Struct, frozen=True, tag=True):
    """The task is over without having failed or succeeded."""

    error: Error


class Skipped(msgspec.Struct, frozen=True, tag=True):
    """The task is over, and took itself out of its job's way."""

    error: Error


class Later(msgspec.Struct, frozen=True, tag=True):
    """Run again later. RETRYING spends the attempt, the others do not; `seconds` None is the task's own backoff."""

    kind: Literal["RETRYING", "SNOOZED", "UNKNOWN"]
    error: Error
    seconds: float | None = None
    retry: str | None = None  # the policy in the code, for tasks whose row has none


class Lost(msgspec.Struct, frozen=True, tag=True):
    """The process that ran it died."""

    error: Error


class Released(msgspec.Struct, frozen=True, tag=True):
    """Handed back unfinished, at no cost."""


Outcome = Succeeded | Failed | Cancelled | Skipped | Later | Lost | Released


class Ended(msgspec.Struct, frozen=True):
    """A run and what it came to; `started` and `ended` are the worker's monotonic clock."""

    task_id: int
    run_epoch: int
    outcome: Outcome
    started: float
    ended: float
    worker_id: int = 0  # the incarnation that ran it; 0: the one that writes
    flags: int = 0
    still_running: bool = False  # told to stop, and its code has not yet: a thread


def word_of(outcome: Outcome) -> str:
    """As `kind_of`, but for a run that took too long, whatever becomes of its task."""
    error = getattr(outcome, "error", None)
    return "timed_out" if isinstance(error, Error) and error.type == "TimedOut" else kind_of(outcome)


def kind_of(outcome: Outcome) -> str:
    """One lower-case word for what a run came to, as metrics and traces label it."""
    match outcome:
        case Later(kind):
            return {"RETRYING": "retried", "SNOOZED": "snoozed", "UNKNOWN": "unknown"}[kind]
        case _:
            return type(outcome).__name__.lower()
