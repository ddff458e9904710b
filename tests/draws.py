"""How much a run draws of what may be drawn at will: a run without slow tests makes a quarter of
the draws of a property, and takes the first few of many seeds. A run of all tests takes all."""

from __future__ import annotations

from typing import Any

import pytest

# Whether slow tests are left out; `tests/conftest.py` says so before any test is imported.
quick = False
_SHARE = 4


def draws(count: int) -> int:
    """How many of `count` draws this run makes."""
    return -(-count // _SHARE) if quick else count


def seeds(count: int, fast: int) -> list[Any]:
    """Parameters 0 to `count`, exclusive, of which all but the first `fast` are slow tests."""
    return [
        pytest.param(seed, marks=() if seed < fast else pytest.mark.slow) for seed in range(count)
    ]
