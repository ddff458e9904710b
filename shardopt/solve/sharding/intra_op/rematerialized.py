"""Values that are dropped and computed again: what is held then, and which copies are made anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from shardopt.graph.op_graph import OpGraph
from shardopt.mesh.mesh import Mesh, Sharding
from shardopt.solve.sharding.intra_op.copies import TensorCopy
from shardopt.solve.sharding.intra_op.lifetimes import Lifetime
from shardopt.solve.sharding.intra_op.sharded_ops import FreshCopies
from shardopt.solve.sharding.strategies.strategies import Strategy


@dataclass(frozen=True)
class Rematerialized:
    """A value that is dropped at position `gap[0]` and recomputed at `gap[1]`, before the first
    of `readers`.

    `chain` are the operations that are run a second time, the last of which makes `tensor`, and
    `strategies` say how. `extended` are their operands that would otherwise be gone by then.
    `scratch_bytes` a device holds beside the value while the chain runs; `seconds` of one
    execution."""

    tensor: int
    chain: tuple[int, ...]
    strategies: tuple[Strategy, ...]
    readers: tuple[int, ...]
    gap: tuple[int, int]
    extended: tuple[int, ...]
    scratch_bytes: int
    seconds: float


def with_gaps(
    graph: OpGraph,
    mesh: Mesh,
    lives: Sequence[Lifetime],
    shardings: Mapping[int, Sharding],
    rematerialized: Sequence[Rematerialized],
) -> tuple[tuple[Lifetime, ...], tuple[TensorCopy, ...]]:
    """The lifetimes when values are dropped and recomputed, and what is held beside them to do
    so."""
    if not rematerialized:
        return tuple(lives), ()
    gaps = {remat.tensor: remat.gap for remat in rematerialized}
    until: dict[int, int] = {}
    scratch = []
    for remat in rematerialized:
        for tensor in remat.extended:
            until[tensor] = max(until.get(tensor, 0), remat.gap[1] + 1)
        at, op = remat.gap[1], remat.readers[0]
        scratch.append(TensorCopy(remat.tensor, None, op, at, at + 1, remat.scratch_bytes))
    pieces: list[Lifetime] = []
    for live in lives:
        live = replace(live, stop=max(live.stop, until.get(live.tensor, 0)))
        begin, end = gaps.get(live.tensor, (live.stop, live.stop))
        first = replace(live, stop=min(begin, live.stop))
        pieces += [first] if live.start < begin or live.alone else []
        last = Lifetime(live.tensor, max(live.start, end), live.stop, live.count)
        pieces += [last] if end < live.stop else []
    return tuple(pieces), tuple(scratch)


def fresh_copies(
    graph: OpGraph, strategies: Mapping[int, Strategy], rematerialized: Sequence[Rematerialized]
) -> FreshCopies:
    """Readers of values that are recomputed share no copies with those of the values before,
    whichever of them stand first in the program."""
    fresh = set[tuple[int, Sharding, int]]()
    for remat in rematerialized:
        first: dict[tuple[Sharding, bool], int] = {}
        for reader in filter(strategies.__contains__, graph.consumers()[remat.tensor]):
            wanted = strategies[reader].operands
            for tensor, target in zip(graph.ops[reader].operands, wanted, strict=True):
                if tensor == remat.tensor:
                    first.setdefault((target, reader in remat.readers), reader)
        for (target, is_late), reader in first.items():
            late = first.get((target, True))
            if is_late or (late is not None and late < reader):
                fresh.add((remat.tensor, target, reader))
    return frozenset(fresh)
