"""The portal: an event loop in a thread of its own, for callers that have none. One a process, made anew after fork."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from .errors import WrongContext

T = TypeVar("T")

_lock = threading.Lock()
_portal: tuple[int, asyncio.AbstractEventLoop] | None = None


def portal_loop() -> asyncio.AbstractEventLoop:
    """The loop of the portal's thread, started on first use in this process."""
    global _portal  # noqa: PLW0603 - one a process is the point
    with _lock:
        if _portal is None or _portal[0] != os.getpid():
            loop = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="aaiclick-queue portal", daemon=True).start()
            _portal = (os.getpid(), loop)
        return _portal[1]


def submit(coroutine: Coroutine[Any, Any, T]) -> T:
    """The coroutine's result, waited for in this thread: for calls that take a round trip and no more."""
    running = asyncio.run_coroutine_threadsafe(coroutine, portal_loop())
    try:
        return running.result()
    except BaseException:
        running.cancel()  # Ctrl-C: nobody would take its answer
        raise


def run_blocking(coroutine: Coroutine[Any, Any, T], *, instead: str) -> T:
    """The coroutine's result, waited for in this thread; refused where that would block a running event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return submit(coroutine)
    coroutine.close()
    raise WrongContext(f"this call would block the running event loop: use `{instead}` instead")


def _after_fork() -> None:
    global _lock, _portal
    _lock, _portal = threading.Lock(), None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
