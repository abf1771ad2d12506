"""The panel that tells why a task is where it is: the answer, what mends it, and what else is true."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from markupsafe import Markup, escape

from ...explain_words import Reason
from ...explaining import explain_task
from .rendering import api, url
from .visiting import Visit

PROGRAM = "aaiclick-queue "
LOOKS = ("task explain ", "job get ", "workers stacks ")
QUESTIONS = {
    "COMPLETED": "How did it end?",
    "SKIPPED": "How did it end?",
    "FAILED": "Why did it fail?",
    "UPSTREAM_FAILED": "Why will it not run?",
    "CANCELLED": "Why did it end?",
    "RUNNING": "What does it do?",
}
IDS = re.compile(r"\b\d{15,19}\b")


class Mend(msgspec.Struct, frozen=True):
    """A button that does what the command would."""

    word: str
    path: str
    done: str


class Line(msgspec.Struct, frozen=True):
    """One thing that is true, with what mends it: a command, or words where it mends itself."""

    sentence: Markup
    command: str
    words: str
    is_look: bool
    mend: Mend | None


class Why(msgspec.Struct, frozen=True):
    """What the panel tells: the answer, and what would hold the task up once that is mended."""

    question: str
    first: Line
    others: list[Line]


async def explained(at: Visit, task_id: int) -> Why | None:
    """Why the task is where it is, the first reason and all others that are true."""
    found = await explain_task(at.db, task_id)
    if found is None:
        return None
    first, *others = [line_of(reason) for reason in found.lines]
    return Why(QUESTIONS.get(found.status or "", "Why is it not running?"), first, others)


def line_of(reason: Reason) -> Line:
    """A reason as the panel shows it."""
    is_command = reason.fix.startswith(PROGRAM)
    return Line(
        linked(reason.sentence, reason.facts),
        reason.fix if is_command else "",
        "" if is_command else reason.fix,
        reason.fix.removeprefix(PROGRAM).startswith(LOOKS),
        mend_of(reason) if is_command else None,
    )


def linked(sentence: str, facts: dict[str, Any]) -> Markup:
    """The sentence, the ids of tasks and workers in it as links."""
    pages = {str(facts.get("worker_id")): "worker"}
    named = [facts.get("cause"), facts.get("behind"), *(facts.get("holders") or ())]
    named += [one["id"] for one in facts.get("waits_for", ()) if one["kind"] == "task"]
    pages |= {str(one): "task" for one in named if one}

    def link(found: re.Match[str]) -> str:
        page = pages.get(found[0])
        return str(Markup('<a href="{}">{}</a>').format(url(page, found[0]), found[0])) if page else found[0]

    return Markup(IDS.sub(link, str(escape(sentence))))  # noqa: S704 - escaped before the links were put in


def mend_of(reason: Reason) -> Mend | None:
    """The button for what one press mends; a task itself has its buttons on top of its page."""
    facts = reason.facts
    match reason.code:
        case "queue_paused":
            name = facts["queue"]
            return Mend("Resume the queue", api("queues/{}/resume", name), f"Queue {name} goes on")
        case "job_paused":
            return Mend("Resume the job", api("jobs/{}/resume", facts["job_id"]), "Job goes on")
        case "entrypoint_paused":
            name = facts["entrypoint"]
            return Mend("Resume it", api("entrypoints/{}/resume", name), f"{name} runs again")
    return None
