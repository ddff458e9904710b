"""Make every edge between meshes one explicit transfer with its resharding plan.

Needs the sharded form. Afterwards a value goes to a mesh once, whatever the number of its readers there, and every
`mpmd.transfer` says which device sends which box of the tensor to which device:

    %t = mpmd.transfer %0 : (!mpmd.mesh_tensor<"m0", tensor<8x4xf32>, …>) -> !mpmd.mesh_tensor<"m1", …>
      =>
    %t = mpmd.transfer {shardopt.resharding = {strategy = "send_recv", steps = dense<…> : tensor<2x7xi64>,
                        bytes = 128 : i64, seconds = 1.0e-05 : f64}} %0 : …

A row of `steps` is (phase, source device, destination device, start…, limit…); phase 0 crosses meshes, phase 1 stays
inside the destination. The microbatch index is known on every mesh: its transfers carry no plan and move nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxlib.mlir import ir

from shardopt.cost.cluster import Cluster
from shardopt.cost.mesh import Mesh
from shardopt.cost.transfers import messages_seconds
from shardopt.dialect.attributes import f64, i64
from shardopt.dialect.cluster import cluster_of
from shardopt.dialect.mpmd import RESHARDING, parse_mesh_tensor, read_topology
from shardopt.ir.graph import read_tensor
from shardopt.ir.program import read_program
from shardopt.ir.rewriting import operations
from shardopt.passes.base import Pass, PassContext, option
from shardopt.solve.resharding.plan import ReshardingPlan, bytes_on_wire
from shardopt.solve.resharding.transfers import plan_resharding


def _merge_duplicates(module: ir.Module) -> int:
    """Give all readers of one value on one mesh the same transfer; returns how many were removed."""
    first: dict[tuple[ir.Value, ir.Type], ir.Operation] = {}
    removed = 0
    for op in operations(module.operation, ("mpmd.transfer",)):
        key = (op.operands[0], op.results[0].type)
        if key in first:
            op.results[0].replace_all_uses_with(first[key].results[0])
            op.erase()
            removed += 1
        else:
            first[key] = op
    return removed


def _plan_seconds(plan: ReshardingPlan, cluster: Cluster) -> float:
    phases = (
        [(s.src_device, s.dst_device, s.elements * plan.itemsize) for s in sends]
        for sends in (plan.sends, plan.gathers)
    )
    return sum(messages_seconds(cluster, messages) for messages in phases)


def _resharding_attr(plan: ReshardingPlan, cluster: Cluster) -> ir.DictAttr:
    steps = np.ascontiguousarray(plan.to_array(), dtype=np.int64)
    return ir.DictAttr.get(
        {
            "strategy": ir.StringAttr.get(plan.strategy),
            "steps": ir.DenseElementsAttr.get(steps),  # type: ignore[call-overload]
            "bytes": i64(bytes_on_wire(plan)),
            "seconds": f64(_plan_seconds(plan, cluster)),
        }
    )


@dataclass(frozen=True)
class InsertTransfers(Pass):
    """See the head of the file."""

    name = "shardopt-insert-transfers"
    summary = "plan the resharding of every value that crosses meshes"

    strategy: Literal["auto", "send_recv", "local_allgather"] = option("auto", help="how tiles travel; auto = cheapest")
    cluster: str = option("", help="cluster file or preset; default: the one the module carries")
    profile: str = option("", help="file of `shardopt profile`: what was measured overrides the formulas")

    def run(self, module: ir.Module, pm: PassContext) -> None:
        try:
            program = read_program(module)
            cluster = cluster_of(module, self.cluster, self.profile)
            meshes = {mesh.name: mesh for mesh in read_topology(program.main)}
        except ValueError as error:
            raise pm.error(module.operation, str(error)) from error
        index = None if program.index_argument is None else program.body_block.arguments[program.index_argument]
        pm.statistic("transfers merged", _merge_duplicates(module))
        count = total = 0
        for op in operations(module.operation, ("mpmd.transfer",)):
            if index is not None and op.operands[0] == index:
                continue
            plan = self._plan(op, meshes, cluster, pm)
            op.attributes[RESHARDING] = _resharding_attr(plan, cluster)
            count, total = count + 1, total + bytes_on_wire(plan)
        pm.statistic("transfers", count)
        pm.statistic("bytes on the wire", total)

    def _plan(self, op: ir.Operation, meshes: dict[str, Mesh], cluster: Cluster, pm: PassContext) -> ReshardingPlan:
        source, target = parse_mesh_tensor(op.operands[0].type), parse_mesh_tensor(op.results[0].type)
        for end, tensor in (("source", source), ("destination", target)):
            if tensor.sharding is None:
                raise pm.error(
                    op, f"expected a sharding on the {end} of the transfer (run the shard phase first), found none"
                )
            if tensor.mesh not in meshes:
                raise pm.error(op, f"expected a mesh of the topology ({', '.join(meshes)}), found '{tensor.mesh}'")
        assert source.sharding is not None and target.sharding is not None
        info = read_tensor(source.tensor)
        return plan_resharding(
            info.shape,
            info.itemsize,
            (meshes[source.mesh], source.sharding),
            (meshes[target.mesh], target.sharding),
            self.strategy,
            lambda plan: _plan_seconds(plan, cluster),
        )
