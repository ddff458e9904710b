"""Make every edge between meshes one explicit transfer with its resharding plan.

Needs the sharded form. Afterwards a value goes to a mesh once, whatever the number of its readers
there, and every `mpmd.transfer` says which device sends which slice of the tensor to which device:

    %t = mpmd.transfer %0
        : (!mpmd.mesh_tensor<"m0", tensor<8x4xf32>, …>) -> !mpmd.mesh_tensor<"m1", …>
      =>
    %t = mpmd.transfer {shardopt.resharding =
        {strategy = "send_recv", steps = dense<…> : tensor<2x7xi64>,
         bytes = 128 : i64, seconds = 1.0e-05 : f64}} %0 : …

A row of `steps` is (phase, source device, destination device, start…, limit…); phase 0 crosses
meshes, later phases stay inside the destination. Values that one fragment makes and that one mesh
needs first in one fragment travel in one message: they are planned together, and `seconds` are
those until all of them are there. The microbatch index is known on every mesh: its transfers carry
no plan and move nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxlib.mlir import ir

from shardopt.dialect.attributes import f64, i64
from shardopt.dialect.cluster import cluster_of
from shardopt.dialect.mpmd import RESHARDING, parse_mesh_tensor, read_topology
from shardopt.dialect.program import StepProgram, read_program
from shardopt.extract.op_graph import read_tensor
from shardopt.extract.transfer_groups import transfer_groups
from shardopt.hardware.cluster import Cluster
from shardopt.hardware.cluster_file import load_cluster
from shardopt.hardware.profile_file import with_profile
from shardopt.ir.rewriting import operations
from shardopt.mesh.mesh import Mesh
from shardopt.options.names import ReshardingStrategy
from shardopt.passes.base import Pass, PassContext, plan_option
from shardopt.solve.resharding.moved_meshes import moved, on_first_hosts
from shardopt.solve.resharding.plan import ReshardingPlan, bytes_on_wire, plans_seconds
from shardopt.solve.resharding.strategies import Resharding
from shardopt.solve.resharding.transfers import plan_together


def _merge_duplicates(module: ir.Module) -> int:
    """Give all readers of one value on one mesh the same transfer; returns how many were
    removed."""
    first: dict[tuple[ir.Value, ir.Type], ir.Operation] = {}
    removed = 0
    # In program order: the first transfer of a value stands before the readers of all others.
    for op in operations(module.operation, ("mpmd.transfer",)):
        key = (op.operands[0], op.results[0].type)
        if key in first:
            op.results[0].replace_all_uses_with(first[key].results[0])
            op.erase()
            removed += 1
        else:
            first[key] = op
    return removed


def _resharding_attr(plan: ReshardingPlan, seconds: float) -> ir.DictAttr:
    steps = np.ascontiguousarray(plan.to_array(), dtype=np.int64)
    return ir.DictAttr.get(
        {
            "strategy": ir.StringAttr.get(plan.strategy),
            "steps": ir.DenseElementsAttr.get(steps),  # type: ignore[call-overload]
            "bytes": i64(bytes_on_wire(plan)),
            "seconds": f64(seconds),
        }
    )


class _Planner:
    """Plans groups of transfers; groups that are equal but for the hosts they are on have one
    plan."""

    def __init__(self, cluster: Cluster, strategy: str) -> None:
        self._cluster, self._strategy = cluster, strategy
        self._known: dict[tuple[Resharding, ...], tuple[tuple[ReshardingPlan, ...], float]] = {}

    def plans(self, group: tuple[Resharding, ...]) -> tuple[tuple[ReshardingPlan, ...], float]:
        """With the seconds until all are through."""
        first, by = on_first_hosts(group, self._cluster)
        if first not in self._known:
            plans = plan_together(first, self._cluster, self._strategy)
            self._known[first] = plans, plans_seconds(self._cluster, plans)
        plans, seconds = self._known[first]
        return tuple(moved(plan, by) for plan in plans), seconds


@dataclass(frozen=True)
class InsertTransfers(Pass):
    """See the head of the file."""

    name = "shardopt-insert-transfers"
    summary = "plan the resharding of every value that crosses meshes"

    strategy: ReshardingStrategy = plan_option("resharding")
    cluster: str = plan_option(
        "cluster", help="cluster file or preset; default: the one the module carries"
    )
    profile: str = plan_option("profile")

    def check_options(self) -> None:
        if self.cluster:
            with_profile(load_cluster(self.cluster), self.profile)

    def run(self, module: ir.Module, pm: PassContext) -> None:
        try:
            program = read_program(module)
            cluster = cluster_of(module, self.cluster, self.profile)
            meshes = {mesh.name: mesh for mesh in read_topology(program.main)}
        except ValueError as error:
            raise pm.error(module.operation, str(error)) from error
        _check_devices(program, [*meshes.values()], cluster, pm)
        # Before anything is planned: each would count, and be sent, once for every reader.
        pm.statistic("transfers merged", _merge_duplicates(module))
        planner = _Planner(cluster, self.strategy)
        count = messages = total = 0
        for ops in transfer_groups(program):
            plans, seconds = planner.plans(tuple(self._resharding(op, meshes, pm) for op in ops))
            for op, plan in zip(ops, plans, strict=True):
                op.attributes[RESHARDING] = _resharding_attr(plan, seconds)
            count += len(ops)
            messages += 1
            total += sum(map(bytes_on_wire, plans))
        pm.statistic("transfers", count)
        pm.statistic("messages", messages)
        pm.statistic("bytes on the wire", total)

    def _resharding(self, op: ir.Operation, meshes: dict[str, Mesh], pm: PassContext) -> Resharding:
        try:
            return read_resharding(op, meshes)
        except ValueError as error:
            raise pm.error(op, str(error)) from error


def read_resharding(op: ir.Operation, meshes: Mapping[str, Mesh]) -> Resharding:
    """What a transfer must do. Raises ValueError for an end without sharding or on an unknown
    mesh."""
    source, target = parse_mesh_tensor(op.operands[0].type), parse_mesh_tensor(op.results[0].type)
    for end, tensor in (("source", source), ("destination", target)):
        if tensor.sharding is None:
            raise ValueError(
                f"expected a sharding on the {end} of the transfer (run the shard phase "
                "first), found none"
            )
        if tensor.mesh not in meshes:
            raise ValueError(
                f"expected a mesh of the topology ({', '.join(meshes)}), found '{tensor.mesh}'"
            )
    assert source.sharding is not None and target.sharding is not None
    info = read_tensor(source.tensor)
    ends = (meshes[source.mesh], source.sharding), (meshes[target.mesh], target.sharding)
    return Resharding(info.shape, info.itemsize, *ends)


def _check_devices(
    program: StepProgram, meshes: Sequence[Mesh], cluster: Cluster, pm: PassContext
) -> None:
    last = cluster.num_devices - 1
    for mesh in meshes:
        device = max(mesh.devices)
        if device > last:
            message = (
                f"expected devices 0 to {last} of cluster {cluster}, found device {device} "
                f"in mesh '{mesh.name}'"
            )
            raise pm.error(program.main, message)
