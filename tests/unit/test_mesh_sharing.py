"""Meshes that look alike are solved once: the plan is, to the byte, the one that solving each of them gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from jaxlib.mlir import ir

from shardopt.cost.graph import Op, OpGraph, Tensor
from shardopt.cost.structure import structure_of
from shardopt.ir.context import make_context
from shardopt.ir.io import load_module, module_bytecode, module_text
from shardopt.passes.sharding.solving import MeshSolver
from shardopt.pipeline.manager import run_pipeline
from shardopt.pipeline.phases import phase_range

LAYERS = 5
STEP = (
    "num-microbatches=4 layers=5 delta=0.1 cluster=cpu-test:5x2 num-stages=5 submesh=1x2 logical-shape=1x2 "
    "inter-op=equal-layer batch-args=0"
)


def step(rows: int = 32, width: int = 16) -> str:
    """A step of equal layers `y = tanh(x w)`: forward, backward and update."""
    x, w = f"tensor<{rows}x{width}xf32>", f"tensor<{width}x{width}xf32>"
    lines, value = [], "%x"
    for k in range(LAYERS):
        lines += [
            f"%z{k} = stablehlo.dot_general {value}, %w{k}, contracting_dims = [1] x [0] : ({x}, {w}) -> {x}",
            f"%y{k} = stablehlo.tanh %z{k} : {x}",
        ]
        value = f"%y{k}"
    grad = value
    for k in reversed(range(LAYERS)):
        before = f"%y{k - 1}" if k else "%x"
        lines += [
            f"%s{k} = stablehlo.multiply %y{k}, {grad} : {x}",
            f"%d{k} = stablehlo.dot_general {before}, %s{k}, contracting_dims = [0] x [0] : ({x}, {x}) -> {w}",
            f"%g{k} = stablehlo.dot_general %s{k}, %w{k}, contracting_dims = [1] x [1] : ({x}, {w}) -> {x}",
            f"%n{k} = stablehlo.subtract %w{k}, %d{k} : {w}",
        ]
        grad = f"%g{k}"
    weights = ", ".join(f"%w{k}: {w} {{tf.aliasing_output = {k} : i32}}" for k in range(LAYERS))
    returned = ", ".join(f"%n{k}" for k in range(LAYERS))
    types = ", ".join([w] * LAYERS)
    body = "\n".join(lines)
    return f"func.func public @main(%x: {x}, {weights}) -> ({types}) {{\n{body}\nreturn {returned} : {types}\n}}"


@pytest.fixture(scope="module")
def staged() -> bytes:
    with make_context() as context:
        module = ir.Module.parse(step(), context)
        run_pipeline(module, phase_range("import", "stage", STEP))
        return module_bytecode(module)


def sharded(staged: bytes, options: str) -> tuple[str, int]:
    """The module after the shard phase, and how many meshes were solved."""
    with make_context() as context:
        module = load_module(staged, context)
        result = run_pipeline(module, phase_range("shard", "shard", options))
        return module_text(module), int(result.statistics["shardopt-shard-stages", "meshes solved"])


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Switches sharing off."""
    plan = MeshSolver.plan

    def off() -> None:
        def every_one(self: MeshSolver, *args: Any, alone: bool) -> Any:
            return plan(self, *args, alone=True)

        monkeypatch.setattr(MeshSolver, "plan", every_one)

    return off


@pytest.mark.parametrize(
    "options",
    ["", "memory-budget=7KiB", "intra-op=data batch-args=0", "intra-op=zero3 batch-args=0", "intra-op=replicate"],
)
def test_the_plan_is_that_of_solving_every_mesh(staged: bytes, alone: Callable[[], None], options: str) -> None:
    shared, kinds = sharded(staged, options)
    alone()
    each, solved = sharded(staged, options)
    assert shared == each
    # the first mesh has no gradient to hand on, the last begins with one; those in the middle are equal
    assert (kinds, solved) == (3, LAYERS)


def pair(first: int, second: int, size: int = 4, group: int = 0) -> OpGraph:
    """`exp` of the one tensor added to the other; results take the numbers that are left."""
    left = [number for number in range(4) if number not in (first, second)]
    tensors = tuple(Tensor((size,), "f32", 4) for _ in range(4))
    ops = (
        Op("exponential", (first,), (left[0],), None, group=group),
        Op("add", (left[0], second), (left[1],), None, group=group + 1),
    )
    return OpGraph(tensors, ops, tuple(sorted((first, second))), (left[1],))


def test_the_structure_is_the_graph_but_for_its_numbers() -> None:
    one, other = structure_of(pair(0, 1)), structure_of(pair(3, 2, group=7))
    assert one.digest == other.digest
    assert dict(zip(one.tensors, other.tensors, strict=True)) == {0: 3, 1: 2, 2: 0, 3: 1}
    assert structure_of(pair(0, 1), [1]).tensors == (2, 1, 3)
    graph = pair(0, 1)
    exponential, add = graph.ops
    changed = (
        pair(0, 1, size=8),
        replace(graph, ops=(replace(exponential, name="tanh"), add)),
        replace(graph, ops=(exponential, replace(add, operands=(1, 2)))),
        replace(graph, ops=(exponential, replace(add, operands=(2, 0)))),
        replace(graph, ops=(exponential, replace(add, group=0))),
        replace(graph, ops=(exponential, replace(add, repeat=2))),
        replace(graph, outputs=(2, 3)),
        replace(graph, loops=((0, 1),)),
        replace(graph, carried=frozenset({1})),
    )
    digests = {structure_of(found).digest for found in (graph, *changed)}
    assert len(digests) == 1 + len(changed)
