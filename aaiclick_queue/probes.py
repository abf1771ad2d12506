"""Probes: a tiny HTTP server in a thread of its own, which answers while user code blocks the event loop.

/livez, /readyz and /startupz judge vitals; /metrics gives the meters. None of them asks Postgres or Redis.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, Self
from urllib.parse import urlsplit

from .errors import MissingExtra, PortInUse
from .vitals import Verdict, Vitals, live, ready, started

log = logging.getLogger("aaiclick_queue.probes")

LOOK_SECONDS = 1.0
READ_SECONDS = 5.0
AGAIN_SECONDS = 1.0
HEAD_LIMIT = 8192


class Address(NamedTuple):
    """Where probes are answered."""

    host: str
    port: int


class Answer(NamedTuple):
    """One HTTP answer."""

    status: str
    body: bytes
    kind: str = "application/json"


class Probes:
    """The probe port of a process: `with Probes(address, vitals, loop):`."""

    def __init__(
        self, address: Address, vitals: Callable[[], Vitals], loop: asyncio.AbstractEventLoop, *, waits: bool = False
    ) -> None:
        """`loop` is watched; `waits`: a port that is in use is tried again, as its holder is on its way out."""
        self.address = address
        self._vitals = vitals
        self._watched = loop
        self._waits = waits
        self._seen = time.monotonic()
        self._bound = threading.Event()
        self._failed: OSError | None = None
        self._loop = asyncio.new_event_loop()
        self._task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._main, name="aaiclick-queue probes", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._bound.wait(READ_SECONDS)
        if self._failed is not None:
            host, port = self.address
            raise PortInUse(
                f"--probe-port {port}: {host}:{port} cannot be listened on "
                f"({os.strerror(self._failed.errno or 0).lower()}): give a free port, or 0 for any"
            )
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(RuntimeError):  # it is closed
            self._loop.call_soon_threadsafe(self._stop)
        self._thread.join(timeout=2)

    def vitals(self) -> Vitals:
        """Those of the process, with the event loop's last sign of life as seen from here."""
        return self._vitals()._replace(loop_seen=self._seen)

    def _main(self) -> None:
        with suppress(asyncio.CancelledError), asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._run())

    async def _run(self) -> None:
        self._task = asyncio.current_task()
        try:
            server = await self._listen()
        except OSError as error:
            self._failed = error
            self._bound.set()
            return
        async with server:
            await self._watch()

    def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _listen(self) -> asyncio.Server:
        while True:
            try:
                server = await asyncio.start_server(self._serve, *self.address, limit=HEAD_LIMIT)
            except OSError:
                if not self._waits:
                    raise
                if not self._bound.is_set():
                    log.warning("port %d for probes is in use: waiting until it is free", self.address.port)
                self._bound.set()
                await asyncio.sleep(AGAIN_SECONDS)
            else:
                self.address = Address(self.address.host, server.sockets[0].getsockname()[1])
                self._bound.set()
                return server

    async def _watch(self) -> None:
        while True:
            with suppress(RuntimeError):  # it is closed
                self._watched.call_soon_threadsafe(self._sign_of_life)
            await asyncio.sleep(LOOK_SECONDS)

    def _sign_of_life(self) -> None:
        self._seen = time.monotonic()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(READ_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                words = head.split(b"\r\n", 1)[0].decode("latin-1").split()
                answer = self._answer(*words[:2]) if len(words) == 3 else _refused("400 Bad Request")
                writer.write(_written(answer))
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            log.debug("a probe that was no HTTP request")
        finally:
            writer.close()

    def _answer(self, method: str, target: str) -> Answer:
        if method not in ("GET", "HEAD"):
            return _refused("405 Method Not Allowed")
        try:
            path, verbose = urlsplit(target).path, "verbose" in urlsplit(target).query
            if path == "/metrics":
                return _metrics()
            vitals, now = self.vitals(), time.monotonic()
            verdicts = {
                "/livez": lambda: live(vitals, now),
                "/readyz": lambda: ready(vitals, now),
                "/startupz": lambda: started(vitals),
            }
            return answered(verdicts[path](), verbose=verbose) if path in verdicts else _refused("404 Not Found")
        except Exception:
            log.exception("a probe could not be answered")
            return _refused("500 Internal Server Error")


def answered(verdict: Verdict, *, verbose: bool) -> Answer:
    """200 or 503; what is wrong is always said, every check only when asked."""
    status = "200 OK" if verdict.ok else "503 Service Unavailable"
    if verbose:
        lines = [f"[-]{name}: {wrong}" if wrong else f"[+]{name} ok" for name, wrong in verdict.checks.items()]
        lines += [f"[~]{name}: away, so this process polls" for name in verdict.degraded]
        return Answer(status, "\n".join([*lines, "ok" if verdict.ok else "failed", ""]).encode(), "text/plain")
    said = {"status": "ok" if verdict.ok else "failed"}
    wrong = {name: text for name, text in verdict.checks.items() if text}
    more = ({"wrong": wrong} if wrong else {}) | ({"degraded": verdict.degraded} if verdict.degraded else {})
    return Answer(status, json.dumps({**said, **more}).encode() + b"\n")


def _metrics() -> Answer:
    from .exposition import CONTENT_TYPE, process_metrics

    try:
        return Answer("200 OK", process_metrics(), CONTENT_TYPE)
    except MissingExtra as error:
        return Answer("501 Not Implemented", f"{error}\n".encode(), "text/plain")


def _refused(status: str) -> Answer:
    return Answer(status, json.dumps({"error": status}).encode() + b"\n")


def _written(answer: Answer) -> bytes:
    head = [
        f"HTTP/1.1 {answer.status}",
        f"Content-Type: {answer.kind}",
        f"Content-Length: {len(answer.body)}",
        "Cache-Control: no-store",
        "Connection: close",
    ]
    return "\r\n".join([*head, "", ""]).encode() + answer.body
