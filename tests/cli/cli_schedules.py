"""Schedules that the worker processes of these tests declare."""

from __future__ import annotations

from typing import Any

from aaiclick_queue import job
from tests.cli.cli_tasks import add


@job(schedule="0 * * * *", timezone="Europe/Berlin")
def hourly() -> Any:
    return add(1, 2)
