"""Limits: of queues, tasks and concurrency keys; and pauses of entrypoints."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from fastapi import Path, Query
from pydantic import Field

from ...flow.limits import LimitView, NewLimit, set_max_depth
from ...flow.limits import list_limits as read_limits
from ...limits import a_pause, apply, changes, checked_depth, resume_task
from ..answers import Api, Asked, Done, Id, Limit, Name, Page, Text
from ..desk import AtDesk, Desk
from ..problems import Problem
from ..roles import Admin, Who, Writer

api = Api("limits")
ALL = 100_000
Place = Annotated[
    Text, Query(pattern="^[a-z]+/[a-z]+/[01]/.", max_length=300, description="`after` of the page before.")
]
Entrypoint = Annotated[Name, Path(description="module.function", examples=["shop.mail.send"])]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
Rate = Annotated[Text, Field(max_length=40, examples=["100/min"])]
_WORDS = {
    "running": "max_running",
    "rate": "rate",
    "per_key": "per_key",
    "per_key_rate": "per_key_rate",
    "fair": "fair",
}

# The newest tasks tell what is in use; how many there were in all nobody could count.
ENTRYPOINTS = """
SELECT t.entrypoint, count(*) AS recent, max(t.created_at) AS last_created_at,
       bool_or(p.name IS NOT NULL) AS is_paused, max(p.reason) AS reason, max(p.until) AS paused_until
FROM (SELECT entrypoint, created_at FROM aaiclick_queue.tasks ORDER BY id DESC LIMIT 10000) AS t
LEFT JOIN aaiclick_queue.limits p ON p.scope = 'task' AND p.kind = 'pause' AND p.name = t.entrypoint
     AND (p.until IS NULL OR p.until > now())
GROUP BY t.entrypoint ORDER BY t.entrypoint LIMIT $1
"""


class LimitOut(msgspec.Struct, frozen=True):
    """A limit and how much of it is taken; one of kind `depth` is a queue's max_depth and has the id 0."""

    id: str
    scope: str
    name: str
    kind: str
    per_key: bool
    n: int
    seconds: float | None
    until: datetime | None
    made_by: str | None
    reason: str | None
    created_at: datetime | None
    used: int
    stopping: int


class EntrypointView(msgspec.Struct, frozen=True):
    """A function that tasks run; `recent` of the newest 10,000."""

    entrypoint: str
    recent: int
    last_created_at: datetime
    is_paused: bool
    reason: str | None
    paused_until: datetime | None


class LimitsOf(Asked):
    """Limits; null takes one away, what is left out stays."""

    running: Count | None = Field(None, description="Running at once, in the whole fleet.")
    rate: Rate | None = Field(None, description="Starts in any such period.")
    per_key: Count | None = Field(None, description="Running at once of one concurrency_key.")
    per_key_rate: Rate | None = None


class SetLimits(LimitsOf):
    """Whose limits, and which."""

    scope: Literal["queue", "task", "key"]
    name: Name
    fair: bool | None = Field(None, description="Equal turns for each concurrency_key; of a queue.")
    max_depth: Count | None = Field(None, description="Tasks in line at most; of a queue.")


class Pause(Asked):
    """For how long, and why."""

    seconds: Annotated[float, Field(ge=0.1, le=366 * 86400)] | None = None
    reason: Annotated[Text, Field(max_length=500)] | None = None


@api.get("/limits")
async def list_limits(desk: AtDesk, limit: Limit = 1000, after: Place | None = None) -> Page[LimitOut]:
    """Every limit there is, with what is taken of it."""
    scope, kind, per_key, name = (after or "///").split("/", 3)
    found = await read_limits(desk.db, limit=limit, after=(scope, name, kind, per_key == "1") if after else None)
    return Page([_shown(one) for one in found], after=_place(found[-1]) if len(found) >= limit else None)


@api.put("/limits")
async def set_limits(body: SetLimits, desk: AtDesk, who: Admin) -> list[LimitOut]:
    """Limit a queue, a task or one concurrency key over all queues."""
    refused = {"task": {"fair", "max_depth"}, "key": {"fair", "max_depth", "per_key", "per_key_rate"}}
    if wrong := sorted(refused.get(body.scope, set()) & body.given().keys()):
        raise Problem(422, f"{wrong[0]} is no limit of a {body.scope}: leave it out", kind="bad-request")
    await change_limits(desk, who, body.scope, body.name, body, depth="max_depth" if body.scope == "queue" else None)
    return await limits_of(desk, body.scope, body.name)


@api.delete("/limits/{limit_id}")
async def delete_limit(limit_id: Annotated[Id, Path()], desk: AtDesk, who: Admin) -> Done:
    """Take a limit away."""
    for one in await read_limits(desk.db, limit=ALL):
        if one.id == limit_id:
            limit = NewLimit(one.scope, one.name, one.kind, per_key=one.per_key)  # type: ignore[arg-type]
            await apply(desk.db, {limit: None}, who.name)
            return Done(True, f"the limit {one.kind} of {one.scope} {one.name} is gone")
    raise Problem(404, f"no limit {limit_id}: GET /api/v1/limits shows those there are")


@api.get("/entrypoints")
async def list_entrypoints(desk: AtDesk, limit: Limit = 1000) -> Page[EntrypointView]:
    """The functions that the newest 10,000 tasks run, and which of them are paused."""
    return Page([EntrypointView(**dict(row)) for row in await desk.db.fetch(ENTRYPOINTS, limit)])


@api.post("/entrypoints/{name}/pause")
async def pause_entrypoint(name: Entrypoint, desk: AtDesk, who: Writer, body: Pause | None = None) -> Done:
    """Let no run of a task start, in any queue, for so long or until it is resumed; what runs goes on."""
    body = body or Pause()
    desk.carry_on(*await apply(desk.db, a_pause(name, body.seconds, body.reason), who.name))
    return Done(True, f"{name} is paused")


@api.post("/entrypoints/{name}/resume")
async def resume_entrypoint(name: Entrypoint, desk: AtDesk, who: Writer) -> Done:
    """Let a paused task run again."""
    done = await resume_task(name, client=desk.client, by=who.name)
    return Done(done, f"{name} goes on" if done else f"{name} was not paused")


async def change_limits(  # one value a fact
    desk: Desk, who: Who, scope: Any, name: str, body: LimitsOf, *, depth: str | None
) -> None:
    """Make and drop limits as the body says; what applies them goes on by itself."""
    given = {_WORDS[word]: getattr(body, word) for word in body.model_fields_set & _WORDS.keys()}
    if scope == "key":
        given = {word: value for word, value in given.items() if word in ("max_running", "rate")}
    wanted = changes(scope, name, **given)
    if depth in body.model_fields_set:
        await set_max_depth(desk.db, name, checked_depth(getattr(body, str(depth))), by=who.name)
    desk.carry_on(*await apply(desk.db, wanted, who.name))


async def limits_of(desk: Desk, scope: str, name: str) -> list[LimitOut]:
    """The limits of one queue, task or key."""
    found = await read_limits(desk.db, limit=ALL)
    return [_shown(one) for one in found if (one.scope, one.name) == (scope, name)]


def _place(one: LimitView) -> str:
    return f"{one.scope}/{one.kind}/{int(one.per_key)}/{one.name}"


def _shown(one: LimitView) -> LimitOut:
    return LimitOut(**msgspec.structs.asdict(one) | {"id": str(one.id)})
