"""Collectives that run beside computing: which they are, and what that saves."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardopt.cost.collectives import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, Step
from shardopt.graph.op_graph import Op, OpGraph, Tensor
from shardopt.hardware.cluster import COMBINED_TENSORS, Cluster, HostGroup
from shardopt.hardware.cluster_file import load_cluster
from shardopt.mesh.mesh import Mesh
from shardopt.solve.sharding.intra_op.overlap import (
    LEAST_SHARE,
    beside_computing,
    in_pieces_share,
    least_share,
    saved_seconds,
)
from shardopt.solve.sharding.strategies.costs import CommunicationCosts

WEIGHT, INPUT, CAST, HIDDEN, GELU, NEXT, GRADIENT, SUM, TOTAL = range(9)


def graph() -> OpGraph:
    """A program with two products behind each other and the gradient of a weight, which is added to
    a sum; and one behind it that reads what the first makes."""
    ops = (
        Op("convert", (WEIGHT,), (CAST,), None, group=0),
        Op("dot_general", (INPUT, CAST), (HIDDEN,), None, group=0),
        Op("tanh", (HIDDEN,), (GELU,), None, group=0),
        Op("dot_general", (GELU, CAST), (NEXT,), None, group=0),
        Op("dot_general", (GELU, NEXT), (GRADIENT,), None, group=0),
        Op("add", (SUM, GRADIENT), (TOTAL,), None, group=0),
        Op("dot_general", (NEXT, TOTAL), (9,), None, group=1),
    )
    tensors = (Tensor((8, 8), "f32", 4),) * 10
    return OpGraph(tensors, ops, (WEIGHT, INPUT, SUM), (9,))


def test_what_was_there_before_a_program_is_gathered_ahead() -> None:
    is_ready, _ = beside_computing(graph())
    assert is_ready(1, INPUT) and is_ready(1, CAST) and is_ready(3, CAST)
    assert not is_ready(3, GELU) and not is_ready(4, NEXT)
    assert is_ready(6, NEXT), "made by the program before"


def test_what_no_product_of_the_program_waits_for_is_reduced_behind_them() -> None:
    _, late = beside_computing(graph())
    assert {4, 5, 6} == late, "a gradient, its sum, and the end of the next program"


def test_products_in_pieces_are_beside_their_gathers_and_scatters() -> None:
    product, add = (Op(name, (0, 1), (2,), None) for name in ("dot_general", "add"))
    plain = replace(load_cluster("h100-sxm").groups[0], overlap=True)
    pieces = replace(plain, windowed_products=True)
    for kind, runs in ((ALL_GATHER, True), (REDUCE_SCATTER, True), (ALL_REDUCE, False)):
        step = Step(kind, ("x",), 1024)
        assert in_pieces_share(pieces, product, step) == runs * pieces.pieces_share
        assert in_pieces_share(pieces, add, step) == in_pieces_share(plain, product, step) == 0
    assert pieces.pieces_share == 1 - 24 / 132 > pieces.overlap_share
    assert replace(pieces, windowed_share=0.25).pieces_share == 0.25
    alone = replace(pieces, overlap=None)
    assert in_pieces_share(alone, product, Step(ALL_GATHER, ("x",), 1024)) == 0


def test_kinds_that_are_awaited_run_beside_nothing_as_a_whole() -> None:
    group = replace(load_cluster("tpu-v5e").groups[0], windowed_products=True)
    assert group.awaited == (REDUCE_SCATTER,)
    assert group.overlap_share_of(ALL_GATHER) == group.overlap_share == 1
    assert group.overlap_share_of(REDUCE_SCATTER) == 0
    product, scatter = Op("dot_general", (0, 1), (2,), None), Step(REDUCE_SCATTER, ("x",), 1024)
    assert in_pieces_share(group, product, scatter) == 1, "in pieces they are permutes"
    assert replace(group, awaited=None).overlap_share_of(REDUCE_SCATTER) == 1


def hosts_of(combined_bytes: float | None) -> HostGroup:
    group = load_cluster("h100-sxm:2x8").groups[0]
    return replace(group, overlap=True, combined_bytes=combined_bytes)


@pytest.mark.parametrize("kind", [ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE])
def test_small_collectives_take_their_share_of_a_large_one(kind: str) -> None:
    mesh, most = Mesh("m", (("x", 16),), tuple(range(16))), 1e8
    steps = [Step(kind, ("x",), bytes) for bytes in (4.0, 1e3, 1e6, most, 4 * most)]
    links, plain = (
        CommunicationCosts(Cluster("two hosts", (hosts_of(bytes),)), mesh) for bytes in (most, None)
    )
    for step in steps:
        alone, combined = links.seconds((step,)), links.combined_seconds(step)
        assert plain.combined_seconds(step) == alone
        assert alone / COMBINED_TENSORS <= combined <= alone
        assert (combined < alone) == (step.bytes < most)
    whole = links.seconds((steps[3],))
    assert links.combined_seconds(steps[2]) == pytest.approx(whole / 100)


def test_bounds_are_lower_where_collectives_are_combined() -> None:
    groups = (replace(hosts_of(None), overlap=None), hosts_of(None), hosts_of(1e6))
    assert [least_share(group) for group in groups] == [1, LEAST_SHARE, 1 / (COMBINED_TENSORS + 1)]


@given(st.floats(0, 1e3), st.floats(0, 1e3), st.floats(0, 1e3))
def test_a_program_takes_the_longer_of_both(compute: float, beside: float, awaited: float) -> None:
    both = compute + beside + awaited
    seconds = both - saved_seconds(compute, beside)
    assert seconds == pytest.approx(max(compute, beside) + awaited)
    assert LEAST_SHARE * both <= seconds * (1 + 1e-9) and seconds <= both
