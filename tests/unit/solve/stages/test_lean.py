"""Shardings of a stage within its memory, by prices of a byte."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from shardopt.solve.stages.costs import cost_arrays, lean
from shardopt.solve.stages.costs.cost_arrays import MEMORY, CostArrays
from shardopt.solve.stages.costs.lazy_costs import LazyStageCosts
from shardopt.solve.stages.costs.lean import CLOSELY, ROUGHLY, Leaner, leaner
from shardopt.solve.stages.costs.sharders import Memory, PartSharding
from tests.unit.solve.stages.test_stage_costs import BYTES, problem

LIMIT = 1_000


def sharding(seconds: float, need: int) -> Leaner:
    return Leaner(PartSharding((seconds,), (0,)), Memory(need, 0, 0), need)


def cheapest_of(known: list[Leaner], asked: list[float]) -> Callable[[float], Leaner]:
    def priced(byte_seconds: float) -> Leaner:
        asked.append(byte_seconds)
        return min(known, key=lambda each: (each.seconds + byte_seconds * each.need, each.need))

    return priced


@pytest.mark.parametrize("seed", range(40))
def test_the_best_price_is_found(seed: int) -> None:
    """Against every sharding of the lower hull: those are all that prices can find."""
    rng = np.random.default_rng(seed)
    times, needs = (1 + rng.random(30)).tolist(), rng.integers(1, 3000, 30).tolist()
    known = [sharding(*each) for each in zip(times, needs, strict=True)]
    shortest = min(known, key=lambda each: (each.seconds, each.need))
    if shortest.need <= LIMIT:
        shortest = sharding(0.9, 3001)
        known.append(shortest)
    found = leaner(shortest, LIMIT, cheapest_of(known, []), (100, 0.0))
    prices = np.geomspace(1e-7, 10.0, 20_000) * shortest.seconds / LIMIT
    reached = {id(each): each for each in map(cheapest_of(known, []), prices.tolist())}
    fitting = [each.seconds for each in reached.values() if each.need <= LIMIT]
    assert found.need <= LIMIT
    assert found.seconds <= min(fitting)


def test_few_prices_come_close() -> None:
    """Seconds of 1 + 1 / bytes, convex: the best within the limit is at the limit."""
    known = [sharding(1.0 + 100.0 / need, need) for need in range(50, 3000)]
    best = 1.0 + 100.0 / LIMIT
    for effort, most, gap in ((ROUGHLY, 4, 0.03), (CLOSELY, 8, 0.002)):
        asked: list[float] = []
        found = leaner(known[-1], LIMIT, cheapest_of(known, asked), effort)
        assert found.need <= LIMIT
        assert found.seconds <= best * (1 + gap)
        assert len(asked) <= most


def test_the_leanest_where_none_fits() -> None:
    known = [sharding(1.0, 5000), sharding(2.0, 3000), sharding(4.0, 2000)]
    assert leaner(known[0], LIMIT, cheapest_of(known, []), CLOSELY) is known[2]


def test_nothing_is_asked_for_a_gain_too_small() -> None:
    asked: list[float] = []
    known = [sharding(1.0, 1500), sharding(1.0004, 900)]
    assert leaner(known[0], LIMIT, cheapest_of(known, asked), CLOSELY) is known[1]
    assert len(asked) == 1


def test_a_closer_look_lengthens_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every stage of a chain, with the memory of a device from too little to plenty, after a look
    at one price alone."""
    monkeypatch.setattr(cost_arrays, "ROUGHLY", (0, 0.0))
    monkeypatch.setattr(lean, "STRICTNESS", (1000.0,))
    closer = 0
    for limit in np.linspace(8 * BYTES, 14 * BYTES, 5).astype(int).tolist():
        arrays = LazyStageCosts(replace(problem(), memory_limit_bytes=(limit,))).arrays
        for stage in map(tuple, np.argwhere(arrays.candidates).tolist()):
            while arrays.level[stage] < MEMORY:
                arrays.refine([stage])
            before, fitted = arrays.seconds[stage], _need(arrays, stage) <= limit
            arrays.polish(stage, 1, 0)
            assert arrays.seconds[stage] <= before
            assert not fitted or _need(arrays, stage) <= limit
            closer += arrays.seconds[stage] < before
    assert closer


def _need(arrays: CostArrays, stage: tuple[int, int, int]) -> float:
    """Of a stage with as many microbatches in flight as stages of its size behind it make."""
    start, end, _ = stage
    behind = -(-(arrays.problem.num_layers - end) // (end - start))
    in_flight = min(arrays.problem.num_microbatches, 1 + behind)
    inside = arrays.fixed_bytes[stage] + in_flight * arrays.activation_bytes[stage]
    return max(float(inside), float(arrays.outside_bytes[stage]))
