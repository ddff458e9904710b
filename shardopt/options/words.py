"""The words that an option is one of, as text that is short enough to read."""

from __future__ import annotations

from collections.abc import Sequence


def words_text(words: Sequence[str], separator: str = " | ") -> str:
    """The words in their order; one that others only add an ending to stands with these endings in
    brackets: `ring`, `ring-zero1` and `ring-zero2` are `ring[-zero1|-zero2]`."""
    stem_of = {word: word.rpartition("-")[0] for word in words}
    stems = set(stem_of.values())
    endings: dict[str, list[str]] = {word: [] for word in words}
    for word, stem in stem_of.items():
        if stem in endings and word not in stems:
            endings[stem].append(word.removeprefix(stem))
            del endings[word]
    return separator.join(
        f"{word}[{'|'.join(found)}]" if found else word for word, found in endings.items()
    )
