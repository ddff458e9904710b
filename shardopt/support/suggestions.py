"""What to say of a name that is not known."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

_MOST_LISTED = 60


def unknown_name(what: str, name: str, known: Sequence[str]) -> str:
    """`unknown schedule: 'gpip'; did you mean 'gpipe'?`, or all known names where they are few."""
    return f"unknown {what}: '{name}'{suggestion(name, known)}"


def suggestion(name: str, known: Sequence[str]) -> str:
    """The end of such a message."""
    by_folded, folded = {each.lower(): each for each in known}, name.lower()
    begun = [each for each in by_folded if len(folded) > 1 and each.startswith(folded)]
    # Of few letters in another order, the ratio of equal runs is low.
    swapped = [each for each in by_folded if sorted(each) == sorted(folded)]

    def alike(ratio: float) -> list[str]:
        return get_close_matches(folded, by_folded, n=1, cutoff=ratio)

    close = alike(0.8) or begun or swapped or alike(0.55)
    if close:
        return f"; did you mean '{by_folded[close[0]]}'?"
    return f"; expected one of {', '.join(known)}" if 0 < len(known) <= _MOST_LISTED else ""
