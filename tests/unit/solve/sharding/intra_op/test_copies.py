"""Which copies there are, and which are made anew of what is dropped between uses."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

from shardopt.graph.op_graph import OpGraph
from shardopt.mesh.mesh import Sharding, parse_mesh
from shardopt.solve.sharding.intra_op.copies import copies_after_others, find_copies, later_reads
from shardopt.solve.sharding.intra_op.sharded_ops import ShardedOps
from shardopt.solve.sharding.strategies.strategies import Strategy
from tests.unit.solve.sharding.op_graphs import elementwise, f32

WHOLE, SPLIT = Sharding(((),)), Sharding((("x",),))
# A weight that lies split and is read whole, and a broadcast that is made whole and read split.
WEIGHT, BROADCAST = 0, 1


TENSOR = SimpleNamespace(shape=(8,), itemsize=4)


def _read_in_turn(fused: frozenset[int]) -> ShardedOps:
    read, wanted = (WEIGHT, BROADCAST) * 2, {WEIGHT: WHOLE, BROADCAST: SPLIT}
    sharded = SimpleNamespace(
        graph=SimpleNamespace(
            ops=[SimpleNamespace(operands=(tensor,)) for tensor in read],
            tensors={WEIGHT: TENSOR, BROADCAST: TENSOR},
        ),
        mesh=parse_mesh("2"),
        strategies=[SimpleNamespace(operands=(wanted[tensor],)) for tensor in read],
        shardings={WEIGHT: SPLIT, BROADCAST: WHOLE},
        cheap_to_clone=frozenset(),
        fused=fused,
        origin=lambda tensor: tensor,
    )
    return cast(ShardedOps, sharded)


def test_what_was_dropped_is_copied_again() -> None:
    sharded = _read_in_turn(frozenset())
    again = copies_after_others(sharded, range(4), (frozenset({WEIGHT, BROADCAST}),))
    assert again == {(WEIGHT, WHOLE, 2), (BROADCAST, SPLIT, 3)}


def test_slices_that_readers_take_on_their_way_are_no_copies() -> None:
    """A broadcast of a gain over all tokens would lie whole on every device, behind a barrier. The
    weight was dropped before it was read, whether or not its own readers are fused."""
    for fused in (frozenset({BROADCAST}), frozenset({WEIGHT, BROADCAST})):
        again = copies_after_others(
            _read_in_turn(fused), range(4), (frozenset({WEIGHT, BROADCAST}),)
        )
        assert again == {(WEIGHT, WHOLE, 2)}


def test_a_copy_made_anew_is_shared_by_those_behind_it_in_the_program() -> None:
    """Whichever runs first: the one in front of it has a copy of its own, and a barrier before the
    first of them makes none."""
    row = (8,)
    graph = OpGraph(
        (f32(*row),) * 3,
        (elementwise("tanh", row, (0,), 1), elementwise("tanh", row, (0,), 2)),
        (0,),
        (1, 2),
    )
    wanted = SimpleNamespace(operands=(WHOLE,), results=(WHOLE,), unscattered=(WHOLE,))
    sharded = ShardedOps(
        graph,
        parse_mesh("2"),
        {0: SPLIT, 1: WHOLE, 2: WHOLE},
        dict.fromkeys((0, 1), cast(Strategy, wanted)),
        frozenset(),
        frozenset(),
        frozenset(),
    )
    backwards = [(0, 1), (1, 0)]

    def spans(*fresh: int) -> list[tuple[int, int]]:
        anew = frozenset((0, WHOLE, op) for op in fresh)
        copies = find_copies(replace(sharded, fresh=anew), backwards)
        return [(copy.start, copy.stop) for copy in copies]

    assert spans() == spans(0) == [(0, 2)]
    assert spans(1) == spans(0, 1) == [(0, 1), (1, 2)]
    assert list(later_reads(sharded)) == [(0, WHOLE, 1)]
