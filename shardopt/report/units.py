"""Figures as a person reads them."""

from __future__ import annotations


def seconds_text(seconds: float) -> str:
    """Three digits, in seconds from one second on, else in milliseconds."""
    if seconds >= 1:
        return f"{seconds:,.0f} s" if seconds >= 100 else f"{seconds:.3g} s"
    return f"{1e3 * seconds:.3g} ms"


def bytes_text(count: float) -> str:
    size, unit = float(count), "B"
    for bigger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, bigger
    return f"{size:.4g} {unit}"
