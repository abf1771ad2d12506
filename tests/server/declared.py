"""The shop as a worker of its own process loads it: with a schedule that code declares."""

from __future__ import annotations

from typing import Any

from aaiclick_queue import job
from tests.server import shop


@job("yearly", schedule="0 3 1 1 *")
def yearly() -> Any:
    return shop.clean(None)
