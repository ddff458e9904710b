"""The staged program computes what the clustered one computes, wherever it is cut."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from jaxlib.mlir import ir
from program_evaluation import NAMES, evaluate, load_program, random_arguments

from shardopt.dialect.cluster import write_cluster
from shardopt.dialect.program import read_program
from shardopt.forms import staged_form
from shardopt.hardware.cluster_file import load_cluster
from shardopt.ir.native import verify
from shardopt.mesh.mesh import Mesh
from shardopt.passes.base import PassContext
from shardopt.passes.layers.cluster_layers import ClusterLayers
from shardopt.passes.stages.staging import StagePlacement, outline_fragments

NUM_LAYERS = 3
CUTS = ((0, 0, 0), (0, 0, 1), (0, 1, 1), (0, 1, 2))


def staged(name: str, stage_of_layer: tuple[int, ...]) -> ir.Module:
    """The program in three layers, laid out on meshes of one device."""
    module = load_program(name)
    with module.context, ir.Location.unknown():
        ClusterLayers(layers=NUM_LAYERS, delta=1.0).run(module, PassContext())
        meshes = tuple(Mesh(f"m{s}", (("x", 1),), (s,)) for s in range(max(stage_of_layer) + 1))
        outline_fragments(read_program(module), StagePlacement(stage_of_layer, meshes))
        write_cluster(module, load_cluster("cpu-test"))
    return module


@pytest.mark.parametrize(("name", "stage_of_layer"), list(product(NAMES, CUTS)))
def test_staged_program_computes_the_same(name: str, stage_of_layer: tuple[int, ...]) -> None:
    original = load_program(name)
    module = staged(name, stage_of_layer)
    verify(module)
    with module.context:
        assert [violation.message for violation in staged_form.violations(module)] == []
    arguments = random_arguments(original)
    for expected, actual in zip(
        evaluate(original, arguments), evaluate(module, arguments), strict=True
    ):
        np.testing.assert_array_equal(actual, expected)
