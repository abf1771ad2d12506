"""Durations as people write them: 90s, 30m, 1h30m, 2d."""

from __future__ import annotations

import re

UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
MOST = 36600 * 86400  # seconds, 100 years: added to now it stays within the calendar
EXAMPLES = "90s, 30m, 1h30m or 2d"


def duration(text: str) -> float | None:
    """Seconds of '90', '90s', '30m', '1h30m', '2d'; None for what is no duration."""
    parts = re.findall(r"([0-9]+(?:\.[0-9]+)?)(min|[smhd]|$)", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return sum(float(number) * UNITS[unit or "s"] for number, unit in parts)
