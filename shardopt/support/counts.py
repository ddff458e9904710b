"""Numbers of things, as people write them."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """The number and the noun: "1 batch", "2 batches"."""
    return f"{number} {plural(number, noun)}"


def plural(number: int, noun: str) -> str:
    """The noun for so many."""
    if number == 1:
        return noun
    return f"{noun}es" if noun.endswith(("ch", "sh", "s", "x")) else f"{noun}s"
