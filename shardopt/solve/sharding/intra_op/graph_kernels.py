"""What the devices' compiler makes of a graph, whatever its shardings."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from shardopt.graph.op_graph import OpGraph
from shardopt.hardware.cluster import Fusing
from shardopt.solve.sharding.compilers.compiler import execution_of
from shardopt.solve.sharding.intra_op.cheap_to_clone import find_cheap_to_clone
from shardopt.solve.sharding.kernels.execution_order import ExecutionOrder
from shardopt.solve.sharding.kernels.fusion import Fusion
from shardopt.solve.sharding.kernels.kernel_bytes import Accesses, kernel_accesses
from shardopt.solve.sharding.kernels.merged_kernels import find_kernels


@dataclass(frozen=True, eq=False)
class GraphKernels:
    """Each is found once, for all meshes on which the graph is looked at."""

    graph: OpGraph
    fusing: Fusing

    @cached_property
    def cheap_to_clone(self) -> frozenset[int]:
        """See `find_cheap_to_clone`."""
        return find_cheap_to_clone(self.graph)

    @cached_property
    def fusion(self) -> Fusion:
        return find_kernels(self.graph, self.cheap_to_clone, self.fusing)

    @cached_property
    def execution(self) -> ExecutionOrder:
        return execution_of(self.graph, self.cheap_to_clone, self.fusion)

    @cached_property
    def accesses(self) -> tuple[Accesses, ...]:
        """For each operation in how many kernels it touches each of its tensors."""
        return kernel_accesses(self.graph, self.fusion)
