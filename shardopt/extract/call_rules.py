"""How custom calls may be split: cuDNN's attention as its configuration says
(`shardopt.extract.fused_attention`), any other as a rule of Shardy's says that stands on the call.

    %0 = custom_call @mine(%x, %g) {sdy.sharding_rule = #sdy.op_sharding_rule<
             ([i, j], [j])->([i, j]) {i=8, j=4} need_replication={j}, custom>}

Such a rule is a promise: the same call on tiles of its operands makes tiles of its results. What
is called has to take its extents from its operands, as handlers of XLA's FFI can; a kernel whose
code the module carries was compiled for the extents that stand there."""

from __future__ import annotations

from dataclasses import replace

from jaxlib.mlir import ir

from shardopt.dialect.custom_calls import PARTITIONED, call_target, is_kernel
from shardopt.extract.fused_attention import (
    NotSplit,
    attention_limits,
    attention_rule,
    fit_attention,
    is_attention,
)
from shardopt.extract.shardy_rules import (
    RULE,
    is_own_rule,
    own_rule_attr,
    parse_rule,
    resized_sizes,
)
from shardopt.graph.op_graph import FactorRule
from shardopt.ir.rewriting import shape_of

CALL = "stablehlo.custom_call"

_COMPILED = "its code was compiled for the extents that it has here"


def call_rule(op: ir.Operation) -> FactorRule | None:
    """The rule of a custom call; None for one that runs whole."""
    if is_attention(op):
        try:
            return attention_rule(op)
        except NotSplit:
            return None
    if not is_own_rule(op) or is_kernel(call_target(op)):
        return None
    rule = parse_rule(op.attributes[RULE])
    # Nothing that a call reads would tell it which tile of such a dimension it is to make.
    read = {factor for mapping in rule.operands for dim in mapping for factor in dim}
    made_alone = frozenset(range(len(rule.sizes))) - read
    whole = rule.need_replication | made_alone
    if call_target(op) == PARTITIONED:  # it adds up by itself, and says so of no device
        return replace(rule, reduction=frozenset(), need_replication=whole | rule.reduction)
    return replace(rule, need_replication=whole)


def call_limits(op: ir.Operation) -> str:
    """Why a custom call runs whole along some dimension or all; nothing where that is not known
    better than from its rule."""
    if op.name != CALL:
        return ""
    if is_attention(op):
        return attention_limits(op)
    return _COMPILED if is_kernel(call_target(op)) else ""


def fit_call(op: ir.Operation) -> None:
    """Let what a custom call says of extents be true of the operands and results it has now."""
    if op.name != CALL:
        return
    if is_attention(op):
        fit_attention(op)
    elif is_own_rule(op):
        rule = parse_rule(op.attributes[RULE])
        sizes = resized_sizes(rule, [shape_of(value) for value in (*op.operands, *op.results)])
        op.attributes[RULE] = own_rule_attr(replace(rule, sizes=sizes))
