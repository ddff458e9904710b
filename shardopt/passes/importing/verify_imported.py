"""Check that a module has the imported form, the contract between import and every later phase.

Needs: the import passes. Holds afterwards: what `shardopt.forms.imported_form` says; the module is
unchanged. The first departure is the error, and its notes name up to four others."""

from __future__ import annotations

from dataclasses import dataclass

from jaxlib.mlir import ir

from shardopt.forms.imported_form import violations
from shardopt.passes.base import Pass, PassContext


@dataclass(frozen=True)
class VerifyImported(Pass):
    name = "shardopt-verify-imported"
    summary = "check that the module is one function of StableHLO operations on static shapes"

    def run(self, module: ir.Module, pm: PassContext) -> None:
        pm.refuse(violations(module))
        pm.preserve()
