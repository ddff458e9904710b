"""Check that a sharding was chosen for every value and a strategy for every operation; changes
nothing.

Needs: shardopt-choose-shardings. Holds afterwards: what `shardopt.forms.chosen_form` says; the
module is unchanged. The first departure is the error, and its notes name up to four others."""

from __future__ import annotations

from dataclasses import dataclass

from jaxlib.mlir import ir

from shardopt.forms.chosen_form import violations
from shardopt.passes.base import Pass, PassContext


@dataclass(frozen=True)
class VerifyChosen(Pass):
    """See the head of the file."""

    name = "shardopt-verify-chosen"
    summary = "check that every operation of a stage has a strategy that fits"

    def run(self, module: ir.Module, pm: PassContext) -> None:
        pm.refuse(violations(module))
        pm.preserve()
