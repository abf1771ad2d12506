"""SVG as text: elements with their attributes escaped, and numbers as short as they can be."""

from __future__ import annotations

from html import escape

from markupsafe import Markup

Value = str | float | None


def number(value: float) -> str:
    """A coordinate with one decimal at most."""
    return f"{value:.1f}".removesuffix(".0")


def tag(name: str, *inner: str, **attributes: Value) -> str:
    """One element; `class_` is class, underscores are hyphens, None leaves an attribute out."""
    told = "".join(
        f' {_name(key)}="{escape(number(value) if isinstance(value, float) else str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{told}>{''.join(inner)}</{name}>"


def text(words: object, **attributes: Value) -> str:
    """A text element."""
    return tag("text", escape(str(words)), **attributes)


def title(words: object) -> str:
    """What a pointer that rests is told."""
    return tag("title", escape(str(words)))


def picture(  # noqa: PLR0913 - one value a fact
    *inner: str, width: float, height: float, label: str, class_: str, is_image: bool = True, fills: bool = False
) -> Markup:
    """The whole drawing; one with links in it is no image to a screen reader but a group. `fills` stretches it."""
    return Markup(  # noqa: S704 - every attribute and text went through escape
        tag(
            "svg",
            *inner,
            class_=class_,
            viewBox=f"0 0 {number(width)} {number(height)}",
            width=float(width),
            height=float(height),
            role="img" if is_image else "group",
            aria_label=label,
            preserveAspectRatio="none" if fills else None,
        )
    )


def clip(words: str, most: int) -> str:
    """Words that fit, the middle left out: both ends of a name tell it apart."""
    if len(words) <= most:
        return words
    head = (most - 1) * 2 // 3
    return f"{words[:head]}…{words[len(words) - (most - 1 - head) :]}"


def _name(key: str) -> str:
    return "class" if key == "class_" else key.replace("_", "-")
