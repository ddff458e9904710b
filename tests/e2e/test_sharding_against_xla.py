"""Sharded modules as XLA compiles them: the numbers of one device, and the collectives that the
plan says.

XLA's CPU backend writes a reduce-scatter as all-reduce and slice, so the two are counted together.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pytest
from jaxlib.mlir import ir

from shardopt.cost.traffic import Traffic, TrafficDifference
from shardopt.cost.traffic import compare as compare_traffic
from shardopt.dialect.cluster import write_cluster
from shardopt.dialect.dtypes import numpy_name
from shardopt.dialect.sharding import to_mhlo
from shardopt.forms.exported_program import StageFunction, TensorSpec
from shardopt.forms.sharded_form import read_cost
from shardopt.forms.shardy import to_shardy
from shardopt.hardware.cluster import Cluster, Device, Link
from shardopt.ir.context import make_context
from shardopt.ir.io import load_module
from shardopt.ir.rewriting import functions
from shardopt.mesh.mesh import Mesh, Sharding, parse_mesh
from shardopt.pipeline.manager import run_pipeline
from shardopt.runtime.devices.tiles import Tiling
from shardopt.runtime.devices.xla import Executable, XlaMesh
from shardopt.runtime.reference import compare, run_reference
from shardopt.solve.sharding.strategies.strategies import all_shardings
from shardopt.xla_text.hlo import module_traffic
from tests.e2e.models import MODELS, mlp


def cluster_of_rate(rate: float) -> Cluster:
    """Four devices of so many FLOP/s, bytes/s of memory and bytes/s of every link, without
    latencies."""
    link = Link(0.0, rate)
    return Cluster.uniform(
        "test", 1, 4, Device("d", {"f32": rate}, 1 << 31, rate, platform="cpu"), link, link, 0.0
    )


# Slow enough that small models are worth splitting; the fast one does not care to split an update
# of 4 KB.
SLOW, FAST = cluster_of_rate(1e8), cluster_of_rate(1e10)
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Compiled:
    """A sharded module, compiled once: its predicted and its real collectives, and how to call
    it."""

    plan: tuple[Traffic, ...]
    mesh: Mesh
    function: StageFunction
    reference: list[np.ndarray]
    inputs: list[np.ndarray]

    @cached_property
    def device(self) -> XlaMesh:
        return XlaMesh(self.mesh)

    @cached_property
    def executable(self) -> Executable:
        return self.device.compile(self.function)

    @cached_property
    def traffic(self) -> tuple[Traffic, ...]:
        text = self.executable._loaded.hlo_modules()[0].to_string()
        return module_traffic(text, self.mesh)

    @property
    def rows(self) -> tuple[TrafficDifference, ...]:
        return compare_traffic(self.plan, self.traffic)

    @property
    def predicted(self) -> dict[str, int]:
        """Planned tensors by kind."""
        return tensors_by_kind(self.plan)

    @property
    def emitted(self) -> dict[str, int]:
        """Compiled tensors by kind."""
        return tensors_by_kind(self.traffic)

    def run(self) -> list[np.ndarray]:
        tilings = [Tiling(self.mesh, spec) for spec in self.function.arguments]
        arrays = [
            self.device.put(tiling.spec, tiling.split(value))
            for tiling, value in zip(tilings, self.inputs, strict=True)
        ]
        outputs, token = self.executable(arrays)
        token.block_until_ready()
        results = [Tiling(self.mesh, spec) for spec in self.function.results]
        return [
            tiling.join(self.device.shards(output))
            for tiling, output in zip(results, outputs, strict=True)
        ]


def compile_sharded(
    model: tuple[bytes, list[np.ndarray]],
    mesh: str,
    preset: str = "ilp",
    cluster: Cluster = SLOW,
    *,
    shardy: bool = False,
    gap: float = 1e-3,
) -> Compiled:
    """`shardy` gives XLA the constraints of Shardy instead of the annotations of GSPMD."""
    artifact, inputs = model
    with make_context() as context, ir.Location.unknown():
        module = load_module(artifact, context)
        run_pipeline(module, "builtin.module(shardopt-import)")
        reference = _reference(artifact, module, inputs)
        write_cluster(module, cluster)
        options = f"mesh={mesh} intra-op={preset} gap={gap}"
        run_pipeline(module, f"builtin.module(shardopt-shard{{{options}}})")
        placed = parse_mesh(mesh)
        function = stage_function(module, placed)
        main = next(functions(module))
        plan = read_cost(main).traffic
        if shardy:
            to_shardy(module, placed)
            function = replace(function, bytecode=bytecode_of(module))
    return Compiled(plan, placed, function, reference, inputs)


_references: dict[tuple[bytes, ...], list[np.ndarray]] = {}


def _reference(artifact: bytes, module: ir.Module, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """Of the imported module of an artifact, which most tests shard in several ways."""
    key = (artifact, *(array.tobytes() for array in inputs))
    if key not in _references:
        _references[key] = run_reference(module, inputs)
    return _references[key]


def stage_function(module: ir.Module, mesh: Mesh) -> StageFunction:
    [main] = functions(module)
    type_ = ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value)
    specs = [
        tuple(
            spec_of(t, ir.DictAttr(row), mesh)
            for t, row in zip(types, ir.ArrayAttr(main.attributes[rows]), strict=True)
        )
        for types, rows in ((type_.inputs, "arg_attrs"), (type_.results, "res_attrs"))
    ]
    return StageFunction("main", bytecode_of(module), specs[0], specs[1], donates=())


def bytecode_of(module: ir.Module) -> bytes:
    buffer = io.BytesIO()
    module.operation.write_bytecode(buffer)
    return buffer.getvalue()


def spec_of(type_: ir.Type, attributes: ir.DictAttr, mesh: Mesh) -> TensorSpec:
    tensor = ir.RankedTensorType(type_)
    text = ir.StringAttr(attributes["mhlo.sharding"]).value
    sharding: Sharding = next(
        s for s in all_shardings(mesh, tuple(tensor.shape)) if to_mhlo(s, mesh) == text
    )
    return TensorSpec(tuple(tensor.shape), numpy_name(str(tensor.element_type)), sharding)


def tensors_by_kind(traffic: tuple[Traffic, ...]) -> dict[str, int]:
    kinds = sorted({item.kind for item in traffic})
    return {kind: sum(item.tensors for item in traffic if item.kind == kind) for kind in kinds}


def reduced(counts: dict[str, int]) -> int:
    return counts.get("all_reduce", 0) + counts.get("reduce_scatter", 0)


def check_numbers(compiled: Compiled) -> None:
    for row in compare(compiled.run(), compiled.reference):
        assert row.within(TOLERANCE), row


def test_data_parallel_reduces_each_gradient_once() -> None:
    """Batch 256, hidden 32 on 4x1: twelve gradients and the loss, nothing else."""
    compiled = compile_sharded(mlp(256, 32), "4x1", "data", FAST)
    assert compiled.predicted == {"all_reduce": 13}
    assert compiled.emitted == {"all_reduce": 13}
    check_numbers(compiled)


def test_the_solver_splits_a_wide_batch_by_its_rows() -> None:
    compiled = compile_sharded(mlp(256, 32), "4x1")
    batch = compiled.function.arguments[-2:]
    assert [str(spec.sharding) for spec in batch] == ['[{"x"}, {}]'] * 2
    assert reduced(compiled.emitted) == reduced(compiled.predicted) == 13
    check_numbers(compiled)


def test_the_solver_splits_wide_weights_and_keeps_their_gradients_local() -> None:
    """Batch 32, hidden 256 on 1x4: every kernel is split, and what is reduced has the size of
    activations."""
    compiled = compile_sharded(mlp(32, 256), "1x4")
    kernels = [spec for spec in compiled.function.arguments if spec.shape == (256, 256)]
    assert len(kernels) == 6 and not any(spec.sharding.is_replicated for spec in kernels)
    # One a layer boundary, and the loss.
    assert reduced(compiled.emitted) == reduced(compiled.predicted) == 6
    assert compiled.emitted.get("all_gather", 0) == compiled.predicted.get("all_gather", 0)
    check_numbers(compiled)


@pytest.mark.parametrize("mesh", ["4", "2x2"])
def test_uneven_weights_and_batches_are_split_as_planned(mesh: str) -> None:
    """Extents that no axis divides: tiles with padding as arguments, results and in between, with
    the planned collectives to the byte."""
    compiled = compile_sharded(mlp(250, 31, 3), mesh, shardy=True)
    specs = (*compiled.function.arguments, *compiled.function.results)
    assert sum(not spec.sharding.is_even(compiled.mesh, spec.shape) for spec in specs) > 4
    assert all(
        (row.predicted_tensors, row.predicted_bytes) == (row.found_tensors, row.found_bytes)
        for row in compiled.rows
    )
    check_numbers(compiled)


@pytest.mark.parametrize("preset", ["heuristic", "replicate"])
def test_presets_give_the_same_numbers(preset: str) -> None:
    check_numbers(compile_sharded(mlp(16, 32, 2), "2x2", preset))


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["4", "2x2"])
@pytest.mark.parametrize("name", MODELS)
def test_models_give_the_same_numbers(name: str, mesh: str) -> None:
    """Of the best plan or not: proving that it is takes most of the time."""
    check_numbers(compile_sharded(MODELS[name](), mesh, gap=0.05))
