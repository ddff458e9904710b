"""XLA exchanges what was planned for random programs under random plans, and for attention whose
sequence is split (`python -m benchmarks.cost.random_agreement` draws more of them)."""

from __future__ import annotations

import pytest

from benchmarks.cost.random_agreement import context_case, differences, random_case

_UNEVEN = ("3", "2x3", "8", "5")


def test_random_plans_on_meshes_that_divide_nothing() -> None:
    """518 is a reversal past empty tiles, 725 a slice of what a pad did not add."""
    seeds = (0, 1, 2, 518, 725)
    assert differences(seeds, ("3", "2x3", "8", "2x4", "2x2x2", "5"), random_case) == (5, 0)
    assert differences(range(4), _UNEVEN, random_case) == (4, 0)


def test_attention_under_a_method_of_context_parallelism() -> None:
    assert differences(range(2), ("4",), context_case) == (2, 0)


@pytest.mark.slow
def test_attention_under_each_method_of_context_parallelism() -> None:
    methods = [context_case(seed, ("4", "2x4"))[1].plan for seed in range(6)]
    assert sorted({*methods}) == ["context-gather", "ring", "ulysses"]
    assert differences(range(6), ("4", "2x4"), context_case) == (6, 0)
