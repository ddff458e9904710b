"""Schedules whose order needs a test of its own: Chimera, PipeDream, PipeDream-2BW and TeraPipe, and
the cuts of tokens."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardopt.schedule.builders.pipedream import weight_versions
from shardopt.schedule.even_pipeline import EvenPipeline, least_bubble_first
from shardopt.schedule.schedules import (
    SCHEDULES,
    build_schedule,
    like,
    planned_schedules,
    searched_schedules,
)
from shardopt.schedule.token_slices import token_slices
from shardopt.support.errors import UserError
from tests.draws import draws


@pytest.mark.parametrize("meshes", [2, 4, 8, 16])
def test_chimera(meshes: int) -> None:
    """With backwards as long as forwards the bubble is (p - 2) / (2 m + p - 2): arXiv 2107.06925,
    table 2."""
    for microbatches in range(meshes, 8 * meshes + 1, meshes):
        result = EvenPipeline(meshes, microbatches, backward_seconds=1.0).simulate("chimera")
        assert result.makespan_seconds == 2 * microbatches + meshes - 2
        assert result.bubble_fraction == pytest.approx(
            (meshes - 2) / (2 * microbatches + meshes - 2)
        )
        assert (min(result.peak_in_flight), max(result.peak_in_flight)) == (meshes // 2 + 1, meshes)


def test_chimera_takes_any_number_of_microbatches() -> None:
    for count in range(1, 12):
        assert EvenPipeline(4, 2 * count).simulate("chimera").makespan_seconds >= 3 * 2 * count


@pytest.mark.parametrize("meshes", [2, 4, 8, 16])
def test_pipedream_keeps_versions_of_weights(meshes: int) -> None:
    for microbatches in range(meshes, 8 * meshes + 1, meshes):
        each, twice = (
            build_schedule(name, meshes, microbatches, training=True)
            for name in ("pipedream", "pipedream-2bw")
        )
        if microbatches >= 2 * meshes:  # with fewer the last ones leave before there are so many
            assert [weight_versions(row, delayed=False) for row in each.tasks] == list(
                range(meshes, 0, -1)
            )
        expected = min(2, microbatches // meshes)  # the first group has nothing older to use
        assert [weight_versions(row, delayed=True) for row in twice.tasks] == [expected] * meshes
        updates = [task for row in twice.tasks for task in row if task.kind == "A"]
        assert len(updates) == microbatches
        assert str(each).replace("A", "").count("B") == str(
            build_schedule("1f1b", meshes, microbatches)
        ).count("B")


def test_versions_of_one_flush_are_one() -> None:
    assert all(
        weight_versions(row, delayed=False) == 1 for row in build_schedule("1f1b", 4, 8).tasks
    )


@pytest.mark.parametrize("meshes", [2, 4, 8, 16])
def test_terapipe(meshes: int) -> None:
    """Equal slices fill the pipeline as so many times more microbatches would."""
    for microbatches in (1, meshes, 4 * meshes):
        for slices in (1, 2, 4):
            result = EvenPipeline(meshes, microbatches, chunks=slices).simulate("terapipe")
            bubble = (meshes - 1) / (slices * microbatches + meshes - 1)
            assert result.bubble_fraction == pytest.approx(bubble)
            assert result.peak_in_flight == tuple(
                slices * min(meshes - mesh, microbatches) for mesh in range(meshes)
            )


@settings(deadline=None, max_examples=draws(60))
@given(
    seed=st.integers(0, 10**6),
    meshes=st.integers(1, 9),
    microbatches=st.integers(1, 4),
    count=st.integers(1, 8),
)
def test_slices_are_the_best_of_all(seed: int, meshes: int, microbatches: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    table = rng.uniform(0.1, 1.0, (count, count))
    # A launch, work that grows with the slice, and attention to all that stands before it.
    if seed % 2:
        length, context = np.arange(1, count + 1)[:, None], np.arange(count)[None]
        table = (
            rng.uniform(0, 2)
            + length * rng.uniform(0.1, 1)
            + rng.uniform(0, 0.2) * length * (context + length / 2)
        )
    best = float("inf")
    for number in range(count):
        for inner in combinations(range(1, count), number):
            seconds = [table[end - begin - 1, begin] for begin, end in pairwise((0, *inner, count))]
            best = min(best, microbatches * sum(seconds) + (meshes - 1) * max(seconds))
    best_slices = token_slices(table, meshes, microbatches)
    assert best_slices.step_seconds == pytest.approx(best)
    assert sum(best_slices.lengths) == count
    begins = np.cumsum((0, *best_slices.lengths))
    assert best_slices.seconds == tuple(
        table[n - 1, b] for n, b in zip(best_slices.lengths, begins, strict=False)
    )


def test_unequal_slices_are_what_the_formula_says() -> None:
    """Later slices attend to more, so they are shorter; what is simulated takes no longer than the
    formula says."""
    length, context = np.arange(1, 33)[:, None], np.arange(32)[None]
    table = 0.5 + 0.1 * length + 0.01 * length * (context + length / 2)
    best_slices = token_slices(table, 4, 2)
    assert (
        list(best_slices.lengths) == sorted(best_slices.lengths, reverse=True)
        and len(best_slices.lengths) > 2
    )
    pipeline = EvenPipeline(4, 2).with_slices(table.tolist())
    assert pipeline.simulate("terapipe").makespan_seconds <= best_slices.step_seconds + 1e-9


@pytest.mark.parametrize(
    "table", [np.ones((2, 3)), np.ones(4), np.zeros((2, 2)), np.full((3, 3), np.nan)]
)
def test_tables_of_slices_are_checked(table: np.ndarray) -> None:
    with pytest.raises(UserError, match=r"square table|positive numbers"):
        token_slices(table, 2)


@pytest.mark.parametrize("name", ["pipedream", "pipedream-2bw", "terapipe"])
def test_nobody_gets_another_computation_unasked(name: str) -> None:
    assert name not in searched_schedules(True)
    assert name not in planned_schedules()
    assert like(build_schedule("1f1b", 4, 8)) != name


def test_stages_of_pipedream_are_as_old_as_they_keep_versions() -> None:
    for name in ("pipedream", "pipedream-2bw"):
        kind = SCHEDULES[name]
        rows = build_schedule(name, 4, 16, training=True).tasks
        kept = [weight_versions(row, kind.delayed) for row in rows]
        assert kind.weight_ages is not None
        assert [1 + age for age in kind.weight_ages(4)] == kept


def test_schedules_are_put_in_order_by_their_bubble() -> None:
    """Zero bubble before one and a half, more stages a mesh before fewer, 1F1B behind them."""
    names = ["1f1b", "interleaved:2", "interleaved:4", "zb-v", "interleaved:3", "dualpipe-v"]
    assert least_bubble_first(names) == [
        "dualpipe-v",
        "zb-v",
        "interleaved:4",
        "interleaved:3",
        "interleaved:2",
        "1f1b",
    ]
