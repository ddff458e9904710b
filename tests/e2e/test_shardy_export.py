"""A module in the form of Shardy's own MPMD export, without any attribute of ours, runs and
computes what it says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from jaxlib.mlir import ir

from shardopt.forms.exported_verify import verify_exported
from shardopt.ir.context import make_context
from shardopt.runtime.driver import open_run, prepare
from shardopt.runtime.inputs import random_inputs
from shardopt.runtime.program.instructions import Copy, Program, Send
from shardopt.runtime.program.instructions import Run as RunInstruction

TEXT = (Path(__file__).parent / "shardy_export.mlir").read_text()
RATE = 0.01


def program_of(text: str) -> Program:
    with make_context():
        return prepare(ir.Module.parse(text))


def expected(inputs: list[np.ndarray]) -> list[np.ndarray]:
    """The step in numpy: two layers, a sum of squares, two microbatches, plain gradient descent."""
    w1, w2, *batches = inputs
    g1, g2, loss = np.zeros_like(w1), np.zeros_like(w2), np.float32(0)
    for x, t in ((batches[0], batches[2]), (batches[1], batches[3])):
        h = np.maximum(x @ w1, 0)
        error = h @ w2 - t
        loss += np.sum(error * error)
        g2 += h.T @ (2 * error)
        g1 += x.T @ np.where(x @ w1 > 0, 2 * error @ w2.T, 0)
    return [w1 - RATE * g1, w2 - RATE * g2, loss]


def test_it_computes_what_numpy_does_step_after_step() -> None:
    program = program_of(TEXT)
    inputs = [2 * value - 0.1 for value in random_inputs(program, 3)]
    with open_run(program, quick_compile=True) as run:
        run.load(inputs)
        for _ in range(3):
            expected_values = expected(inputs)
            for output, value in zip(run.step(), expected_values, strict=True):
                np.testing.assert_allclose(output, value, rtol=2e-5, atol=1e-6)
            inputs[:2] = expected_values[:2]


def test_program_of_the_module() -> None:
    program = program_of(TEXT)
    assert [(argument.name, argument.alias) for argument in program.arguments[:3]] == [
        ("params['w1']", 0),
        ("arg1", 1),
        ("arg2", None),
    ]
    assert [part.mesh.devices for part in program.meshes] == [(0, 1), (2, 3, 4, 5)], (
        "numbered in the order of the topology"
    )
    runs = [
        each
        for part in program.meshes
        for each in part.instructions
        if isinstance(each, RunInstruction)
    ]
    assert [run.label for run in runs] == ["fragment stage 0"] * 3 + ["fragment stage 1"] * 3
    assert not any(isinstance(each, Copy) for part in program.meshes for each in part.instructions)
    assert sum(isinstance(each, Send) for each in program.meshes[0].instructions) == 2


def test_functions_that_differ_in_their_names_are_one_executable() -> None:
    start = TEXT.index("  func.func @p0_f1_fwd.main")
    end = TEXT.index("  func.func private @positive")
    twin = TEXT[start:end].replace("p0_f1_fwd.main", "p5_f1_fwd.main")
    text = (TEXT[:start] + twin + TEXT[start:]).replace(
        "@p0_f1_fwd.main(%w1, %xb)", "@p5_f1_fwd.main(%w1, %xb)"
    )
    functions = {
        function.name: function.bytecode for function in program_of(text).meshes[0].functions
    }
    assert functions["p5_f1_fwd.main"] == functions["p0_f1_fwd.main"] != functions["p2_f1_bwd.main"]


FAULTS = [
    ('@p0_f1_fwd.main(%w: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}',
     '@p0_f1_fwd.main(%w: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}',
     'argument 0 of @p0_f1_fwd.main: expected sdy.sharding [{}, {"x"}], found [{"x"}, {}]'),
    ('mesh_shape = #sdy.mesh<["x"=2]>, reserved_hbm_bytes = 5',
     'mesh_shape = #sdy.mesh<["x"=4]>, reserved_hbm_bytes = 5',
     "Expected mesh of fragment call and callee function to match"),
    ("func.call @positive", "func.call @negative", "@negative"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "message"), FAULTS, ids=["sharding", "mesh", "function"])
def test_faults_are_named(old: str, new: str, message: str) -> None:
    assert old in TEXT
    with make_context():
        try:
            faults = [text for _, text in verify_exported(ir.Module.parse(TEXT.replace(old, new)))]
        except ir.MLIRError as error:  # what C++ itself finds
            faults = [str(error)]
    assert any(message in text for text in faults), faults
