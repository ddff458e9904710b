"""Rules of Shardy's on custom calls: what is taken of them, and how they follow a call to another
size."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from jaxlib.mlir import ir

from shardopt.extract.call_rules import CALL, call_limits, call_rule, fit_call
from shardopt.extract.op_graph import read_reducer, sharding_rules
from shardopt.extract.shardy_rules import own_rule_attr, parse_rule, resized_sizes
from shardopt.graph.op_graph import FactorRule
from shardopt.ir.context import make_context
from shardopt.ir.rewriting import operations

# A dimension of two factors, one that is contracted, and one that no operand has.
_CALL = """
func.func @main(%x: tensor<24x4xf32>) -> tensor<24x5xf32> {
  %0 = stablehlo.custom_call @mine(%x) {sdy.sharding_rule = #sdy.op_sharding_rule<
    ([ij, k])->([ij, l]) {i=8, j=3, k=4, l=5} reduction={k}, custom>}
    : (tensor<24x4xf32>) -> tensor<24x5xf32>
  return %0 : tensor<24x5xf32>
}"""


@pytest.fixture
def module() -> Iterator[ir.Module]:
    with make_context() as context, ir.Location.unknown(context):
        yield ir.Module.parse(_CALL)


def test_a_rule_on_a_call_is_taken(module: ir.Module) -> None:
    [call] = operations(module.operation, (CALL,))
    dims = ((0, 1), (2,)), ((0, 1), (3,))
    # Nothing tells a tile of a result alone which of them it is.
    whole, reduced = frozenset({3}), frozenset({2})
    assert call_rule(call) == FactorRule((8, 3, 4, 5), dims[:1], dims[1:], reduced, whole)
    assert read_reducer(call) == "add"
    with sharding_rules(module):
        assert call_rule(call) is not None
    assert call_rule(call) is not None  # it is the user's, not Shardy's


def test_a_kernel_that_the_module_carries_is_not_split(module: ir.Module) -> None:
    [call] = operations(module.operation, (CALL,))
    call.attributes["call_target_name"] = ir.StringAttr.get("mosaic_gpu_v2")
    assert call_rule(call) is None
    assert call_limits(call) == "its code was compiled for the extents that it has here"


def test_a_rule_follows_a_call_to_another_size(module: ir.Module) -> None:
    [call] = operations(module.operation, (CALL,))
    block = module.body.operations[0].regions[0].blocks[0]
    block.arguments[0].set_type(ir.Type.parse("tensor<6x2xf32>"))
    call.results[0].set_type(ir.Type.parse("tensor<6x5xf32>"))
    fit_call(call)
    rule = call_rule(call)
    # The major factor of a dimension takes what is left of it.
    assert rule is not None and rule.sizes == (2, 3, 2, 5)


def test_sizes_where_extents_of_a_factor_differ() -> None:
    rule = FactorRule((4, 2), (((0,),), ((0, 1),)), (((1,),),))
    assert resized_sizes(rule, [(4,), (6,), (3,)]) == (4, 3)
    broadcast = FactorRule((4,), (((0,),), ((0,),)), (((0,),),))
    assert resized_sizes(broadcast, [(8,), (1,), (8,)]) == (1,)


def test_rules_are_written_as_they_are_read(module: ir.Module) -> None:
    [call] = operations(module.operation, (CALL,))
    written = call.attributes["sdy.sharding_rule"]
    assert own_rule_attr(parse_rule(written)) == written
