"""How many bits an element of a tensor takes, from the name of its type."""

from __future__ import annotations

from functools import cache

# What the digits of a type's name do not tell: a predicate takes a whole byte.
_BITS = {"i1": 8, "index": 64}


@cache
def element_bits(text: str) -> int:
    if text in _BITS:
        return _BITS[text]
    if text.startswith("complex<"):
        return 2 * element_bits(text[8:-1])
    # Two characters: no element type has three digits, and those behind (`f8E4M3FN`) are no bits.
    digits = "".join(
        character
        for character in text.removeprefix("b").lstrip("fuisTF")[:2]
        if character.isdigit()
    )
    return max(8, int(digits or 8))
