"""The table of docs/metrics.md, made from the families: `python -m tests.project.metrics_table` writes it there."""

from __future__ import annotations

from pathlib import Path

from aaiclick_queue.metric_families import FAMILIES, PREFIX, Scope

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
TABLES: dict[str, Scope] = {"process": "process", "state": "state"}


def metrics_table(scope: Scope) -> str:
    """One row a metric."""
    rows = [
        f"| `{PREFIX}{one.name}` | {one.kind} | {', '.join(f'`{label}`' for label in one.labels) or '–'} | {one.text} |"
        for one in FAMILIES.values()
        if one.scope == scope
    ]
    return "\n".join(["| name | type | labels | meaning |", "|---|---|---|---|", *rows, ""])


def parts(text: str, scope: Scope) -> tuple[str, str, str]:
    """What stands before the table, the table between its marks, and what follows."""
    begin, end = f"<!-- {scope} -->\n", f"<!-- /{scope} -->"
    before, rest = text.split(begin, 1)
    table, after = rest.split(end, 1)
    return before + begin, table, end + after


if __name__ == "__main__":
    page = PAGE.read_text()
    for scope in TABLES.values():
        before, _, after = parts(page, scope)
        page = before + metrics_table(scope) + after
    PAGE.write_text(page)
