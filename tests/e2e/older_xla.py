"""What XLA does otherwise before jaxlib 0.10.2, as far as tests have to know it."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import pytest

_IS_OLDER = jax.__version_info__ < (0, 10, 2)
# The account of memory is that of today's XLA, which keeps more of a transformer.
_OLDER_EXCESS = 0.2
_NEWER_TARGETS = ("custom_call:annotation",)


def check_peaks(predicted: Sequence[int], compiled: Sequence[int], tolerance: float) -> None:
    """Each predicted peak is within the tolerance of XLA's, of today."""
    most = _OLDER_EXCESS if _IS_OLDER else tolerance
    for here, there in zip(predicted, compiled, strict=True):
        assert -tolerance <= here / there - 1 <= most, f"{predicted} predicted, {compiled} compiled"


def skip_unless_compiled(example: str) -> None:
    """Skip the test of an example of an operation that XLA for CPU does not have."""
    if _IS_OLDER and example in _NEWER_TARGETS:
        pytest.skip(f"XLA for CPU has no {example} before jaxlib 0.10.2, found {jax.__version__}")
