"""The testing kit: tasks in line, a real queue in each test, time that passes on command, runs that are killed.

Usable without pytest; the plugin `aaiclick_queue.pytest_plugin` gives the same as fixtures.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .ageing import Clock
    from .faults import kill_here
    from .inline import Eager, eager
    from .kit import QueueUnderTest
    from .seen import SeenTask

_HOMES = {
    "Clock": "ageing",
    "Eager": "inline",
    "QueueUnderTest": "kit",
    "SeenTask": "seen",
    "eager": "inline",
    "kill_here": "faults",
}

__all__ = ["Clock", "Eager", "QueueUnderTest", "SeenTask", "eager", "kill_here"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value
