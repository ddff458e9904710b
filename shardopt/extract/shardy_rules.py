"""Shardy's sharding rules, from attributes of operations to values and back."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from shardopt.graph.op_graph import FactorRule

RULE = "sdy.sharding_rule"

_RULES: dict[str, FactorRule] = {}


def has_rule(op: ir.Operation) -> bool:
    """Whether an operation carries a rule: its own, or inside of `sharding_rules` Shardy's."""
    return RULE in op.attributes


def is_own_rule(op: ir.Operation) -> bool:
    """Whether an operation carries a rule that Shardy did not make, and would not make again."""
    return has_rule(op) and sdy.OpShardingRuleAttr(op.attributes[RULE]).is_custom


def parse_rule(attribute: ir.Attribute) -> FactorRule:
    """The rule in the value of an attribute."""
    text = str(attribute)
    rule = _RULES.get(text)
    if rule is None:
        attr = sdy.OpShardingRuleAttr(attribute)
        rule = _RULES[text] = FactorRule(
            sizes=tuple(attr.factor_sizes),
            operands=tuple(_mapping(m) for m in attr.operand_mappings),
            results=tuple(_mapping(m) for m in attr.result_mappings),
            reduction=frozenset(attr.reduction_factors),
            need_replication=frozenset(attr.need_replication_factors),
            permutation=frozenset(attr.permutation_factors),
            blocked=frozenset(attr.blocked_propagation_factors),
        )
    return rule


def own_rule_attr(rule: FactorRule) -> ir.Attribute:
    """The attribute of a rule that Shardy does not make itself."""
    operands, results = (
        [
            sdy.TensorMappingAttr.get([sdy.DimMappingAttr.get(list(dim)) for dim in mapping])
            for mapping in side
        ]
        for side in (rule.operands, rule.results)
    )
    return sdy.OpShardingRuleAttr.get(
        list(rule.sizes),
        operands,
        results,
        sorted(rule.reduction),
        sorted(rule.need_replication),
        sorted(rule.permutation),
        sorted(rule.blocked),
        is_custom=True,
    )


def resized_sizes(rule: FactorRule, shapes: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The sizes of the factors for operands and results of other shapes. A factor that is a whole
    dimension has its extent (the least, as in JAX, where these differ); what is left of a dimension
    of several belongs to the major one."""
    known: dict[int, int] = {}
    dims = [
        pair
        for mapping, shape in zip((*rule.operands, *rule.results), shapes, strict=True)
        for pair in zip(mapping, shape, strict=True)
    ]
    for factors, extent in dims:
        if len(factors) == 1:
            known[factors[0]] = min(extent, known.get(factors[0], extent))
    for factors, extent in dims:
        left = [factor for factor in factors if factor not in known]
        if left:
            known.update((factor, rule.sizes[factor]) for factor in left[1:])
            known[left[0]] = extent // prod(known[f] for f in factors if f != left[0])
    return tuple(known[factor] for factor in range(len(rule.sizes)))


def _mapping(attr: ir.Attribute) -> tuple[tuple[int, ...], ...]:
    return tuple(
        tuple(sdy.DimMappingAttr(dim).factor_indices)
        for dim in sdy.TensorMappingAttr(attr).dim_mappings
    )
