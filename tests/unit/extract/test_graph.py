"""Reading StableHLO into `OpGraph`: tensors, rules, reducers, FLOPs, captured values."""

from __future__ import annotations

import pytest
from jaxlib.mlir import ir

from shardopt.dialect.program import body_of
from shardopt.extract.control_flow import mark_carried
from shardopt.extract.mesh_graphs import read_plain
from shardopt.extract.op_graph import GraphReader, free_values, read_tensor, sharding_rules
from shardopt.extract.op_work import read_work
from shardopt.graph.op_flops import Work
from shardopt.graph.op_graph import FactorRule, Op, OpGraph, Tensor
from shardopt.ir.context import make_context
from shardopt.ir.loops import UNKNOWN_TRIPS
from shardopt.ir.rewriting import functions, operations, terminator
from shardopt.mesh.mesh import Mesh


def read(text: str) -> OpGraph:
    """The graph of the body of `@main`."""
    module = ir.Module.parse(text, make_context())
    with module.context:
        block = next(functions(module)).regions[0].blocks[0]
        reader = GraphReader()
        for argument in block.arguments:
            reader.tensor(argument)
        with sharding_rules(module):
            reader.add_ops(body_of(block))
        assert "sdy.sharding_rule" not in str(module), "rules are scaffolding"
        return reader.graph(reader.tensor(value) for value in terminator(block).operands)


def op_of(body: str, arguments: str, result: str) -> Op:
    """The last operation of a body that defines %r."""
    return read(
        f"func.func @main({arguments}) -> {result} {{ {body}\n return %r : {result} }}"
    ).ops[-1]


def test_graph_of_two_operations() -> None:
    graph = read("""
      func.func @main(%x: tensor<4x8xf32>, %w: tensor<8x2xbf16>) -> (tensor<4x2xf32>, tensor<4x8xf32>) {
        %0 = stablehlo.tanh %x : tensor<4x8xf32>
        %1 = stablehlo.dot_general %0, %w, contracting_dims = [1] x [0]
          : (tensor<4x8xf32>, tensor<8x2xbf16>) -> tensor<4x2xf32>
        return %1, %x : tensor<4x2xf32>, tensor<4x8xf32>
      }""")
    assert graph.tensors[:2] == (Tensor((4, 8), "f32", 4), Tensor((8, 2), "bf16", 2))
    assert [(op.name, op.operands, op.results) for op in graph.ops] == [
        ("tanh", (0,), (2,)),
        ("dot_general", (2, 1), (3,)),
    ]
    assert (graph.inputs, graph.outputs) == ((0, 1), (3, 0))
    assert graph.producers() == (-1, -1, 0, 1)
    assert graph.consumers() == ((0,), (1,), (1,), ())
    assert graph.ops[1].flops == 2 * 4 * 8 * 2


def test_rule_of_a_batched_product() -> None:
    op = op_of(
        "%r = stablehlo.dot_general %a, %b, batching_dims = [0] x [0], contracting_dims = [2] x [1]"
        " : (tensor<3x4x5xf32>, tensor<3x5x7xf32>) -> tensor<3x4x7xf32>",
        "%a: tensor<3x4x5xf32>, %b: tensor<3x5x7xf32>",
        "tensor<3x4x7xf32>",
    )
    rule = op.rule
    assert rule is not None
    sizes = [
        tuple(rule.sizes[f] for dim in value for f in dim)
        for value in (*rule.operands, *rule.results)
    ]
    assert sizes == [(3, 4, 5), (3, 5, 7), (3, 4, 7)]
    (contracted,) = rule.reduction
    assert rule.sizes[contracted] == 5
    assert op.reducer == "add"


def test_rule_of_a_merging_reshape() -> None:
    op = op_of(
        "%r = stablehlo.reshape %a : (tensor<2x4x8xf32>) -> tensor<8x8xf32>",
        "%a: tensor<2x4x8xf32>",
        "tensor<8x8xf32>",
    )
    assert op.rule is not None
    merged = op.rule.results[0][0]
    assert [op.rule.sizes[f] for f in merged] == [2, 4]


@pytest.mark.parametrize(
    ("combine", "element", "init", "reducer"),
    [
        ("add", "f32", "0.0", "add"),
        ("add", "f32", "1.0", None),
        ("add", "bf16", "0.0", "add"),
        ("add", "i32", "0", "add"),
        ("maximum", "f32", "0xFF800000", "maximum"),
        ("maximum", "f32", "0.0", None),
        ("maximum", "i8", "-128", "maximum"),
        ("maximum", "ui8", "0", "maximum"),
        ("minimum", "ui8", "255", "minimum"),
        ("minimum", "i32", "2147483647", "minimum"),
        ("multiply", "f32", "1.0", "multiply"),
        ("and", "i1", "true", "and"),
        ("and", "i1", "false", None),
        ("and", "i32", "-1", "and"),
        ("or", "i1", "false", "or"),
        ("or", "ui32", "1", None),
    ],
)
def test_reductions_that_partial_results_can_be_taken_of(
    combine: str, element: str, init: str, reducer: str | None
) -> None:
    """Only those that begin from the neutral element: each device begins once."""
    op = op_of(
        f"%z = stablehlo.constant dense<{init}> : tensor<{element}>"
        f"%r = stablehlo.reduce(%a init: %z) applies stablehlo.{combine} across dimensions = [0]"
        f" : (tensor<4x8x{element}>, tensor<{element}>) -> tensor<8x{element}>",
        f"%a: tensor<4x8x{element}>",
        f"tensor<8x{element}>",
    )
    assert op.reducer == reducer
    assert op.rule is not None
    assert [op.rule.sizes[f] for f in op.rule.reduction] == [4]


@pytest.mark.parametrize(
    ("operands", "returned", "reducer"),
    [
        ("%x, %y", "%s", "add"),
        ("%y, %x", "%s", "add"),
        ("%x, %x", "%s", None),
        ("%x, %y", "%y", None),
    ],
)
def test_a_reduction_combines_what_it_has_with_each_element(
    operands: str, returned: str, reducer: str | None
) -> None:
    op = op_of(
        f"""%z = stablehlo.constant dense<0.0> : tensor<f32>
        %r = "stablehlo.reduce"(%a, %z) <{{dimensions = array<i64: 0>}}> ({{
          ^bb0(%x: tensor<f32>, %y: tensor<f32>):
            %s = stablehlo.add {operands} : tensor<f32>
            stablehlo.return {returned} : tensor<f32>
        }}) : (tensor<4xf32>, tensor<f32>) -> tensor<f32>""",
        "%a: tensor<4xf32>",
        "tensor<f32>",
    )
    assert op.reducer == reducer


@pytest.mark.parametrize(
    "body",
    ["stablehlo.constant dense<0.0> : tensor<4x8xf32>", "stablehlo.iota dim = 1 : tensor<4x8xf32>"],
)
def test_constants_may_be_made_in_any_sharding(body: str) -> None:
    op = op_of(f"%r = {body}", "", "tensor<4x8xf32>")
    assert op.rule == FactorRule((4, 8), (), (((0,), (1,)),))


def test_optimization_barrier_is_transparent() -> None:
    graph = read("""
      func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
        %0 = stablehlo.tanh %x : tensor<4xf32>
        %1:2 = stablehlo.optimization_barrier %0, %x : tensor<4xf32>, tensor<4xf32>
        %2 = stablehlo.add %1#0, %1#1 : tensor<4xf32>
        return %2 : tensor<4xf32>
      }""")
    assert [(op.name, op.operands) for op in graph.ops] == [("tanh", (0,)), ("add", (1, 0))]


LOOP = """
  func.func @main(%x: tensor<4xf32>, %n: tensor<i32>, %w: tensor<4xf32>) -> tensor<4xf32> {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %0:2 = stablehlo.while(%i = %one, %v = %x) : tensor<i32>, tensor<4xf32>
      cond { %c = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
             stablehlo.return %c : tensor<i1> }
      do { %s = stablehlo.multiply %v, %w : tensor<4xf32>
           %j = stablehlo.add %i, %one : tensor<i32>
           stablehlo.return %j, %s : tensor<i32>, tensor<4xf32> }
    return %0#1 : tensor<4xf32>
  }"""


def test_values_that_regions_capture_are_operands() -> None:
    graph = read(LOOP)
    loop = graph.ops[-1]
    assert loop.name == "while"
    assert loop.operands == (3, 0, 1, 2, 3), (
        "initial values, then bound, weights and step in order of first use"
    )
    assert len(loop.results) == 2
    assert loop.rule is None


def test_free_values_stop_at_what_the_region_defines() -> None:
    module = ir.Module.parse(LOOP, make_context())
    with module.context:
        block = next(functions(module)).regions[0].blocks[0]
        constant, loop = body_of(block)
        assert free_values(loop) == [block.arguments[1], block.arguments[2], constant.results[0]]
        assert free_values(constant) == []


@pytest.mark.parametrize(
    ("elements", "itemsize"),
    [
        ("i1 i4 ui8 f8E4M3FN f8E5M2", 1),
        ("bf16 f16 i16", 2),
        ("f32 i32 ui32", 4),
        ("f64 i64 complex<f32>", 8),
        ("complex<f64>", 16),
    ],
)
def test_itemsize(elements: str, itemsize: int) -> None:
    for element in elements.split():
        with make_context():
            assert read_tensor(ir.Type.parse(f"tensor<2x{element}>")).itemsize == itemsize


@pytest.mark.parametrize("text", ["tensor<?xf32>", "tensor<*xf32>", "i32"])
def test_only_static_tensors_are_read(text: str) -> None:
    with (
        make_context(),
        pytest.raises(ValueError, match="expected a ranked tensor of static shape"),
    ):
        read_tensor(ir.Type.parse(text))


def test_repeat_and_group_are_the_callers() -> None:
    module = ir.Module.parse(
        "func.func @main() { %0 = stablehlo.constant dense<0.0> : tensor<4xf32>\n return }",
        make_context(),
    )
    with module.context:
        reader = GraphReader()
        reader.add_ops(body_of(next(functions(module)).regions[0].blocks[0]), group=3, repeat=8)
        assert [(op.group, op.repeat) for op in reader.graph().ops] == [(3, 8)]


CHANGING = """
module {
  func.func public @main(%x: tensor<8x4xf32>, %w: tensor<4x4xf32>) -> tensor<8x4xf32> {
    %c0 = stablehlo.constant dense<0> : tensor<i32>
    %c1 = stablehlo.constant dense<1> : tensor<i32>
    %c3 = stablehlo.constant dense<3> : tensor<i32>
    %v = stablehlo.negate %w : tensor<4x4xf32>
    %r:2 = stablehlo.while(%i = %c0, %a = %x) : tensor<i32>, tensor<8x4xf32>
    cond {
      %p = stablehlo.compare LT, %i, %c3 : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %p : tensor<i1>
    } do {
      %n = stablehlo.add %i, %c1 : tensor<i32>
      %b = stablehlo.dot_general %a, %v, contracting_dims = [1] x [0]
        : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
      %d = stablehlo.tanh %b : tensor<8x4xf32>
      stablehlo.return %n, %d : tensor<i32>, tensor<8x4xf32>
    }
    return %r#1 : tensor<8x4xf32>
  }
}
"""


def test_what_changes_in_no_iteration_is_resharded_once() -> None:
    """The matrix comes from before the loop, the carried value and the product change in each of
    three iterations."""
    with make_context() as context:
        module = ir.Module.parse(CHANGING, context)
        mark_carried(module.operation)
        with sharding_rules(module):
            graph = read_plain(next(functions(module)), Mesh("m", (("x", 2),), (0, 1))).graph
    producers, names = graph.producers(), [op.name for op in graph.ops]
    dot, tanh = names.index("dot_general"), names.index("tanh")
    carried, matrix = graph.ops[dot].operands
    assert [graph.trips_of(dot, tensor, producers[tensor]) for tensor in (carried, matrix)] == [
        3,
        1,
    ]
    assert graph.trips_of(tanh, graph.ops[tanh].operands[0], dot) == 3
    outside = names.index("negate")
    assert graph.trips_of(outside, graph.ops[outside].operands[0], -1) == 1


@pytest.mark.parametrize(("text", "trips"), [(CHANGING, 3), (CHANGING.replace("LT", "NE"), 3)])
def test_work_of_a_loop_are_those_of_all_iterations(text: str, trips: int) -> None:
    """As many as the shard phase finds in its regions; the identities that it inserts have none."""
    with make_context() as context:
        module = ir.Module.parse(text, context)
        main = next(functions(module))
        (loop,) = operations(main, {"stablehlo.while"})
        work = read_work(loop)
        mark_carried(module.operation)
        with sharding_rules(module):
            graph = read_plain(main, Mesh("m", (("x", 2),), (0, 1))).graph
    product, counters = 2 * 8 * 4 * 4, 2
    assert work == Work(trips * (product + counters), trips * 8 * 4)
    assert work == Work(
        sum(op.flops * op.repeat for op in graph.ops if op.trips > 1),
        sum(op.transcendentals * op.repeat for op in graph.ops if op.trips > 1),
    )


def test_work_of_a_loop_of_unknown_length_and_of_branches() -> None:
    with make_context() as context:
        module = ir.Module.parse(LOOP, context)
        (loop,) = operations(next(functions(module)), {"stablehlo.while"})
        assert read_work(loop) == Work(UNKNOWN_TRIPS * (4 + 2))
        module = ir.Module.parse("""
          func.func @main(%x: tensor<4xf32>, %p: tensor<i1>) -> tensor<4xf32> {
            %r = "stablehlo.if"(%p) ({
              %a = stablehlo.add %x, %x : tensor<4xf32>
              stablehlo.return %a : tensor<4xf32>
            }, {
              %b = stablehlo.tanh %x : tensor<4xf32>
              stablehlo.return %b : tensor<4xf32>
            }) : (tensor<i1>) -> tensor<4xf32>
            return %r : tensor<4xf32>
          }""")
        (branch,) = operations(next(functions(module)), {"stablehlo.if"})
        assert read_work(branch) == Work(4, 4)
