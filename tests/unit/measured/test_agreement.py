"""Errors, order and regret of predictions."""

from __future__ import annotations

import pytest

from shardopt.measured.agreement import Pairing, agreement, rank_correlation, regret


def _pairings(predicted: list[float], measured: list[float]) -> list[Pairing]:
    pairs = zip(predicted, measured, strict=True)
    return [Pairing(str(n), "group", "model", p, m) for n, (p, m) in enumerate(pairs)]


def test_perfect_predictions() -> None:
    summary = agreement("group", _pairings([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0]))
    assert (summary.median_error, summary.mean_error, summary.bias) == (
        0.0,
        0.0,
        pytest.approx(0.0),
    )
    assert (summary.rank_correlation, summary.regret) == (pytest.approx(1.0), 0.0)


def test_errors_are_relative_to_what_was_measured() -> None:
    summary = agreement("group", _pairings([2.0, 0.5, 1.0], [1.0, 1.0, 1.0]))
    assert (summary.median_error, summary.mean_error) == (0.5, 0.5)
    assert summary.bias == pytest.approx(0.0)  # twice as much and half as much
    assert (summary.rankings, summary.rank_correlation, summary.regret) == (0, None, None)


def test_order_and_regret() -> None:
    reversed_order = _pairings([4.0, 3.0, 2.0, 1.0], [1.0, 2.0, 3.0, 4.0])
    assert rank_correlation(reversed_order) == pytest.approx(-1.0)
    assert regret(reversed_order) == pytest.approx(3.0)


def test_equal_values_share_a_rank() -> None:
    # ranks 0.5, 0.5, 2 against 0, 1, 2: Spearman's formula for ties gives the square root of 3/4
    assert rank_correlation(_pairings([1, 1, 2], [1, 2, 3])) == pytest.approx(0.75**0.5)
    assert rank_correlation(_pairings([1, 1, 1], [1, 2, 3])) == 0.0
