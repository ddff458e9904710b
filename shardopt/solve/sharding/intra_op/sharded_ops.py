"""Operations that have a strategy each: what a solution says of them before anything is derived
from it."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass

from shardopt.graph.op_graph import OpGraph
from shardopt.mesh.mesh import Mesh, Sharding
from shardopt.solve.sharding.strategies.strategies import Strategy

# A reader that makes a copy of an operand anew, although an earlier reader had one, for itself and
# those behind it in the program: (tensor, sharding of the copy, operation).
FreshCopies = Set[tuple[int, Sharding, int]]
# Sets of tensors: a copy of one in another sharding is dropped where one of its set is read next.
Transient = tuple[frozenset[int], ...]


@dataclass(frozen=True)
class ShardedOps:
    """Strategies of operations of `graph` on `mesh`, in program order, and the shardings of all
    that these read and make.

    A tensor of `cheap_to_clone` (a constant, say) is made once more for each reader that wants
    another sharding; one of `fused` is made in the kernels of its readers. Copies of `fresh` are
    made anew for theirs."""

    graph: OpGraph
    mesh: Mesh
    shardings: Mapping[int, Sharding]
    strategies: Mapping[int, Strategy]
    cheap_to_clone: Set[int]
    fused: Set[int]
    fresh: FreshCopies

    def origin(self, tensor: int) -> int:
        """The value that markers hand on as `tensor` without moving it: they share what becomes of
        it."""
        handed_on = self.graph.handed_on
        while tensor in handed_on and self._lies_as(tensor, handed_on[tensor]):
            tensor = handed_on[tensor]
        return tensor

    def _lies_as(self, tensor: int, other: int) -> bool:
        return other in self.shardings and self.shardings[tensor] == self.shardings[other]


def local_bytes(graph: OpGraph, mesh: Mesh, tensor: int, sharding: Sharding) -> int:
    """Bytes a device holds of a tensor."""
    value = graph.tensors[tensor]
    return sharding.local_elements(mesh, value.shape) * value.itemsize
