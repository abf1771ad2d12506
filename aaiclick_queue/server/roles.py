"""Roles: who asks, and whether they may. Each route names the least role that it needs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import msgspec
from fastapi import Depends, Request

from ..tokens import RANKS, Role
from .problems import Problem

if TYPE_CHECKING:
    from .guard import Guard

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


class Who(msgspec.Struct, frozen=True):
    """Who asks: `how` they showed it is `open` where nobody has to, `token`, `session` (a cookie) or `own` (yours)."""

    name: str
    role: Role
    how: Literal["open", "token", "session", "own"] = "own"
    token_id: int | None = None
    address: str | None = None

    def may(self, role: Role) -> bool:
        """Whether they have the role, or a greater one."""
        return RANKS[self.role] >= RANKS[role]


_needed: dict[Callable[..., Any], Role] = {}


@cache
def needs(role: Role) -> Callable[[Request], Awaitable[Who]]:
    """A FastAPI dependency that gives who asks, and refuses those who may not."""

    async def who(request: Request) -> Who:
        guard = cast("Guard", request.app.state.guard)
        found = await guard.who(request)
        if not found.may(role):
            raise Problem(
                403,
                f"{found.name} has the role {found.role}, and this needs {role}: use a token of that role "
                "(aaiclick-queue token create NAME --role ROLE)",
            )
        guard.check_origin(request, found)
        return found

    _needed[who] = role
    return who


Reader = Annotated[Who, Depends(needs("reader"))]
Writer = Annotated[Who, Depends(needs("writer"))]
Admin = Annotated[Who, Depends(needs("admin"))]


def needed_role(route: Any) -> Role | None:
    """The role that a route needs; None for one that anybody may call."""
    left = [route.dependant] if hasattr(route, "dependant") else []
    while left:
        one = left.pop()
        if one.call in _needed:
            return _needed[one.call]
        left += one.dependencies
    return None
