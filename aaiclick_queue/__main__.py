"""`python -m aaiclick_queue` is `aaiclick-queue`."""

from __future__ import annotations

from .cli import main

main()
