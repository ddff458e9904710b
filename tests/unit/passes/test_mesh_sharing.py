"""Meshes that look alike are solved once: the plan is, to the byte, the one that solving each of
them gives."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from jaxlib.mlir import ir

from shardopt.graph.op_graph import Op, OpGraph, Tensor
from shardopt.graph.structure import structure_of
from shardopt.ir.context import make_context
from shardopt.ir.diagnostics import DiagnosedError
from shardopt.ir.io import load_module, module_bytecode, module_text
from shardopt.passes.sharding.decide import planning
from shardopt.passes.sharding.decide.planning import MeshPlanner
from shardopt.passes.sharding.decide.solving import MeshSolver, Request, Solved
from shardopt.pipeline.manager import run_pipeline
from shardopt.pipeline.phases import phase_range
from shardopt.solve.sharding.budget.search import Fit
from shardopt.support.children import cores

STAGES = 5


def step(layers: Sequence[int], rows: int = 32, width: int = 16) -> str:
    """A step of equal layers `y = tanh(x w)`: forward, backward, and updates in the order of
    `layers`."""
    x, w = f"tensor<{rows}x{width}xf32>", f"tensor<{width}x{width}xf32>"
    lines, value = [], "%x"
    for k in sorted(layers):
        lines += [
            f"%z{k} = stablehlo.dot_general {value}, %w{k}, contracting_dims = [1] x [0] : "
            f"({x}, {w}) -> {x}",
            f"%y{k} = stablehlo.tanh %z{k} : {x}",
        ]
        value = f"%y{k}"
    grad = value
    for k in sorted(layers, reverse=True):
        before = f"%y{k - 1}" if k else "%x"
        lines += [
            f"%s{k} = stablehlo.multiply %y{k}, {grad} : {x}",
            f"%d{k} = stablehlo.dot_general {before}, %s{k}, contracting_dims = [0] x [0] : "
            f"({x}, {x}) -> {w}",
            f"%g{k} = stablehlo.dot_general %s{k}, %w{k}, contracting_dims = [1] x [1] : "
            f"({x}, {w}) -> {x}",
        ]
        grad = f"%g{k}"
    lines += [f"%n{k} = stablehlo.subtract %w{k}, %d{k} : {w}" for k in layers]
    weights = ", ".join(
        f"%w{k}: {w} {{tf.aliasing_output = {at} : i32}}" for at, k in enumerate(layers)
    )
    returned = ", ".join(f"%n{k}" for k in layers)
    types = ", ".join([w] * len(layers))
    body = "\n".join(lines)
    return (
        f"func.func public @main(%x: {x}, {weights}) -> ({types}) {{\n{body}\nreturn "
        f"{returned} "
        f": {types}\n}}"
    )


def staged(layers: Sequence[int], stages: int = STAGES, microbatches: int = 4) -> bytes:
    """The step in stages of equally many layers."""
    options = (
        f"num-microbatches={microbatches} layers={len(layers)} delta=0.1 "
        f"cluster=cpu-test:{stages}x2 num-stages={stages} submesh=1x2 logical-shape=1x2 inter-op=equal-layer batch-args=0 "
        "recompute=none"
    )
    with make_context() as context:
        module = ir.Module.parse(step(layers), context)
        run_pipeline(module, phase_range("import", "stage", options))
        return module_bytecode(module)


@pytest.fixture(scope="module")
def five() -> bytes:
    """One layer a stage."""
    return staged(range(STAGES))


def sharded(staged: bytes, options: str) -> tuple[str, int]:
    """The module after the shard phase, and how many meshes were solved."""
    with make_context() as context:
        module = load_module(staged, context)
        result = run_pipeline(module, phase_range("shard", "shard", options))
        return module_text(module), int(
            result.statistics["shardopt-choose-shardings", "meshes solved"]
        )


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Switches sharing off."""
    find = MeshSolver._find_kind

    def off() -> None:
        def every_one(self: MeshSolver, request: Request) -> Any:
            return find(self, replace(request, alone=True))

        monkeypatch.setattr(MeshSolver, "_find_kind", every_one)

    return off


@pytest.mark.parametrize(
    "options",
    [
        "",
        "memory-budget=7KiB",
        "intra-op=data batch-args=0",
        "intra-op=zero3 batch-args=0",
        "intra-op=replicate",
    ],
)
def test_the_plan_is_that_of_solving_every_mesh(
    five: bytes, alone: Callable[[], None], options: str
) -> None:
    shared, kinds = sharded(five, options)
    alone()
    each, solved = sharded(five, options)
    assert shared == each
    # the first mesh has no gradient to hand on, the last begins with one; those in the middle are
    # equal
    assert (kinds, solved) == (3, STAGES)


def test_updates_sorted_by_name_do_not_keep_stages_apart(alone: Callable[[], None]) -> None:
    """Of layers 0 to 9, as of any that a model sorts as text, some stages have the later one
    first."""
    module = staged([1, 0, 2, 3, 5, 4, 6, 7, 8, 9])
    shared, kinds = sharded(module, "")
    alone()
    assert shared == sharded(module, "")[0]
    assert kinds == 3


@pytest.fixture(scope="module")
def ten() -> bytes:
    """The middle ones hold nine to two of 16 microbatches at once."""
    return staged(range(10), stages=10, microbatches=16)


@pytest.mark.parametrize(
    ("budget", "most"), [("6KiB", 10), ("7KiB", 8), ("8KiB", 4), ("10KiB", 4), ("1MiB", 4)]
)
def test_plans_for_fewer_microbatches_in_flight_bound_those_for_more(
    ten: bytes,
    alone: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    budget: str,
    most: int,
) -> None:
    """No mesh is planned worse than alone, all bounds hold, and bytes are those of the mesh itself.
    Eight meshes look alike: two of them are searched where all their plans are equally long."""
    found: list[list[Solved]] = []
    searched: list[Fit] = []
    plans, search = MeshPlanner.plans, planning.fit

    def kept(self: MeshPlanner, graphs: Any) -> list[Solved]:
        found.append(plans(self, graphs))
        return found[-1]

    def counted(*args: Any, **options: Any) -> Fit:
        searched.append(search(*args, **options))
        return searched[-1]

    monkeypatch.setattr(MeshPlanner, "plans", kept)
    monkeypatch.setattr(planning, "fit", counted)
    sharded(ten, f"memory-budget={budget}")
    assert len(searched) == most
    alone()
    sharded(ten, f"memory-budget={budget}")
    assert len(searched) == most + 10
    for shared, own in zip(*found, strict=True):
        assert shared.plan is not None and own.plan is not None
        solution, objective = shared.fit.solution, own.fit.solution.objective
        assert solution.bound <= objective * (1 + 1e-9)
        assert solution.objective <= objective * 1.001
        if solution.choice == own.fit.solution.choice:
            assert shared.plan.peak_bytes == own.plan.peak_bytes


def test_too_little_memory_for_one_mesh_is_refused_alike(
    ten: bytes, alone: Callable[[], None]
) -> None:
    with pytest.raises(DiagnosedError) as shared:
        sharded(ten, "memory-budget=5KiB")
    alone()
    with pytest.raises(DiagnosedError) as each:
        sharded(ten, "memory-budget=5KiB")
    assert str(shared.value) == str(each.value)


_SHARD = """
import os, sys
from shardopt.support.children import cores, may_fork
may_fork()
from shardopt.ir.context import make_context
from shardopt.ir.io import load_module, module_text
from shardopt.pipeline.manager import run_pipeline
from shardopt.pipeline.phases import phase_range
forks, fork = [], os.fork
def counted():
    forks.append(fork())
    return forks[-1]
os.fork = counted
with make_context() as context:
    module = load_module(sys.stdin.buffer.read(), context)
    run_pipeline(module, phase_range("shard", "shard", "memory-budget=6KiB"))
    sys.stdout.write(module_text(module))
sys.exit(os.EX_OK if bool(forks) == (cores() > 1) else "children where there is no core for them")
"""


@pytest.mark.skipif(cores() < 2, reason="needs two cores")
def test_plans_of_several_processes_are_those_of_one(ten: bytes) -> None:
    """Kinds of meshes, and halves of the meshes of a kind, are planned on all cores."""
    both = os.sched_getaffinity(0)
    texts = [
        subprocess.run(
            [sys.executable, "-c", _SHARD],
            input=ten,
            stdout=subprocess.PIPE,
            preexec_fn=partial(os.sched_setaffinity, 0, usable),
            check=True,
        ).stdout
        for usable in (both, {min(both)})
    ]
    assert texts[0] == texts[1] != b""


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
        replace(graph, ops=(replace(exponential, transcendentals=4.0), add)),
        replace(graph, outputs=(2, 3)),
        replace(graph, loops=((0, 1),)),
        replace(graph, carried=frozenset({1})),
    )
    digests = {structure_of(each).digest for each in (graph, *changed)}
    assert len(digests) == 1 + len(changed)
