"""Bytes as people write them."""

from __future__ import annotations

import re
from fractions import Fraction

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[A-Za-z]*)")


def parse_bytes(text: str) -> int:
    """`1073741824`, `512MiB`, `1.5GB`. Raises ValueError that says what is expected."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or match["unit"] not in _UNITS:
        raise ValueError(f"expected bytes such as 1073741824, 512MiB or 1.5GB, found '{text}'")
    return int(Fraction(match["number"]) * _UNITS[match["unit"]])


def format_bytes(count: int) -> str:
    """The exact number, and from a mebibyte on also a round one: `5242880 bytes (5.00 MiB)`."""
    for unit in ("TiB", "GiB", "MiB"):
        if count >= _UNITS[unit]:
            return f"{count} bytes ({count / _UNITS[unit]:.2f} {unit})"
    return f"{count} bytes"
