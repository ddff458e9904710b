"""Words of an option as text: short, and nothing lost."""

from __future__ import annotations

import re
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardopt.options.names import IntraOp, MeshIntraOp
from shardopt.options.words import words_text


def read(text: str) -> list[str]:
    """All words that a text stands for."""
    words = []
    for part in text.split(" | "):
        word, _, endings = part.partition("[")
        words += [
            word,
            *(word + ending for ending in endings.removesuffix("]").split("|") if ending),
        ]
    return words


@pytest.mark.parametrize("choices", [IntraOp, MeshIntraOp])
def test_methods_take_little_more_than_half_of_the_text(choices: object) -> None:
    words = get_args(choices)
    text = words_text(words)
    assert sorted(read(text)) == sorted(words)
    assert len(text) < 0.6 * len(" | ".join(words))
    assert "ulysses-megatron[-zero1|-zero2|-zero3]" in text


def test_words_without_common_beginnings_stay() -> None:
    assert words_text(["auto", "on", "off"]) == "auto | on | off"
    assert words_text(["pp-dp", "equal-op"]) == "pp-dp | equal-op"


_PARTS = st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map("-".join)


@given(st.lists(_PARTS, unique=True))
def test_nothing_is_lost(words: list[str]) -> None:
    text = words_text(words)
    assert sorted(filter(None, read(text))) == sorted(words)
    assert not re.search(r"\[[^]]*\[", text)
