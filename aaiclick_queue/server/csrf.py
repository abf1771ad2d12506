"""CSRF: whether a request that changes something was made by our own page, or by no page at all.

Browsers say so themselves: Sec-Fetch-Site to hosts they trust, Origin with every request that changes something.
Requests with a bearer token are exempt, since no browser adds one by itself.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.requests import Request

from .problems import Problem
from .roles import SAFE_METHODS

OWN_SITES = ("same-origin", "none")
_PORTS = {"http": 80, "https": 443}


def check_origin(request: Request) -> None:
    """Refuse a change that another site has a browser make."""
    if request.method in SAFE_METHODS:
        return
    refuse_other_sites(request)
    kind = request.headers.get("content-type")
    if kind is not None and not is_json(kind):
        raise Problem(415, f"Content-Type is {kind[:80]!r}: send application/json")


def refuse_other_sites(request: Request) -> None:
    """Refuse what a browser sends for a page that is not ours."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None and site not in OWN_SITES:
        raise _refused(f"Sec-Fetch-Site is {site!r}")
    if site is None and origin is not None and not _is_same(origin, request):
        raise _refused(f"Origin is {origin!r} and Host {request.headers.get('host', '')!r}")


def is_json(content_type: str) -> bool:
    """Whether a Content-Type is one of JSON."""
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


def _is_same(origin: str, request: Request) -> bool:
    try:
        parts = urlsplit(origin)
        port = parts.port or _PORTS.get(parts.scheme)
        host = urlsplit(f"//{request.headers.get('host', '')}")
        # A proxy that ends TLS speaks http to us: without a port of its own, the host has that of the origin.
        return parts.hostname is not None and (parts.hostname, port) == (
            host.hostname,
            host.port or _PORTS.get(parts.scheme),
        )
    except ValueError:
        return False


def _refused(why: str) -> Problem:
    return Problem(
        403,
        f"this change was asked for by another site ({why}): open the dashboard under its own address, "
        "or send an API token as Authorization: Bearer",
        kind="cross-site",
    )
