"""How far predictions are from measurements: errors, order, and what trusting the order costs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import fmean, median

# An order of fewer plans says little.
LEAST_RANKED = 4


@dataclass(frozen=True)
class Pairing:
    """A predicted and a measured figure of one row. Rows of equal `ranking` are plans of one model
    on one machine, which a planner chooses between; the empty text is in no such group."""

    row: str
    group: str
    ranking: str
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """Relative to what was measured; positive where the prediction is too high."""
        return self.predicted / self.measured - 1


@dataclass(frozen=True)
class Agreement:
    """Of the rows of one group: absolute relative errors, the factor by which predictions are too
    high in the geometric mean, less one, and, over `rankings` sets of plans of one model on one
    machine, the median of Spearman's rank correlation and the largest regret: how much longer the
    plan that was predicted to be the fastest took than the fastest one."""

    group: str
    rows: int
    median_error: float
    mean_error: float
    bias: float
    rankings: int
    rank_correlation: float | None
    regret: float | None


def agreement(group: str, pairings: Sequence[Pairing]) -> Agreement:
    """Of at least one row. Rankings with fewer than `LEAST_RANKED` plans are left out."""
    errors = [abs(pairing.error) for pairing in pairings]
    ranked = [ranking for ranking in by_ranking(pairings) if len(ranking) >= LEAST_RANKED]
    return Agreement(
        group=group,
        rows=len(pairings),
        median_error=median(errors),
        mean_error=fmean(errors),
        bias=exp(fmean(log(p.predicted / p.measured) for p in pairings)) - 1,
        rankings=len(ranked),
        rank_correlation=median(map(rank_correlation, ranked)) if ranked else None,
        regret=max(map(regret, ranked)) if ranked else None,
    )


def by_ranking(pairings: Iterable[Pairing]) -> tuple[tuple[Pairing, ...], ...]:
    """Plans of one model on one machine, in the order of the first of each."""
    rankings: dict[str, list[Pairing]] = {}
    for pairing in pairings:
        if pairing.ranking:
            rankings.setdefault(pairing.ranking, []).append(pairing)
    return tuple(map(tuple, rankings.values()))


def rank_correlation(pairings: Sequence[Pairing]) -> float:
    """Spearman's; equal values share the mean of their ranks. 0 where all values of a side are
    equal."""
    return _correlation(
        _ranks([pairing.predicted for pairing in pairings]),
        _ranks([pairing.measured for pairing in pairings]),
    )


def regret(pairings: Sequence[Pairing]) -> float:
    """Relative to the fastest measured plan."""
    chosen = min(pairings, key=lambda pairing: pairing.predicted)
    return chosen.measured / min(pairing.measured for pairing in pairings) - 1


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(values)
    places: dict[float, list[int]] = {}
    for place, value in enumerate(order):
        places.setdefault(value, []).append(place)
    return [fmean(places[value]) for value in values]


def _correlation(first: Sequence[float], second: Sequence[float]) -> float:
    means = fmean(first), fmean(second)
    shifted = [(a - means[0], b - means[1]) for a, b in zip(first, second, strict=True)]
    spread = sum(a * a for a, _ in shifted) * sum(b * b for _, b in shifted)
    return sum(a * b for a, b in shifted) / spread**0.5 if spread else 0.0
