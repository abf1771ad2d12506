"""The operator's side: an HTTP API and a dashboard over the reads and acts that the command line has too."""

from __future__ import annotations

from ..errors import MissingExtra

try:
    from .app import create_app
except ImportError as missing:
    raise MissingExtra("aaiclick_queue.server", "server") from missing

__all__ = ["create_app"]
