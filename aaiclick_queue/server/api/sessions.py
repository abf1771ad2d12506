"""Who asks: `whoami`, and signing in and out with a token for the dashboard."""

from __future__ import annotations

from urllib.parse import urlsplit

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from ...tokens import Role
from ..answers import Api, encoded
from ..csrf import is_json, refuse_other_sites
from ..guard import COOKIE, Guard
from ..pages.trouble import lone
from ..problems import Problem
from ..roles import Reader
from ..tokens import SESSION_SECONDS

api = Api("tokens")
TOKEN_LIMIT = 200


class Me(msgspec.Struct, frozen=True):
    """Who asks, by which means, and what they may do."""

    name: str
    role: Role
    how: str


class _Given(msgspec.Struct, forbid_unknown_fields=True):
    token: str


@api.get("/whoami")
async def whoami(who: Reader) -> Me:
    """Who this request is from, and their role."""
    return Me(who.name, who.role, who.how)


async def login_page(request: Request) -> Response:
    """The form; whoever is in already goes on."""
    guard: Guard = request.app.state.guard
    if await guard.seen(request) is not None:
        return RedirectResponse(_home(request), 303)
    return lone(request, "login.html", problem="", next=_next(request, request.query_params.get("next", "")))


async def login(request: Request) -> Response:
    """Begin a session for whoever has the token."""
    guard: Guard = request.app.state.guard
    refuse_other_sites(request)
    as_json = is_json(request.headers.get("content-type", ""))
    token = await _given(request, as_json=as_json)
    leads_to = _home(request) if as_json else _next(request, str((await request.form()).get("next", "")))
    try:
        cookie = await guard.sign_in(request, token)
    except Problem as problem:
        if as_json:
            raise
        page = lone(request, "login.html", status=problem.status, problem=str(problem), next=leads_to)
        page.headers.update(problem.headers)
        return page
    answer: Response = encoded({"signed_in": True}) if as_json else RedirectResponse(leads_to, 303)
    answer.set_cookie(
        COOKIE, cookie, max_age=SESSION_SECONDS, path=_home(request), secure=_is_secure(request), httponly=True,
        samesite="strict",
    )  # fmt: skip
    return answer


async def logout(request: Request) -> Response:
    """End the session of this browser, here and on the server."""
    guard: Guard = request.app.state.guard
    refuse_other_sites(request)
    await guard.sign_out(request)
    answer = RedirectResponse(f"{_home(request)}login", 303)
    answer.delete_cookie(COOKIE, path=_home(request), secure=_is_secure(request), httponly=True, samesite="strict")
    return answer


async def _given(request: Request, *, as_json: bool) -> str:
    if as_json:
        try:
            token = msgspec.json.decode(await request.body(), type=_Given).token
        except msgspec.MsgspecError as error:
            raise Problem(422, f'no token ({error}): send {{"token": "aaq_…"}}', kind="bad-request") from error
    else:
        form = await request.form(max_files=0, max_fields=5)
        token = str(form.get("token", ""))
    if not 1 <= len(token) <= TOKEN_LIMIT:
        raise Problem(422, "no token: send one in the field `token`", kind="bad-request")
    return token.strip()


def _next(request: Request, path: str) -> str:
    """Where whoever has signed in goes on: a page of ours, never another host."""
    home = _home(request)
    is_ours = path.startswith(home) and not path.startswith("//") and "\\" not in path and path.isprintable()
    return path if is_ours else home


def _home(request: Request) -> str:
    return str(request.scope.get("root_path", "")).rstrip("/") + "/"


def _is_secure(request: Request) -> bool:
    return urlsplit(str(request.url)).scheme == "https"


ROUTES = [
    Route("/login", login_page, methods=["GET"], name="login_page"),
    Route("/login", login, methods=["POST"], name="login"),
    Route("/logout", logout, methods=["POST"], name="logout"),
]
