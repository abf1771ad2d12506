"""Visiting: what every page is given — the request, the desk, who looks — and what the frame around it shows."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import Depends, Request
from fastapi.responses import HTMLResponse

from ... import __version__
from ...alarms import Alarm, read_alarms
from ...flow.watch import INVARIANT
from ...postgres import Database
from ...tokens import Role
from ..desk import AtDesk, Desk
from ..roles import Reader, Who
from .rendering import enter, render, url

SECTIONS = (
    ("overview", "Overview", "o", "gauge"),
    ("queues", "Queues", "q", "layers"),
    ("jobs", "Jobs", "j", "graph"),
    ("tasks", "Tasks", "t", "list"),
    ("failures", "Failures", "f", "failed"),
    ("schedules", "Schedules", "s", "scheduled"),
    ("workers", "Workers", "w", "cpu"),
    ("limits", "Limits", "l", "sliders"),
    ("operations", "Operations", "p", "running"),
    ("outbox", "Outbox", "x", "database"),
    ("audit", "Audit", "a", "shield"),
)
ALARMS_SHOWN = 50
RANGES = ("1", "6", "24", "168")
# What `what` of each kind of alarm names (flow/detect.py), and so the page that it leads to.
_PAGES = {
    "without_workers": "queue", "backpressure": "queue", "stuck": "queue", "zombie": "task", "stall": "job",
    "clock_skew": "worker", "lost_worker": "worker",
}  # fmt: skip


class Told(msgspec.Struct, frozen=True):
    """An alarm as the banner tells it."""

    word: str
    sentence: str
    since: Any
    href: str | None


class Visit:
    """One look at one page."""

    def __init__(self, request: Request, desk: Desk, who: Who) -> None:
        self.request = request
        self.desk = desk
        self.who = who

    @property
    def db(self) -> Database:
        """Where pages read."""
        return self.desk.db

    def may(self, role: Role) -> bool:
        """Whether who looks may do what needs that role."""
        return self.who.may(role)

    def asked(self, name: str, default: str = "") -> str:
        """A word of the query, cut to what a name can be."""
        return self.request.query_params.get(name, default).strip().replace("\x00", "")[:500]

    def number(self, name: str) -> int | None:
        """An id of the query; None for what is none."""
        text = self.asked(name)
        fits = text.isascii() and text.isdigit() and len(text) <= 19 and int(text) < 2**63
        return int(text) if fits else None

    def hours(self, default: int = 1) -> int:
        """The range of charts that the address asks for."""
        text = self.asked("hours")
        return int(text) if text in RANGES else default

    async def show(
        self, template: str, *, section: str, title: str, topics: str = "", status: int = 200, **values: Any
    ) -> HTMLResponse:
        """The page in its frame."""
        state = self.request.app.state
        frame = {
            "section": section,
            "title": title,
            "topics": topics,
            "sections": [one for one in SECTIONS if one[0] != "audit" or self.may("admin")],
            "who": self.who,
            "may": self.may,
            "alarms": [_told(one) for one in await read_alarms(self.db, limit=ALARMS_SHOWN)],
            "label": state.label,
            "colour": state.colour or "red",
            "version": __version__,
            "search": self.asked("q"),
            "settings": self.desk.settings,
        }
        return render(self.request, template, frame | values, status=status)


def _told(alarm: Alarm) -> Told:
    return Told(alarm.kind.replace("_", " "), alarm.text or alarm.what, alarm.since, _leads_to(alarm))


def _leads_to(alarm: Alarm) -> str | None:
    if alarm.kind == INVARIANT:
        return url("outbox", checks=1)
    page = _PAGES.get(alarm.kind)
    return url(page, alarm.what) if page and alarm.what else None


async def visit(request: Request, desk: AtDesk, who: Reader) -> Visit:
    """The visit of a request."""
    enter(request)
    return Visit(request, desk, who)


Visiting = Annotated[Visit, Depends(visit)]
