"""Webhooks: the end of a job as a signed HTTP request, delivered by an ordinary task with its attempts and its limits.

The task is a hook: `tell = webhook("orders", "https://…", secret="…")`, then `@job(on_success=tell, on_failure=tell)`.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import time
from typing import Any
from urllib.parse import urlsplit

import msgspec

from .. import __version__
from ..context import current
from ..errors import BadTask, Fail
from ..flow.ending import EndedJob
from ..tasks import Task, task

SIGNATURE = "X-Aaiclick-Signature"
LATER = frozenset({408, 425, 429})  # of the 4xx: not now
MAX_ATTEMPTS = 8  # over two minutes and a half, by the usual backoff
SECONDS = 10.0


def webhook(
    name: str, url: str, *, secret: str, seconds: float = SECONDS, **options: Any
) -> Task[[EndedJob], dict[str, int]]:
    """A hook that POSTs what became of a job: at least once, signed; arguments of the job stay here."""
    where = urlsplit(url)
    if where.scheme not in ("http", "https") or not where.hostname:
        raise BadTask(f"webhook {name!r} has the address {url!r}: give one that begins with https:// or http://")
    if not secret:
        raise BadTask(f"webhook {name!r} has no secret: give the one that its receiver checks signatures with")

    given: dict[str, Any] = {"name": f"webhook {name}", "max_attempts": MAX_ATTEMPTS} | options

    @task(entrypoint=f"aaiclick_queue.webhook.{name}", **given)
    def deliver(ended: EndedJob) -> dict[str, int]:
        body = _told(ended)
        status = _post(url, body, headers_of(body, secret), seconds)
        if 200 <= status < 300:
            return {"status": status}
        if 300 <= status < 500 and status not in LATER:
            raise Fail(f"{where.hostname} refused with {status}")
        raise ConnectionError(f"{where.hostname} answered {status}")

    return deliver


def headers_of(body: bytes, secret: str, *, at: int | None = None) -> dict[str, str]:
    """The headers of a delivery; the signature is over the moment and the body, so that an old one can be told."""
    at = int(time.time()) if at is None else at
    signed = hmac.new(secret.encode(), b"%d.%s" % (at, body), hashlib.sha256).hexdigest()
    return {
        "Content-Type": "application/json",
        "User-Agent": f"aaiclick-queue/{__version__}",
        SIGNATURE: f"t={at},v1={signed}",
    }


def _told(ended: EndedJob) -> bytes:
    """The same `delivery` with every attempt, for receivers that have had it."""
    error = None if ended.error is None else {"type": ended.error.type, "message": ended.error.message}
    job = {"id": ended.id, "name": ended.name, "status": ended.status, "error": error}
    return msgspec.json.encode(
        {"type": f"job.{ended.status.lower()}", "delivery": current().idempotency_key, "job": job}
    )


def _post(url: str, body: bytes, headers: dict[str, str], seconds: float) -> int:
    """The status of the answer; a redirect is one, not a way to elsewhere."""
    where = urlsplit(url)
    kind = http.client.HTTPSConnection if where.scheme == "https" else http.client.HTTPConnection
    connection = kind(where.hostname or "", where.port, timeout=seconds)
    try:
        connection.request("POST", (where.path or "/") + (f"?{where.query}" if where.query else ""), body, headers)
        return connection.getresponse().status
    finally:
        connection.close()
