"""Every attribute of ours: written, printed, parsed again, read back to an equal value."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from jaxlib.mlir import ir

from shardopt.cost.summary import CostSummary
from shardopt.cost.traffic import Traffic
from shardopt.dialect.attributes import entries
from shardopt.dialect.cluster import read_cluster, write_cluster
from shardopt.dialect.mpmd import mesh_tensor_type, parse_mesh_tensor, read_topology, write_topology
from shardopt.forms.sharded_form import read_cost, write_cost
from shardopt.hardware.cluster_file import load_cluster, presets
from shardopt.ir.context import make_context
from shardopt.mesh.mesh import Mesh, Sharding
from shardopt.solve.resharding.plan import ReshardingPlan
from shardopt.solve.resharding.transfers import plan_resharding

FUNCTION = "func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {\n  return %x : tensor<4xf32>\n}"
LINE = Mesh("m0", (("x", 2),), (0, 1))
GRID = Mesh("m1", (("x", 2), ("y", 3)), (8, 9, 10, 4, 5, 6))


def reparsed(module: ir.Module) -> ir.Module:
    return ir.Module.parse(module.operation.get_asm(), module.context)


@pytest.mark.parametrize("name", [*presets(), "cpu-test:1x2+tpu-v5e:3x8"])
def test_cluster(name: str) -> None:
    cluster = load_cluster(name)
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(FUNCTION, context)
        write_cluster(module, cluster)
        assert read_cluster(reparsed(module)) == cluster


@pytest.mark.parametrize("devices", [True, False])
def test_topology(devices: bool) -> None:
    with make_context() as context:
        module = ir.Module.parse(FUNCTION, context)
        write_topology(module.body.operations[0].operation, (LINE, GRID), devices=devices)
        meshes = read_topology(reparsed(module).body.operations[0].operation)
    # Without ids: consecutive over all meshes.
    numbered = (
        LINE,
        replace(GRID, devices=(2, 3, 4, 5, 6, 7)),
    )
    assert meshes == ((LINE, GRID) if devices else numbered)


def test_cost() -> None:
    traffic = (
        Traffic("all_reduce", ("x", "y"), 3, 12345678901),
        Traffic("permute", (), 1, 1 << 40),
    )
    cost = CostSummary(1.5e-3, 2.5e-7, 1 << 40, traffic)
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(FUNCTION, context)
        write_cost(module.body.operations[0].operation, cost)
        assert read_cost(reparsed(module).body.operations[0].operation) == cost


@pytest.mark.parametrize("element", ["f32", "bf16", "i1", "ui32", "complex<f64>", "f8E4M3FN"])
@pytest.mark.parametrize("dims", [None, ((), ()), (("x",), ()), (("y", "x"), ())])
def test_mesh_tensor(element: str, dims: tuple[tuple[str, ...], ...] | None) -> None:
    sharding = None if dims is None else Sharding(dims)
    with make_context() as context:
        tensor = ir.Type.parse(f"tensor<6x4x{element}>", context)
        parsed = parse_mesh_tensor(
            ir.Type.parse(str(mesh_tensor_type("m1", tensor, sharding)), context)
        )
        assert (parsed.mesh, parsed.tensor, parsed.sharding) == ("m1", tensor, sharding)


@pytest.mark.parametrize("strategy", ["send_recv", "local_allgather", "broadcast"])
def test_resharding_steps(strategy: str) -> None:
    source, target = (LINE, Sharding((("x",), ()))), (GRID, Sharding((("y",), ())))
    plan = plan_resharding((6, 4), 2, source, target, load_cluster("cpu-test:2x8"), strategy)
    with make_context() as context, ir.Location.unknown(context):
        printed = str(ir.DenseElementsAttr.get(np.ascontiguousarray(plan.to_array())))
        steps = np.asarray(ir.DenseIntElementsAttr(ir.Attribute.parse(printed)))
    assert ReshardingPlan.from_array(steps, plan.strategy, plan.itemsize) == plan


def test_entries_keep_their_order() -> None:
    with make_context() as context:
        attribute = ir.DictAttr(ir.Attribute.parse("{b = 1 : i64, a = 2 : i64}", context))
        assert list(entries(attribute)) == [attribute[k].name for k in range(len(attribute))]
