"""Figures as a person reads them."""

from __future__ import annotations


def seconds_text(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"


def bytes_text(count: float) -> str:
    size, unit = float(count), "B"
    for bigger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, bigger
    return f"{size:.4g} {unit}"
