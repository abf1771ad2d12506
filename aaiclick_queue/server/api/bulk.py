"""Many tasks at once, by filter: a preview that counts, or an operation that goes on by itself; and operations."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec
from fastapi import Path
from pydantic import Field

from ...filters import WORDS
from ...operations import (
    Change,
    Operation,
    begin,
    cancelling,
    moving,
    prioritizing,
    read_operation,
    read_operations,
    retrying,
)
from ...operations import cancel_operation as stop
from ..answers import Answer, Api, Asked, Done, Id, Limit, Name, Page, audits_itself
from ..auditing import audit
from ..desk import AtDesk, Desk
from ..problems import Problem
from ..roles import Who, Writer

api = Api("bulk")


class OperationView(msgspec.Struct, frozen=True):
    """One operation; `total` is null where more than 10,000 tasks were meant."""

    id: str
    kind: str
    filter: dict[str, Any]
    arguments: dict[str, Any]
    status: str
    done: int
    total: int | None
    made_by: str | None
    error: str | None
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None


class Outlook(msgspec.Struct, frozen=True):
    """With `dry_run`: how many tasks are meant, exact to 10,000; else the operation that was begun.

    Where `looked_at` is given, so many rows were looked through and there are others: more may be meant.
    """

    matching: int
    is_more: bool
    by_status: dict[str, int]
    operation_id: str | None = None
    looked_at: int | None = None


class Bulk(Asked):
    """Which tasks are meant, and whether they are only counted."""

    where: dict[str, Any] = Field(default_factory=dict, description=f"Filter words: {', '.join(WORDS)}.")
    everything: bool = Field(False, description="Needed where the filter is empty.")
    dry_run: bool = False


class BulkCancel(Bulk):
    """Tasks to be cancelled."""

    running: bool = Field(False, description="Those that run too.")


class BulkMove(Bulk):
    """Tasks that go to another queue."""

    to: Name


class BulkPriority(Bulk):
    """Tasks that get another priority."""

    priority: Annotated[int, Field(ge=-32768, le=32767)]


@api.post("/bulk/cancel", status_code=202)
@audits_itself
async def bulk_cancel(body: BulkCancel, desk: AtDesk, who: Writer) -> Answer[Outlook]:
    """End waiting tasks as CANCELLED, and running ones if asked to."""
    change = cancelling(body.where, running=body.running, everything=body.everything)
    return await carry_out(desk, who, "bulk_cancel", change, dry_run=body.dry_run)


@api.post("/bulk/retry", status_code=202)
@audits_itself
async def bulk_retry(body: Bulk, desk: AtDesk, who: Writer) -> Answer[Outlook]:
    """Run tasks that FAILED again, or with status CANCELLED those."""
    change = retrying(body.where, everything=body.everything)
    return await carry_out(desk, who, "bulk_retry", change, dry_run=body.dry_run)


@api.post("/bulk/move", status_code=202)
@audits_itself
async def bulk_move(body: BulkMove, desk: AtDesk, who: Writer) -> Answer[Outlook]:
    """Put waiting tasks into another queue."""
    change = moving(body.to, body.where, everything=body.everything)
    return await carry_out(desk, who, "bulk_move", change, dry_run=body.dry_run)


@api.post("/bulk/priority", status_code=202)
@audits_itself
async def bulk_priority(body: BulkPriority, desk: AtDesk, who: Writer) -> Answer[Outlook]:
    """Give waiting tasks another priority."""
    change = prioritizing(body.priority, body.where, everything=body.everything)
    return await carry_out(desk, who, "bulk_priority", change, dry_run=body.dry_run)


@api.get("/operations")
async def list_operations(desk: AtDesk, limit: Limit = 50, before: Id | None = None) -> Page[OperationView]:
    """Operations, newest first; open ones are worked on by every worker."""
    found = await read_operations(desk.db, limit=limit, before=before)
    return Page([viewed(one) for one in found], str(found[-1].id) if len(found) >= limit else None)


@api.get("/operations/{operation_id}")
async def get_operation(operation_id: Annotated[Id, Path()], desk: AtDesk) -> OperationView:
    """One operation, and how far it is."""
    return viewed(await read_operation(desk.db, operation_id))


@api.post("/operations/{operation_id}/cancel")
async def cancel_operation(operation_id: Annotated[Id, Path()], desk: AtDesk, who: Writer) -> Done:  # noqa: ARG001
    """Stop an operation after the page it is at; what it has changed stays changed."""
    found = await read_operation(desk.db, operation_id)
    if found.kind == "limit" and found.status == "OPEN":
        raise Problem(409, f"operation {operation_id} applies a limit: take the limit away instead")
    done = await stop(desk.db, operation_id)
    return Done(done, f"operation {operation_id} is {'CANCELLED' if done else found.status}")


async def carry_out(desk: Desk, who: Who, action: str, change: Change, *, dry_run: bool) -> Answer[Outlook]:
    """Count what is meant; begin it unless it was only asked about."""
    count = await change.count(desk.db)
    if dry_run:
        return Answer(Outlook(count.n, count.more, count.by_status, looked_at=count.looked_at), 200)
    await audit(desk, who, action, filter=change.where, given=change.arguments, count=count.n, is_more=count.more)
    operation = await begin(desk.db, change, count, by=who.name)
    begun = desk.carry_on(operation)[0]
    return Answer(Outlook(count.n, count.more, count.by_status, begun, count.looked_at), 202)


def viewed(one: Operation) -> OperationView:
    """The operation with its id as text."""
    return OperationView(**msgspec.structs.asdict(one) | {"id": str(one.id)})
