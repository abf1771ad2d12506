"""Values of options as people write them: JSON arguments, durations, moments."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from .. import durations
from .program import USAGE, fail


def seconds(text: str) -> float:
    """The type of an option that is a duration: 90, 90s, 30m, 1h30m or 2d."""
    found = durations.duration(text.strip())
    if found is None:
        raise click.BadParameter(f"{text!r} is no duration: write {durations.EXAMPLES}")
    return found


def arguments(text: str) -> dict[str, Any]:
    """--kwargs; ends the command with exit code 2 when it is no JSON object."""
    import json

    try:
        value = json.loads(text)
    except ValueError as error:
        fail(f"--kwargs is no JSON ({error})", """write it as --kwargs '{"name": "Ada"}'""", code=USAGE)
    if not isinstance(value, dict):
        fail("--kwargs is no JSON object", """write it as --kwargs '{"name": "Ada"}'""", code=USAGE)
    from ..redaction import SIGN, masked_in

    if names := masked_in(value):
        told = f"--kwargs has {SIGN} as {', '.join(names[:5])}, which is shown instead of a secret"
        fail(told, "give the secret itself, or leave the argument out", code=USAGE)
    return value


def moment(option: str, text: str | None, zone: str) -> datetime | None:
    """A day or a moment in ISO form, in the zone where it names none; ends the command when it is neither."""
    if text is None:
        return None
    from ..zones import check_zone

    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        fail(
            f"{option} {text!r} is no moment",
            "write it as 2027-03-28, 2027-03-28T08:00 or 2027-03-28T08:00:00+02:00",
            code=USAGE,
        )
    if found.tzinfo is None:
        from zoneinfo import ZoneInfo

        found = found.replace(tzinfo=ZoneInfo(check_zone(zone)))
    return found
