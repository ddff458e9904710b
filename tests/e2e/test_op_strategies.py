"""Every strategy of one small example of every operation, as XLA compiles it: the numbers of one
device, and exactly the collectives that the strategy says. This is what allows the solver to
believe in its strategies."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from jaxlib.mlir import ir

from shardopt.cost.traffic import TrafficDifference
from shardopt.cost.traffic import compare as compare_traffic
from shardopt.dialect.dtypes import numpy_dtype, numpy_name
from shardopt.extract.mesh_graphs import MeshGraph, read_plain
from shardopt.extract.op_graph import sharding_rules
from shardopt.forms.exported_program import StageFunction
from shardopt.forms.shardy import to_shardy
from shardopt.ir.context import make_context
from shardopt.ir.rewriting import functions
from shardopt.mesh.mesh import Mesh
from shardopt.passes.sharding.decide.writing import write_plans
from shardopt.pipeline.manager import run_pipeline
from shardopt.runtime.devices.tiles import Tiling
from shardopt.runtime.devices.xla import Executable, XlaMesh
from shardopt.runtime.reference import compare, run_reference
from shardopt.solve.assignment.problem import Solution
from shardopt.solve.sharding.intra_op.problem import IntraOpTables
from shardopt.xla_text.hlo import module_traffic
from tests.e2e.older_xla import skip_unless_compiled
from tests.e2e.test_sharding_against_xla import SLOW, bytecode_of, stage_function
from tests.unit.operations.op_examples import ELEMENTWISE, EXAMPLES, Example
from tests.unit.operations.random_windows import random_window, reversal

LINE = Mesh("mesh", (("x", 4),), (0, 1, 2, 3))
# Of these no extent of an example is a multiple.
UNEVEN = tuple(Mesh("mesh", (("x", n),), tuple(range(n))) for n in (3, 5))
GRID = Mesh("mesh", (("x", 2), ("y", 2)), (0, 1, 2, 3))
TOLERANCE = 1e-4

# Where two axes interact: contractions, borders of borders, and reductions along several
# dimensions.
ON_A_GRID = (
    "dot_general:batched",
    "dot_general:two contractions",
    "reduce:two dimensions",
    "convolution:same",
    "convolution:kernel gradient",
    "reduce_window:padded max pool",
    "scatter:add rows",
)


@cache
def devices(mesh: Mesh) -> XlaMesh:
    return XlaMesh(mesh)


class Harness:
    """One example on one mesh: `check(k)` compiles and runs the k-th strategy of its operation."""

    def __init__(self, example: Example, mesh: Mesh) -> None:
        skip_unless_compiled(example.name)
        self.example, self.mesh = example, mesh
        with make_context():
            module = ir.Module.parse(example.text)
            arguments = next(functions(module)).regions[0].blocks[0].arguments
            self.inputs = [
                self._input(ir.RankedTensorType(argument.type)) for argument in arguments
            ]
            self.reference = run_reference(module, self.inputs)
            self.strategies = self._read(module)[1].ops[self.number].strategies

    def _input(self, type_: ir.RankedTensorType) -> np.ndarray:
        """Positive numbers below one, small integers, or a matrix that has a Cholesky factor."""
        generator, shape = np.random.default_rng(0), tuple(type_.shape)
        dtype = numpy_dtype(numpy_name(str(type_.element_type)))
        if dtype.kind in "iub":
            values = generator.integers(0, 2 if dtype.kind == "b" else 8, shape)
        else:
            values = generator.uniform(0.1, 0.9, shape) + (0.3j if dtype.kind == "c" else 0.0)
        if self.example.op == "cholesky":
            values = values @ values.swapaxes(-1, -2) + np.eye(shape[-1])
        return np.asarray(values).astype(dtype)

    def _read(self, module: ir.Module) -> tuple[MeshGraph, IntraOpTables]:
        with sharding_rules(module):
            graph = read_plain(next(functions(module)), self.mesh)
        self.number = next(k for k, op in enumerate(graph.graph.ops) if op.name == self.example.op)
        return graph, IntraOpTables(graph.graph, self.mesh, SLOW)

    def check(self, strategy: int) -> None:
        with make_context(), ir.Location.unknown():
            module = ir.Module.parse(self.example.text)
            graph, tables = self._read(module)
            plan = tables.problem().decode(
                Solution(self._choice(tables, strategy), 0.0, 0.0, 0.0, "feasible")
            )
            write_plans(module, next(functions(module)), [graph], [plan], tables.strategies.cluster)
            run_pipeline(
                module, "builtin.module(shardopt-insert-reshards,shardopt-annotate-shardings)"
            )
            function = stage_function(module, self.mesh)
            to_shardy(module, self.mesh)
            function = replace(function, bytecode=bytecode_of(module))
        executable = devices(self.mesh).compile(function, quick=True)
        traffic = module_traffic(executable._loaded.hlo_modules()[0].to_string(), self.mesh)
        label = f"{self.example.name}: {self.strategies[strategy]}"
        wrong = [
            str(row) for row in compare_traffic(plan.summary().traffic, traffic) if _differs(row)
        ]
        assert not wrong, f"{label}: {wrong}"
        for row in compare(self._run(executable, function), self.reference):
            assert row.within(TOLERANCE), f"{label}: {row}"

    def _choice(self, tables: IntraOpTables, strategy: int) -> tuple[int, ...]:
        """The strategy, and what it reads in the shardings that it wants; all else is whole."""
        problem = tables.problem()
        op = tables.graph.ops[self.number]
        operand_shardings = dict(zip(op.operands, self.strategies[strategy].operands, strict=True))
        choice = [0] * len(problem.ops)
        choice[self.number] = strategy
        columns = (problem.columns[tensor].shardings for tensor in problem.inputs)
        input_choices = [
            column.index(operand_shardings[tensor]) if tensor in operand_shardings else 0
            for tensor, column in zip(problem.inputs, columns, strict=True)
        ]
        return (*choice, *input_choices)

    def _run(self, executable: Executable, function: StageFunction) -> list[np.ndarray]:
        device = devices(self.mesh)
        tilings = [Tiling(self.mesh, spec) for spec in function.arguments]
        arrays = [
            device.put(t.spec, t.split(value))
            for t, value in zip(tilings, self.inputs, strict=True)
        ]
        outputs, token = executable(arrays)
        token.block_until_ready()
        results = [Tiling(self.mesh, spec) for spec in function.results]
        return [
            tiling.join(device.shards(output))
            for tiling, output in zip(results, outputs, strict=True)
        ]


def _differs(row: TrafficDifference) -> bool:
    return row.predicted_tensors != row.found_tensors or row.predicted_bytes != row.found_bytes


def _is_planned(example: Example) -> bool:
    return example.op != "optimization_barrier"  # transparent: it has no strategies of its own


def slow_seeds(start: int, stop: int) -> list[Any]:
    return [pytest.param(seed, marks=pytest.mark.slow) for seed in range(start, stop)]


def test_every_elementwise_operation_is_split() -> None:
    """They have rules of one kind: one strategy of each is enough. A few stand for all where time
    is short."""
    for example in ELEMENTWISE[::6]:
        harness = Harness(example, LINE)
        harness.check(len(harness.strategies) - 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "example", [*filter(_is_planned, EXAMPLES)], ids=lambda example: example.name
)
def test_strategies_on_a_line(example: Example) -> None:
    harness = Harness(example, LINE)
    chosen = (
        range(len(harness.strategies))
        if example not in ELEMENTWISE
        else (len(harness.strategies) - 1,)
    )
    for strategy in chosen:
        harness.check(strategy)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", UNEVEN, ids=str)
@pytest.mark.parametrize(
    "example",
    [each for each in EXAMPLES if _is_planned(each) and each not in ELEMENTWISE],
    ids=lambda example: example.name,
)
def test_strategies_with_padding(example: Example, mesh: Mesh) -> None:
    harness = Harness(example, mesh)
    for strategy in range(1, len(harness.strategies)):
        harness.check(strategy)


@pytest.mark.parametrize(
    "name", ["dot_general:two contractions", "reduce:max", "convolution:same", "slice:shift"]
)
def test_padding_is_masked_where_it_would_count(name: str) -> None:
    """Contractions, reductions and windows over tiles of three and two of eight."""
    harness = Harness(next(each for each in EXAMPLES if each.name == name), UNEVEN[0])
    for strategy in range(1, len(harness.strategies)):
        harness.check(strategy)


@pytest.mark.parametrize("seed", [*range(4), *slow_seeds(4, 60)])
def test_random_windows_move_the_borders_that_are_planned(seed: int) -> None:
    """Slices, paddings, reversals, poolings and convolutions of random extents, over two to five
    devices."""
    rng = random.Random(seed)
    count = rng.randint(2, 5)
    harness = Harness(random_window(rng), Mesh("mesh", (("x", count),), tuple(range(count))))
    for number, strategy in enumerate(harness.strategies):
        if strategy.operands[0].dims[1]:
            harness.check(number)


@pytest.mark.parametrize("extent", [9, 12])
def test_a_reversal_moves_past_tiles_of_padding(extent: int) -> None:
    """Of eight tiles of two, up to three are empty: nobody needs what its neighbour has."""
    harness = Harness(reversal(extent), Mesh("mesh", (("x", 8),), tuple(range(8))))
    for number, strategy in enumerate(harness.strategies):
        if strategy.operands[0].dims[1]:
            harness.check(number)


@pytest.mark.slow
@pytest.mark.parametrize("name", ON_A_GRID)
def test_strategies_on_a_grid(name: str) -> None:
    """The strategies that use both axes, by every fifth: the others are those of a line."""
    harness = Harness(next(example for example in EXAMPLES if example.name == name), GRID)
    both = [
        k
        for k, s in enumerate(harness.strategies)
        if {a for o in s.operands for a in o.axes} == {"x", "y"}
    ]
    for strategy in both[::5]:
        harness.check(strategy)
