"""Which copies of what is dropped between uses are made anew."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from shardopt.mesh.mesh import Sharding, parse_mesh
from shardopt.solve.sharding.intra_op.copies import copies_after_others
from shardopt.solve.sharding.intra_op.sharded_ops import ShardedOps

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
