"""Where files live unless a setting says otherwise; apart from the settings, whose import takes longer."""

from __future__ import annotations

import os
import sys
from pathlib import Path

SYSTEM_HOME = Path("/var/lib/aaiclick-queue")


def default_home() -> Path:
    """A folder of its own in the user's home; for root a system folder, because Postgres drops root's rights."""
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        return SYSTEM_HOME
    try:
        home = Path.home()
    except RuntimeError:  # an account without a home, as systemd and Kubernetes make them up
        return SYSTEM_HOME
    if sys.platform == "darwin":
        return home / "Library" / "Application Support" / "aaiclick-queue"
    return home / ".local" / "share" / "aaiclick-queue"
