"""The README's table of settings, made from the model: `python -m tests.project.settings_table` writes it there."""

from __future__ import annotations

from pathlib import Path

from pydantic.fields import FieldInfo

from aaiclick_queue.settings import PREFIX, Settings

README = Path(__file__).parents[2] / "README.md"
BEGIN, END = "<!-- settings -->\n", "<!-- /settings -->"


def settings_table() -> str:
    """One row a field, in the order of the model."""
    rows = [
        f"| `{PREFIX}{name.upper()}` | {_default(field)} | {field.description} |"
        for name, field in Settings.model_fields.items()
    ]
    return "\n".join(["| variable | default | what it does |", "|---|---|---|", *rows, ""])


def parts(text: str) -> tuple[str, str, str]:
    """What stands before the table, the table between the marks, and what follows."""
    before, rest = text.split(BEGIN, 1)
    table, after = rest.split(END, 1)
    return before, table, after


def _default(field: FieldInfo) -> str:
    if field.default_factory is not None:
        return "by platform"
    return "unset" if field.default is None else f"`{field.default}`"


if __name__ == "__main__":
    before, _, after = parts(README.read_text())
    README.write_text(before + BEGIN + settings_table() + END + after)
