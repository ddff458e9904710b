"""Check that every layer has a stage, and every stage a mesh, on which its operations can run in
time; changes nothing.

Needs: shardopt-choose-stages. Holds afterwards: what `shardopt.forms.placed_form` says; the module
is unchanged. The first departure is the error, and its notes name up to four others."""

from __future__ import annotations

from dataclasses import dataclass

from jaxlib.mlir import ir

from shardopt.forms.placed_form import violations
from shardopt.passes.base import Pass, PassContext


@dataclass(frozen=True)
class VerifyPlaced(Pass):
    """See the head of the file."""

    name = "shardopt-verify-placed"
    summary = "check that every layer has a stage, and every stage a mesh"

    def run(self, module: ir.Module, pm: PassContext) -> None:
        pm.refuse(violations(module))
        pm.preserve()
