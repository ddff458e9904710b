"""Text in a picture."""

from __future__ import annotations

from xml.sax.saxutils import escape


def svg_text(
    x: float,
    y: float,
    text: str,
    *,
    anchor: str = "start",
    size: int = 11,
    weight: str = "normal",
    colour: str = "#222222",
) -> str:
    """A `<text>` element that begins, is centred or ends (`anchor`) at x, on the line y."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" '
        f'font-weight="{weight}" '
        f'fill="{colour}">{escape(text)}</text>'
    )
