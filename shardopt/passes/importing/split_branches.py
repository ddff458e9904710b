"""Split conditionals with many results, such as one that skips an update, into one for each result.

Needs: no calls (shardopt-inline-calls). Holds afterwards: no `case` or `if` has results that no
branch computes together, unless it holds operations with effects.

    %w:2 = "stablehlo.if"(%finite) ({            %w0 = "stablehlo.if"(%finite) ({
      %a = subtract %w1, %g1                       %a = subtract %w1, %g1
      %b = subtract %w2, %g2                       return %a }, { return %w1 })
      return %a, %b                         =>   %w1 = "stablehlo.if"(%finite) ({
    }, { return %w1, %w2 })                        %b = subtract %w2, %g2
                                                   return %b }, { return %w2 })

Later phases place whole operations: a conditional around the update of all parameters (dynamic loss
scaling, `optax.apply_if_finite`) would bring all gradients, parameters and optimizer state to one
stage."""

from __future__ import annotations

from dataclasses import dataclass

from jaxlib.mlir import ir

from shardopt.ir.loops import BRANCHES
from shardopt.ir.rewriting import has_user_attribute, operations
from shardopt.passes.base import Pass, PassContext
from shardopt.passes.importing.branches import split_results


@dataclass(frozen=True)
class SplitBranches(Pass):
    name = "shardopt-split-branches"
    summary = (
        "split conditionals with many results, such as one around an update, into one "
        "for each result"
    )

    def run(self, module: ir.Module, pm: PassContext) -> None:
        parts = 0
        for op in operations(module.operation, BRANCHES):
            if len(op.results) > 1 and not has_user_attribute(op):
                count = split_results(op)
                parts += count if count > 1 else 0
        pm.statistic("parts", parts)
        if not parts:
            pm.preserve()
