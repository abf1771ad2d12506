"""The dashboard: pages drawn by the server over the reads that the command line has too. Acts go through the API."""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI
from starlette.staticfiles import StaticFiles

from . import audit, failures, jobs, limits, operations, outbox, overview, queues, schedules, task, tasks, workers
from .trouble import install

STATIC = Path(__file__).parent.parent / "static"
__all__ = ["add_pages"]


def add_pages(app: FastAPI) -> None:
    """Put every page and what it is made of into the application."""
    for page in (overview, queues, tasks, task, jobs, workers, schedules, failures, limits, outbox, operations, audit):
        app.router.routes.extend(page.router.routes)
    install(app)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
