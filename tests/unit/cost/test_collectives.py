"""Collective formulas, and resharding chains against a search over what devices hold."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from shardopt.cost.collectives import (
    Step,
    all_gather_seconds,
    all_reduce_seconds,
    all_to_all_seconds,
    broadcast_seconds,
    collective_seconds,
    permute_seconds,
    reduce_scatter_seconds,
    send_seconds,
    steps_seconds,
)
from shardopt.cost.resharding_chain import resharding_steps
from shardopt.cost.resharding_costs import ReshardingCosts
from shardopt.hardware.cluster import Cluster, Device, Link
from shardopt.mesh.mesh import Mesh, Sharding

LINK = Link(1.0, 10.0)
CLUSTER = Cluster.uniform(
    "c", 2, 4, Device("d", {"f32": 1.0}, 1, 1.0), Link(1.0, 100.0), Link(2.0, 8.0), 0.0
)
MESH = Mesh("m", (("x", 2), ("y", 4)), tuple(range(8)))
CUBE = Mesh("m", (("x", 2), ("y", 2), ("z", 4)), tuple(range(16)))


def sharding(*dims: str) -> Sharding:
    return Sharding(tuple(tuple(dim) for dim in dims))


def steps(
    src: Sharding, dst: Sharding, mesh: Mesh = MESH, shape: tuple[int, ...] = (64, 64)
) -> tuple[Step, ...]:
    return resharding_steps(src, dst, mesh, shape, 1)


def test_formulas() -> None:
    assert all_gather_seconds(LINK, 4, 400.0) == 3 + 30
    assert reduce_scatter_seconds(LINK, 4, 400.0) == 33
    assert all_reduce_seconds(LINK, 4, 400.0) == 66
    assert all_to_all_seconds(LINK, 4, 400.0) == 3 + 7.5
    assert permute_seconds(LINK, 400.0) == send_seconds(LINK, 400.0) == 41
    assert broadcast_seconds(LINK, 4, 400.0) == 82


def test_one_device_communicates_nothing() -> None:
    for formula in (
        all_gather_seconds,
        reduce_scatter_seconds,
        all_reduce_seconds,
        all_to_all_seconds,
        broadcast_seconds,
    ):
        assert formula(LINK, 1, 400.0) == 0


def test_formulas_take_arrays() -> None:
    sizes = np.array([0.0, 400.0])
    np.testing.assert_array_equal(all_reduce_seconds(LINK, 4, sizes), [6, 66])
    np.testing.assert_array_equal(
        collective_seconds(CLUSTER, MESH, "all_gather", ("y",), sizes), [3, 6]
    )


def test_gathering_axis_by_axis_moves_what_gathering_at_once_moves() -> None:
    both = all_gather_seconds(Link(0.0, 10.0), 8, 800.0)
    assert (
        all_gather_seconds(Link(0.0, 10.0), 4, 400.0)
        + all_gather_seconds(Link(0.0, 10.0), 2, 800.0)
        == both
    )


def test_placement_enters_the_price() -> None:
    assert collective_seconds(CLUSTER, MESH, "all_reduce", ("y",), 400.0) == 6 + 6
    # x: four groups of two share each network card of 8 bytes/s.
    assert collective_seconds(CLUSTER, MESH, "all_reduce", ("x",), 400.0) == 4 + 400 / 2
    # One all-to-all over both hosts: 4 · 4 of the 4 · 7 chunk sends of a host cross its card.
    local, n = 800.0, 8
    seconds = collective_seconds(CLUSTER, MESH, "all_to_all", ("x", "y"), local * n)
    assert seconds == pytest.approx(7 * 2 + 4 * 4 * (local / n) / 8)
    assert collective_seconds(CLUSTER, MESH, "permute", ("x", "y"), 100.0) == 2 + 4 * 100 / 8


def test_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown collective 'gossip'"):
        collective_seconds(CLUSTER, MESH, "gossip", ("x",), 1.0)


@pytest.mark.parametrize(
    ("src", "dst", "expected"),
    [
        (("", ""), ("xy", ""), ()),  # slices are free
        (("x", ""), ("xy", ""), ()),
        (("x", "y"), ("x", "y"), ()),
        (("x", ""), ("", ""), (Step("all_gather", ("x",), 4096),)),
        (("xy", ""), ("x", ""), (Step("all_gather", ("y",), 2048),)),
        (
            ("xy", ""),
            ("", ""),
            (Step("all_gather", ("y",), 2048), Step("all_gather", ("x",), 4096)),
        ),
        (("x", ""), ("", "x"), (Step("all_to_all", ("x",), 4096),)),
        (("xy", ""), ("x", "y"), (Step("all_to_all", ("y",), 2048),)),
        (("xy", ""), ("", "xy"), (Step("all_to_all", ("x", "y"), 4096),)),
        (("xy", ""), ("yx", ""), (Step("permute", ("x", "y"), 512),)),
        (
            ("xy", ""),
            ("y", ""),
            (Step("permute", ("x", "y"), 512), Step("all_gather", ("x",), 1024)),
        ),
        # Slicing first halves what the gather moves.
        (("x", ""), ("", "y"), (Step("all_gather", ("x",), 1024),)),
    ],
)
def test_chains(src: tuple[str, ...], dst: tuple[str, ...], expected: tuple[Step, ...]) -> None:
    assert steps(sharding(*src), sharding(*dst)) == expected


def test_same_axes_on_other_axes_of_equal_size_are_a_permute() -> None:
    assert steps(sharding("x", "y"), sharding("y", "x"), CUBE) == (
        Step("permute", ("x", "y"), 1024),
    )
    assert steps(sharding("x", "z"), sharding("y", "z"), CUBE) == (
        Step("permute", ("x", "y"), 512),
    )


def test_axes_of_size_one_never_cost_anything() -> None:
    mesh = Mesh("m", (("x", 1), ("y", 4)), tuple(range(4)))
    assert steps(sharding("xy", ""), sharding("y", "x"), mesh) == ()


def all_shardings(mesh: Mesh, rank: int) -> list[Sharding]:
    """Every sharding of a tensor of `rank` on `mesh`, axes in any order within a dimension."""
    shardings = []
    for size in range(len(mesh.axes) + 1):
        for order in itertools.permutations(mesh.axis_names, size):
            for places in itertools.product(range(rank), repeat=size):
                dims = tuple(
                    tuple(a for a, p in zip(order, places, strict=True) if p == d)
                    for d in range(rank)
                )
                shardings.append(Sharding(dims))
    return list(dict.fromkeys(shardings))


def missing_elements(src: Sharding, dst: Sharding, mesh: Mesh, shape: tuple[int, ...]) -> int:
    """Most elements one device needs under `dst` and does not hold under `src`."""
    have, need = src.tiles(mesh, shape), dst.tiles(mesh, shape)
    size = (need[..., 1] - need[..., 0]).prod(axis=1)
    overlap = np.minimum(have[..., 1], need[..., 1]) - np.maximum(have[..., 0], need[..., 0])
    return int((size - np.clip(overlap, 0, None).prod(axis=1)).max())


@pytest.mark.parametrize("mesh", [MESH, CUBE])
def test_every_pair_is_between_the_lower_bound_and_gathering_everything(mesh: Mesh) -> None:
    shape = (64, 64)
    choices = all_shardings(mesh, 2)
    for src, dst in itertools.product(choices, choices[:: max(1, len(choices) // 20)]):
        chain = steps(src, dst, mesh, shape)
        wire = sum(wire_bytes(step, mesh) for step in chain)
        local = math.prod(src.local_shape(mesh, shape))
        need = missing_elements(src, dst, mesh, shape)
        assert wire <= 64 * 64 - local  # never worse than a full all-gather
        assert (wire == 0) == (need == 0)
        if all(step.kind != "permute" for step in chain):
            assert wire >= need


def wire_bytes(step: Step, mesh: Mesh) -> float:
    n = math.prod(mesh.axis_size(axis) for axis in step.axes)
    return {"all_gather": step.bytes * (n - 1) / n, "all_to_all": step.bytes * (n - 1) / n**2}.get(
        step.kind, step.bytes
    )


def test_matrix_of_seconds_agrees_with_the_steps() -> None:
    choices = all_shardings(MESH, 2)
    chains = ReshardingCosts(CLUSTER, MESH).table(choices, choices, (64, 64), 4)
    matrix = chains.seconds
    for (i, src), (j, dst) in itertools.product(enumerate(choices), repeat=2):
        chain = resharding_steps(src, dst, MESH, (64, 64), 4)
        assert matrix[i, j] == pytest.approx(steps_seconds(CLUSTER, MESH, chain))
        assert chains.steps[i, j] == len(chain)
    assert not matrix.diagonal().any()
