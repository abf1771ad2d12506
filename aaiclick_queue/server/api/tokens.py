"""Tokens: make one, list them, revoke one."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path
from pydantic import Field

from ... import tokens
from ...tokens import NewToken, Role, TokenView
from ..answers import NEWEST, Api, Asked, Id, Limit, Name, Page
from ..desk import AtDesk
from ..problems import Problem
from ..roles import Admin

api = Api("tokens")


class CreateToken(Asked):
    """Whose token, and what it may do."""

    name: Name
    role: Role = "reader"
    expires_seconds: Annotated[float, Field(ge=1, le=100 * 366 * 86400)] | None = None


@api.get("/tokens")
async def list_tokens(
    desk: AtDesk,
    who: Admin,  # noqa: ARG001 - needed for its role
    limit: Limit = 100,
    before: Id | None = None,
) -> Page[TokenView]:
    """Tokens, newest first, those that are revoked or over too; never what they open with."""
    found = await tokens.list_tokens(desk.db, limit=limit, before=before or NEWEST)
    return Page(found, found[-1].id if len(found) >= limit else None)


@api.post("/tokens", status_code=201)
async def create_token(body: CreateToken, desk: AtDesk, who: Admin) -> NewToken:
    """Make a token; its text is in this answer and nowhere else."""
    return await tokens.create_token(desk.db, body.name, body.role, lasts=body.expires_seconds, by=who.name)


@api.delete("/tokens/{token_id}")
async def revoke_token(token_id: Annotated[Id, Path()], desk: AtDesk, who: Admin) -> TokenView:  # noqa: ARG001
    """End a token, and the sessions that were begun with it."""
    found = await tokens.revoke_token(desk.db, token_id)
    if found is None:
        raise Problem(404, f"no token {token_id}: GET /api/v1/tokens shows those there are")
    return found
