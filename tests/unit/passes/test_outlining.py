"""The staged program computes what the clustered one computes, wherever it is cut."""

from __future__ import annotations

import random
from itertools import combinations, product

import numpy as np
import pytest
from jaxlib.mlir import ir

from shardopt.dialect.attributes import i64
from shardopt.dialect.cluster import write_cluster
from shardopt.dialect.mpmd import LAYER
from shardopt.dialect.program import StepProgram, read_program
from shardopt.forms import clustered_form, staged_form
from shardopt.graph.op_graph import SHARED
from shardopt.hardware.cluster_file import load_cluster
from shardopt.ir.native import verify
from shardopt.mesh.mesh import Mesh
from shardopt.passes.base import PassContext
from shardopt.passes.layers.cluster_layers import ClusterLayers
from shardopt.passes.stages.read_step import read_step
from shardopt.passes.stages.staging import StagePlacement, outline_fragments
from shardopt.solve.stages.costs.stage_part import cut_part
from tests.unit.passes.program_evaluation import NAMES, evaluate, load_program, random_arguments

NUM_LAYERS = 3
CUTS = ((0, 0, 0), (0, 0, 1), (0, 1, 1), (0, 1, 2))


def clustered(name: str) -> ir.Module:
    module = load_program(name)
    with module.context, ir.Location.unknown():
        ClusterLayers(layers=NUM_LAYERS, delta=1.0).run(module, PassContext())
    return module


def outline(module: ir.Module, stage_of_layer: tuple[int, ...]) -> None:
    """On meshes of one device."""
    with module.context, ir.Location.unknown():
        meshes = tuple(Mesh(f"m{s}", (("x", 1),), (s,)) for s in range(max(stage_of_layer) + 1))
        outline_fragments(read_program(module), StagePlacement(stage_of_layer, meshes))
        write_cluster(module, load_cluster("cpu-test"))


def assert_computes(module: ir.Module, name: str) -> None:
    verify(module)
    with module.context:
        assert [violation.message for violation in staged_form.violations(module)] == []
    original = load_program(name)
    arguments = random_arguments(original)
    for expected, actual in zip(
        evaluate(original, arguments), evaluate(module, arguments), strict=True
    ):
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize(("name", "stage_of_layer"), list(product(NAMES, CUTS)))
def test_staged_program_computes_the_same(name: str, stage_of_layer: tuple[int, ...]) -> None:
    module = clustered(name)
    outline(module, stage_of_layer)
    assert_computes(module, name)


@pytest.mark.parametrize(("name", "seed"), list(product(NAMES, range(6))))
def test_operations_around_the_loop_may_be_in_any_layer(name: str, seed: int) -> None:
    """Also in none where they read what layers make: every reader makes it behind them."""
    module, generator = clustered(name), random.Random(seed)
    with module.context, ir.Location.unknown():
        program = read_program(module)
        for op in (*program.prologue, *program.epilogue):
            if generator.random() < 0.5:
                op.attributes[LAYER] = i64(generator.choice((SHARED, SHARED, *range(NUM_LAYERS))))
        assert [violation.message for violation in clustered_form.violations(module)] == []
        assert_parts_run_in_order(program)
    outline(module, generator.choice(CUTS))
    assert_computes(module, name)


def assert_parts_run_in_order(program: StepProgram) -> None:
    """Of every range of layers: what an operation reads is there before it."""
    step, _ = read_step(program)
    for start, end in combinations(range(step.num_layers + 1), 2):
        graph = cut_part(step, start, end).graph
        known = set(graph.inputs)
        for op in graph.ops:
            assert known.issuperset(op.operands)
            known.update(op.results)
