"""The import passes keep what a program computes: against StableHLO's reference interpreter, and
compiled by XLA."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from shardopt.ir.context import make_context
from shardopt.ir.loops import trip_count
from shardopt.ir.native import run_native
from shardopt.ir.rewriting import operations
from shardopt.passes.base import Pass, PassContext, PassFailure
from shardopt.passes.importing.batch_gathers import BatchGathers
from shardopt.passes.importing.check_custom_calls import CheckCustomCalls
from shardopt.passes.importing.coordinates import coordinate_dim
from shardopt.passes.importing.flatten_tuples import FlattenTuples
from shardopt.passes.importing.inline_calls import InlineCalls
from shardopt.passes.importing.normalize import Normalize
from shardopt.passes.importing.unroll_loops import UnrollLoops
from shardopt.passes.importing.verify_imported import VerifyImported
from tests.unit.passes.program_evaluation import run_xla

CANONICALIZE = "builtin.module(canonicalize,cse)"
DTYPES = {"f32": np.float32, "i32": np.int32, "ui32": np.uint32, "i8": np.int8}


@pytest.fixture
def context():
    with make_context() as context, ir.Location.unknown():
        yield context


def names(module: ir.Module) -> set[str]:
    return {op.name for op in operations(module.operation)}


def random_inputs(module: ir.Module, low: int = -3, high: int = 7) -> list[np.ndarray]:
    """Small whole numbers of every argument's type: sums of them are exact in any order."""
    rng = np.random.default_rng(0)
    types = [
        ir.RankedTensorType(a.type)
        for a in module.body.operations[0].regions[0].blocks[0].arguments
    ]
    return [rng.integers(low, high, t.shape).astype(DTYPES[str(t.element_type)]) for t in types]


def interpret(module: ir.Module, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """What the reference interpreter says; it knows no non-finite literals, and arguments go in as
    constants."""
    attributes = [
        ir.DenseElementsAttr.get(
            np.ascontiguousarray(x), shape=x.shape, type=ir.RankedTensorType(t.type).element_type
        )
        for x, t in zip(
            inputs, module.body.operations[0].regions[0].blocks[0].arguments, strict=True
        )
    ]
    return [np.array(result) for result in stablehlo.eval_module(module, attributes)]


def check_equivalent(
    text: str, *passes: Pass, inputs: Sequence[np.ndarray] | None = None
) -> ir.Module:
    """Run the passes, and compare the module's results before and after. Returns the rewritten
    module."""
    before, after = ir.Module.parse(text), ir.Module.parse(text)
    for step in passes:
        step.run(after, PassContext())
        after.operation.verify()
    arguments = random_inputs(before) if inputs is None else inputs
    for expected, actual in zip(
        interpret(before, arguments), interpret(after, arguments), strict=True
    ):
        np.testing.assert_array_equal(actual, expected)
    return after


def scatter(dims: str, types: str, body: str = "stablehlo.add") -> str:
    combine = (
        f"%s = {body} %a, %b : tensor<f32>"
        if body
        else "%s = stablehlo.reshape %b : (tensor<f32>) -> tensor<f32>"
    )
    return (
        '"stablehlo.scatter"(%x, %indices, %u) <{scatter_dimension_numbers = '
        f"#stablehlo.scatter<{dims}>}}> ({{"
        f"^bb0(%a: tensor<f32>, %b: tensor<f32>): {combine} stablehlo.return %s : tensor<f32> }}) "
        f": {types}"
    )


# ------------------------------------------------------------------------------------------------------
# inline-calls


def test_what_groups_cost_is_said(context: ir.Context) -> None:
    text = """
    func.func @main(%x: tensor<6x3xf32>, %w: tensor<4x3x2xf32>, %n: tensor<4xi32>) -> tensor<6x2xf32> {
      %0 = stablehlo.composite "chlo.ragged_dot" %x, %w, %n {decomposition = @dense}
        : (tensor<6x3xf32>, tensor<4x3x2xf32>, tensor<4xi32>) -> tensor<6x2xf32>
      return %0 : tensor<6x2xf32>
    }
    func.func private @dense(%x: tensor<6x3xf32>, %w: tensor<4x3x2xf32>, %n: tensor<4xi32>) -> tensor<6x2xf32> {
      %0 = stablehlo.constant dense<0.0> : tensor<6x2xf32>
      return %0 : tensor<6x2xf32>
    }"""
    module, said = ir.Module.parse(text), PassContext()
    InlineCalls().run(module, said)
    [warning] = said.diagnostics
    assert warning.severity == "warning"
    assert "once for each of 4 groups" in warning.message


def test_calls_and_composites_are_inlined(context: ir.Context) -> None:
    text = """
    func.func @main(%x: tensor<2x3xf32>, %y: tensor<2x3xf32>) -> (tensor<2x3xf32>, tensor<2x3xf32>) {
      %0:2 = call @swap_add(%x, %y) : (tensor<2x3xf32>, tensor<2x3xf32>) -> (tensor<2x3xf32>, tensor<2x3xf32>)
      %1:2 = call @swap_add(%0#0, %0#1) : (tensor<2x3xf32>, tensor<2x3xf32>) -> (tensor<2x3xf32>, tensor<2x3xf32>)
      return %1#0, %1#1 : tensor<2x3xf32>, tensor<2x3xf32>
    }
    func.func private @swap_add(%a: tensor<2x3xf32>, %b: tensor<2x3xf32>) -> (tensor<2x3xf32>, tensor<2x3xf32>) {
      %0 = stablehlo.composite "lib.sum" %a, %b {decomposition = @sum}
        : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
      return %b, %0 : tensor<2x3xf32>, tensor<2x3xf32>
    }
    func.func private @sum(%a: tensor<2x3xf32>, %b: tensor<2x3xf32>) -> tensor<2x3xf32> {
      %0 = stablehlo.add %a, %b : tensor<2x3xf32>
      return %0 : tensor<2x3xf32>
    }"""
    after = check_equivalent(text, InlineCalls())
    assert names(after) == {"builtin.module", "func.func", "func.return", "stablehlo.add"}


def test_deep_call_chains_grow_as_their_meaning(context: ir.Context) -> None:
    """Each function calls the next twice: 2^10 additions, from 11 functions, without recursion in
    the pass."""
    functions = [
        f"func.func {'public @main' if k == 0 else f'private @f{k}'}(%x: tensor<f32>) -> "
        "tensor<f32> {"
        f" %0 = call @f{k + 1}(%x) : (tensor<f32>) -> tensor<f32>"
        f" %1 = call @f{k + 1}(%0) : (tensor<f32>) -> tensor<f32> return %1 : tensor<f32> }}"
        for k in range(10)
    ]
    leaf = """func.func private @f10(%x: tensor<f32>) -> tensor<f32> {
      %0 = stablehlo.add %x, %x : tensor<f32>
      return %0 : tensor<f32> }"""
    module = ir.Module.parse("\n".join([*functions, leaf]))
    InlineCalls().run(module, PassContext())
    assert len(operations(module.operation, {"stablehlo.add"})) == 1024


def test_recursion_is_an_error(context: ir.Context) -> None:
    module = ir.Module.parse(
        "func.func @main() { call @main() : () -> () return }",
    )
    with pytest.raises(PassFailure, match="@main -> @main"):
        InlineCalls().run(module, PassContext())


# ---------------------------------------------------------------------------------------------------------
# normalize


@pytest.mark.parametrize(
    ("argument", "result", "body"),
    [
        ("1x8", "4x8", "%0 = stablehlo.broadcast_in_dim %x, dims = [0, 1] : (A) -> R"),
        ("1x1", "3x2", "%0 = stablehlo.broadcast_in_dim %x, dims = [1, 0] : (A) -> R"),
        ("2x1x3", "3x4x2", "%0 = stablehlo.broadcast_in_dim %x, dims = [2, 1, 0] : (A) -> R"),
        (
            "2x3",
            "2x4x3",
            "%m = stablehlo.broadcast_in_dim %x, dims = [0, 3] : (A) -> tensor<2x1x4x3xf32>\n"
            "%0 = stablehlo.reshape %m : (tensor<2x1x4x3xf32>) -> R",
        ),
        (
            "2x3",
            "3x2x1",
            "%m = stablehlo.broadcast_in_dim %x, dims = [2, 0] : (A) -> tensor<3x1x2xf32>\n"
            "%0 = stablehlo.reshape %m : (tensor<3x1x2xf32>) -> R",
        ),
        (
            "2x1",
            "6",
            "%m = stablehlo.broadcast_in_dim %x, dims = [0, 1] : (A) -> tensor<2x3xf32>\n"
            "%0 = stablehlo.reshape %m : (tensor<2x3xf32>) -> R",
        ),
        (
            "2x3x4",
            "3x4x2",
            "%m = stablehlo.transpose %x, dims = [2, 0, 1] : (A) -> tensor<4x2x3xf32>\n"
            "%0 = stablehlo.transpose %m, dims = [2, 0, 1] : (tensor<4x2x3xf32>) -> R",
        ),
        (
            "2x3",
            "4x3",
            "%m = stablehlo.concatenate %x, %x, %x, dim = 0 : (A, A, A) -> tensor<6x3xf32>\n"
            "%s = stablehlo.slice %m [2:6, 0:3] : (tensor<6x3xf32>) -> tensor<4x3xf32>\n"
            "%t = stablehlo.slice %s [0:2, 1:3] : (tensor<4x3xf32>) -> tensor<2x2xf32>\n"
            "%p = stablehlo.slice %m [1:5, 0:1] : (tensor<6x3xf32>) -> tensor<4x1xf32>\n"
            "%q = stablehlo.concatenate %t, %t, dim = 0 : (tensor<2x2xf32>, tensor<2x2xf32>) -> "
            "tensor<4x2xf32>\n"
            "%0 = stablehlo.concatenate %p, %q, dim = 1 : (tensor<4x1xf32>, tensor<4x2xf32>) -> R",
        ),
    ],
)
def test_normal_form_computes_the_same(
    context: ir.Context, argument: str, result: str, body: str
) -> None:
    body = body.replace("(A", f"(tensor<{argument}xf32>").replace("A", f"tensor<{argument}xf32>")
    body = body.replace("-> R", f"-> tensor<{result}xf32>")
    text = f"""func.func @main(%x: tensor<{argument}xf32>) -> tensor<{result}xf32> {{
      {body}
      return %0 : tensor<{result}xf32> }}"""
    after = check_equivalent(text, Normalize())
    again = PassContext()
    Normalize().run(after, again)
    assert again.statistics["rewritten"] == 0, "one sweep reaches the normal form"
    for op in operations(after.operation, {"stablehlo.broadcast_in_dim"}):
        dims = list(ir.DenseI64ArrayAttr(op.attributes["broadcast_dimensions"]))
        source, target = (
            ir.RankedTensorType(v.type).shape for v in (op.operands[0], op.results[0])
        )
        assert [target[d] for d in dims] == list(source), "no dimension is stretched"


# -----------------------------------------------------------------------------------------------------
# batch-gathers

ROWS = """
  %iota = stablehlo.iota dim = 0 : tensor<4xi32>
  %c0 = stablehlo.constant dense<0> : tensor<4xi32>
  %c4 = stablehlo.constant dense<4> : tensor<4xi32>
  %neg = stablehlo.compare LT, %iota, %c0 : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi1>
  %wrap = stablehlo.add %iota, %c4 : tensor<4xi32>
  %rows = stablehlo.select %neg, %wrap, %iota : tensor<4xi1>, tensor<4xi32>
  %r = stablehlo.broadcast_in_dim %rows, dims = [0] : (tensor<4xi32>) -> tensor<4x3x1xi32>
  %c = stablehlo.reshape %cols : (tensor<4x3xi32>) -> tensor<4x3x1xi32>
"""
JOIN = (
    "stablehlo.concatenate %r, %c, dim = 2 : (tensor<4x3x1xi32>, tensor<4x3x1xi32>) -> "
    "tensor<4x3x2xi32>"
)
SWAPPED = JOIN.replace("%r, %c", "%c, %r")
PICK = """ "stablehlo.gather"(%x, %indices) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0, 1],
  start_index_map = MAP, index_vector_dim = 2>, slice_sizes = array<i64: 1, 1>}> : (tensor<4x5xf32>, tensor<4x3x2xi32>)
  -> tensor<4x3xf32>"""
PUT = scatter(
    "inserted_window_dims = [0, 1], scatter_dims_to_operand_dims = MAP, index_vector_dim = 2",
    "(tensor<4x5xf32>, tensor<4x3x2xi32>, tensor<4x3xf32>) -> tensor<4x5xf32>",
)


@pytest.mark.parametrize("columns_first", [False, True])
@pytest.mark.parametrize("last_column", [None, 4, 2])
@pytest.mark.parametrize(("op", "result"), [(PICK, "4x3"), (PUT, "4x5")])
def test_row_coordinates_become_a_batch(
    context: ir.Context, columns_first: bool, last_column: int | None, op: str, result: str
) -> None:
    """Out-of-range columns behave as before: a gather clamps them, a scatter drops them, a clamp
    moves them."""
    join, index_map = (SWAPPED, "[1, 0]") if columns_first else (JOIN, "[0, 1]")
    indices = f"%indices = {join}"
    if last_column is not None:
        ends = [last_column, 3] if columns_first else [3, last_column]
        indices = f"""%joined = {join}
          %low = stablehlo.constant dense<0> : tensor<4x3x2xi32>
          %ends = stablehlo.constant dense<{ends}> : tensor<2xi32>
          %high = stablehlo.broadcast_in_dim %ends, dims = [2] : (tensor<2xi32>) -> tensor<4x3x2xi32>
          %indices = stablehlo.clamp %low, %joined, %high : tensor<4x3x2xi32>"""
    arguments = "%x: tensor<4x5xf32>, %cols: tensor<4x3xi32>, %u: tensor<4x3xf32>"
    text = f"""func.func @main({arguments}) -> tensor<{result}xf32> {{ {ROWS} {indices}
      %0 = {op.replace("MAP", index_map)}
      return %0 : tensor<{result}xf32> }}"""
    after = check_equivalent(text, BatchGathers())
    assert "batching_dims = [0]" in str(after)
    assert "stablehlo.concatenate" not in names(after)


@pytest.mark.parametrize("body", ["stablehlo.add", "stablehlo.maximum", ""])
def test_scatter_by_coordinates_alone(context: ir.Context, body: str) -> None:
    """Rows 0..3 of x are combined with rows of u: transposed by its window, and summed over the
    dimension of size 2."""
    dims = (
        "update_window_dims = [1], inserted_window_dims = [1], scatter_dims_to_operand_dims = "
        "[1], index_vector_dim = 2"
    )
    op = scatter(
        dims, "(tensor<5x4xf32>, tensor<2x4x1xi32>, tensor<2x5x4xf32>) -> tensor<5x4xf32>", body
    )
    text = f"""func.func @main(%x: tensor<5x4xf32>, %u: tensor<2x5x4xf32>) -> tensor<5x4xf32> {{
      %indices = stablehlo.iota dim = 1 : tensor<2x4x1xi32>
      %0 = {op}
      return %0 : tensor<5x4xf32> }}"""
    if not body:
        # which of two writes to one place wins is open, so let both write the same
        rng = np.random.default_rng(0)
        update = np.broadcast_to(rng.integers(0, 9, (1, 5, 4)), (2, 5, 4)).astype(np.float32)
        inputs: list[np.ndarray] | None = [np.zeros((5, 4), np.float32), update]
    else:
        inputs = None
    after = check_equivalent(text, BatchGathers(), inputs=inputs)
    assert ("stablehlo.reduce" in names(after)) == (body == "stablehlo.add")


def test_gather_by_coordinates_alone(context: ir.Context) -> None:
    """x[i, :2, j] for all i, j, laid out as (j, i, window)."""
    text = """func.func @main(%x: tensor<3x5x4xf32>) -> tensor<4x3x2xf32> {
      %i = stablehlo.iota dim = 1 : tensor<4x3x1xi32>
      %j = stablehlo.iota dim = 0 : tensor<4x3x1xi32>
      %indices = stablehlo.concatenate %i, %j, dim = 2 : (tensor<4x3x1xi32>, tensor<4x3x1xi32>) -> tensor<4x3x2xi32>
      %0 = "stablehlo.gather"(%x, %indices) <{dimension_numbers = #stablehlo.gather<offset_dims = [2],
        collapsed_slice_dims = [0, 2], start_index_map = [0, 2], index_vector_dim = 2>,
        slice_sizes = array<i64: 1, 2, 1>}> : (tensor<3x5x4xf32>, tensor<4x3x2xi32>) -> tensor<4x3x2xf32>
      return %0 : tensor<4x3x2xf32> }"""
    after = check_equivalent(text, BatchGathers())
    assert "stablehlo.gather" not in names(after)


@pytest.mark.parametrize(
    ("expression", "dim"),
    [
        ("stablehlo.constant dense<[[0, 0, 0], [1, 1, 1]]> : tensor<2x3xi32>", 0),
        ("stablehlo.constant dense<[[0, 1, 2], [0, 1, 2]]> : tensor<2x3xi32>", 1),
        ("stablehlo.constant dense<[[0, 1, 2], [0, 1, 3]]> : tensor<2x3xi32>", None),
        ("stablehlo.maximum %iota, %zero : tensor<2x3xi32>", 1),
        ("stablehlo.minimum %zero, %iota : tensor<2x3xi32>", None),
        ("stablehlo.minimum %two, %iota : tensor<2x3xi32>", 1),
        ("stablehlo.add %iota, %zero : tensor<2x3xi32>", 1),
        ("stablehlo.subtract %zero, %iota : tensor<2x3xi32>", None),
        ("stablehlo.add %iota, %two : tensor<2x3xi32>", None),
        ("stablehlo.transpose %other, dims = [1, 0] : (tensor<3x2xi32>) -> tensor<2x3xi32>", 1),
        # zeros along a dimension of size 1, which is then stretched
        (
            "stablehlo.broadcast_in_dim %single, dims = [1] : (tensor<1xi32>) -> tensor<2x3xi32>",
            None,
        ),
    ],
)
def test_what_counts_as_a_coordinate(context: ir.Context, expression: str, dim: int | None) -> None:
    module = ir.Module.parse(f"""func.func @main() -> tensor<2x3xi32> {{
      %iota = stablehlo.iota dim = 1 : tensor<2x3xi32>
      %other = stablehlo.iota dim = 0 : tensor<3x2xi32>
      %single = stablehlo.iota dim = 0 : tensor<1xi32>
      %zero = stablehlo.constant dense<0> : tensor<2x3xi32>
      %two = stablehlo.constant dense<2> : tensor<2x3xi32>
      %0 = {expression}
      return %0 : tensor<2x3xi32> }}""")
    (terminator,) = operations(module.operation, {"func.return"})
    assert coordinate_dim(terminator.operands[0]) == dim


# ------------------------------------------------------------------------------------------------------
# unroll-loops


def loop(condition: str, step: str, start: int = 0, type_: str = "i32") -> str:
    """A loop that reads row i of w and writes it, times its predecessor, to row i of the result."""
    t = f"tensor<{type_}>"
    return f"""func.func @main(%w: tensor<4x2xf32>, %x: tensor<2xf32>) -> (tensor<2xf32>, tensor<4x2xf32>, {t}) {{
      %start = stablehlo.constant dense<{start}> : {t}
      %zero = stablehlo.constant dense<0> : {t}
      %one = stablehlo.constant dense<1> : {t}
      %three = stablehlo.constant dense<3> : {t}
      %four = stablehlo.constant dense<4> : {t}
      %none = stablehlo.constant dense<0.0> : tensor<4x2xf32>
      %0:3 = stablehlo.while(%i = %start, %v = %x, %out = %none) : {t}, tensor<2xf32>, tensor<4x2xf32>
        cond {{
          %p = stablehlo.compare {condition} : ({t}, {t}) -> tensor<i1>
          stablehlo.return %p : tensor<i1>
        }} do {{
          %neg = stablehlo.compare LT, %i, %zero : ({t}, {t}) -> tensor<i1>
          %wrapped = stablehlo.add %i, %four : {t}
          %at = stablehlo.select %neg, %wrapped, %i : tensor<i1>, {t}
          %s = stablehlo.dynamic_slice %w, %at, %zero, sizes = [1, 2] : (tensor<4x2xf32>, {t}, {t}) -> tensor<1x2xf32>
          %r = stablehlo.reshape %s : (tensor<1x2xf32>) -> tensor<2xf32>
          %v1 = stablehlo.multiply %v, %r : tensor<2xf32>
          %u = stablehlo.reshape %v1 : (tensor<2xf32>) -> tensor<1x2xf32>
          %o = stablehlo.dynamic_update_slice %out, %u, %at, %zero
            : (tensor<4x2xf32>, tensor<1x2xf32>, {t}, {t}) -> tensor<4x2xf32>
          %i1 = {step} : {t}
          stablehlo.return %i1, %v1, %o : {t}, tensor<2xf32>, tensor<4x2xf32>
        }}
      return %0#1, %0#2, %0#0 : tensor<2xf32>, tensor<4x2xf32>, {t} }}"""


ONE_ROW = loop("LT, %i, %four", "stablehlo.add %i, %one").replace("<4", "<1")


@pytest.mark.parametrize(
    ("text", "trips", "stacked"),
    [
        (ONE_ROW, 1, False),
        (loop("LT, %i, %four", "stablehlo.add %i, %one"), 4, True),
        (loop("LE, %i, %three", "stablehlo.add %i, %one", type_="ui32"), 4, True),
        (loop("GE, %i, %zero", "stablehlo.subtract %i, %one", start=3), 4, True),
        # negative indices wrap, so every row is written twice; the second time counts
        (loop("NE, %i, %four", "stablehlo.add %one, %i", start=-4), 8, True),
        (loop("LT, %i, %four", "stablehlo.add %i, %three"), 2, False),
        (loop("GT, %i, %four", "stablehlo.add %i, %one"), 0, False),
        (loop("LT, %i, %four", "stablehlo.add %i, %one", start=3), 1, False),
        # the row after the last is clamped to the last
        (loop("LE, %i, %four", "stablehlo.add %i, %one", type_="i8"), 5, False),
    ],
)
def test_unrolled_loops_compute_the_same(
    context: ir.Context, text: str, trips: int, stacked: bool
) -> None:
    module = ir.Module.parse(text)
    (loop_op,) = operations(module.operation, {"stablehlo.while"})
    assert trip_count(loop_op, 100) == trips
    after = check_equivalent(text, UnrollLoops())
    assert "stablehlo.while" not in names(after)
    assert "stablehlo.dynamic_slice" not in names(after)
    assert ("stablehlo.concatenate" in names(after)) == stacked
    assert "stablehlo.dynamic_update_slice" not in names(after) or not stacked


def test_loops_beyond_the_limit_are_kept(context: ir.Context) -> None:
    module = ir.Module.parse(loop("LT, %i, %four", "stablehlo.multiply %i, %one"))
    pm = PassContext()
    UnrollLoops(max_iterations=10).run(module, pm)
    assert "stablehlo.while" in names(module)
    assert [d.severity for d in pm.diagnostics] == ["warning"]


def test_trips_are_counted_only_as_far_as_asked(context: ir.Context) -> None:
    module = ir.Module.parse(loop("LT, %i, %four", "stablehlo.add %i, %one"))
    (loop_op,) = operations(module.operation, {"stablehlo.while"})
    assert [trip_count(loop_op, limit) for limit in (0, 2, 3, 4, 5)] == [1, 3, 4, 4, 4]


# ---------------------------------------------------------------------------------------- whole
# programs, against XLA


def imported(module: ir.Module) -> ir.Module:
    """The import phase with loops unrolled, step by step."""
    InlineCalls().run(module, PassContext())
    UnrollLoops().run(module, PassContext())
    run_native(
        module, "builtin.module(func.func(chlo-legalize-to-stablehlo),canonicalize,cse,symbol-dce)"
    )
    BatchGathers().run(module, PassContext())
    Normalize().run(module, PassContext())
    run_native(module, CANONICALIZE)
    VerifyImported().run(module, PassContext())
    module.operation.verify()
    return module


def scan_over_layers(jax: Any) -> tuple[Callable, Sequence[Any]]:
    jnp = jax.numpy

    def loss(w, b, x):
        def layer(h, wb):
            return jax.nn.relu(h @ wb[0] + wb[1]), None

        return jnp.mean(jnp.clip(jax.lax.scan(layer, x, (w, b))[0], -1.0, 1.0) ** 2)

    rng = np.random.default_rng(1)
    arrays = [rng.normal(size=s).astype(np.float32) for s in ((3, 8, 8), (3, 8), (4, 8))]
    return jax.value_and_grad(loss, argnums=(0, 1)), arrays


def picked_losses(jax: Any) -> tuple[Callable, Sequence[Any]]:
    jnp = jax.numpy

    def loss(x, labels, cols):
        taken = jnp.take_along_axis(jax.nn.log_softmax(x), labels[:, None], axis=1)[:, 0]
        indexed = x[jnp.arange(x.shape[0]), labels] + x.at[jnp.arange(x.shape[0]), cols].get(
            mode="clip"
        )
        return -jnp.mean(taken) + jnp.sum(indexed * jnp.arange(5.0))

    x = np.random.default_rng(2).normal(size=(5, 7)).astype(np.float32)
    return jax.value_and_grad(loss), [
        x,
        np.array([0, 6, 3, -1, 2], np.int32),
        np.array([0, 9, -9, 6, 1], np.int32),
    ]


def dropout(jax: Any) -> tuple[Callable, Sequence[Any]]:
    def drop(key, x):
        keep = jax.random.bernoulli(jax.random.wrap_key_data(key), 0.7, x.shape)
        return jax.numpy.where(keep, x / 0.7, 0.0), jax.lax.top_k(x, 2)

    return drop, [
        np.array([0, 42], np.uint32),
        np.random.default_rng(3).normal(size=(6, 5)).astype(np.float32),
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "gone"),
    [
        (
            scan_over_layers,
            ("stablehlo.while", "stablehlo.dynamic_slice", "stablehlo.dynamic_update_slice"),
        ),
        (picked_losses, ()),
        (dropout, ()),
    ],
)
def test_imported_programs_give_the_same_numbers(
    context: ir.Context, program: Callable, gone: Sequence[str]
) -> None:
    jax = pytest.importorskip("jax")
    function, inputs = program(jax)
    exported = jax.export.export(jax.jit(function))(*inputs)
    original = stablehlo.deserialize_portable_artifact(context, exported.mlir_module_serialized)
    rewritten = imported(
        stablehlo.deserialize_portable_artifact(context, exported.mlir_module_serialized)
    )
    assert not names(rewritten) & {"func.call", "stablehlo.composite", *gone}
    if program is picked_losses:
        for op in operations(rewritten.operation, {"stablehlo.gather", "stablehlo.scatter"}):
            assert "batching_dims = [0]" in str(op), "every indexing of rows is batched"
    expected = [np.asarray(leaf) for leaf in jax.tree.leaves(jax.jit(function)(*inputs))]
    for module in (original, rewritten):
        for actual, by_jax in zip(run_xla(module, inputs), expected, strict=True):
            np.testing.assert_allclose(actual, by_jax, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [CheckCustomCalls, FlattenTuples])
def test_what_changes_nothing_spares_the_module_the_verifier(
    kind: type[Pass], context: ir.Context
) -> None:
    module = ir.Module.parse(
        """
        func.func public @main(%a: tensor<4xf32>) -> tensor<4xf32> {
          %0 = stablehlo.add %a, %a : tensor<4xf32>
          return %0 : tensor<4xf32>
        }
        """
    )
    before, pm = str(module), PassContext()
    kind().run(module, pm)
    assert pm.preserved
    assert str(module) == before


def test_a_tuple_that_is_taken_apart_is_a_change(context: ir.Context) -> None:
    module = ir.Module.parse(
        """
        func.func public @main(%a: tuple<tensor<4xf32>>) -> tensor<4xf32> {
          %0 = stablehlo.get_tuple_element %a[0] : (tuple<tensor<4xf32>>) -> tensor<4xf32>
          return %0 : tensor<4xf32>
        }
        """
    )
    pm = PassContext()
    FlattenTuples().run(module, pm)
    assert not pm.preserved
