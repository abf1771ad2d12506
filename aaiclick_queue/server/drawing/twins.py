"""The numbers of a chart as a table under it, for those who cannot see the chart, or want to copy from it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from html import escape

from markupsafe import Markup

from .svg import tag

MOMENT = "Time (UTC)"


def twin(heads: Sequence[str], rows: Iterable[Sequence[object]], *, label: str) -> Markup:
    """A table that is folded away; None is a dash, and rows without a number are left out."""
    head = "".join(tag("th", escape(word), scope="col") for word in heads)
    body = "".join(_row(one) for one in rows if any(one[1:]))
    table = tag("table", tag("caption", escape(label)), tag("thead", tag("tr", head)), tag("tbody", body))
    inner = tag("div", table, class_="scrolls", tabindex="0", role="group", aria_label=label)
    return Markup(  # noqa: S704 - every attribute and text went through escape
        tag("details", tag("summary", "Show as table"), inner, class_="twin")
    )


def _row(values: Sequence[object]) -> str:
    first, *others = (_word(one) for one in values)
    return tag("tr", tag("th", first, scope="row"), *(tag("td", one) for one in others))


def _word(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, datetime):
        return f"{value:%d %b %H:%M}"
    if isinstance(value, float):
        return f"{value:,.3f}".rstrip("0").rstrip(".")
    return f"{value:,}" if isinstance(value, int) else escape(str(value))
