"""Check that a module has the microbatched form, the contract between the microbatch phase and
clustering.

Needs: shardopt-split-microbatches. Holds afterwards:
what `shardopt.forms.microbatched_form` says; the module is unchanged. The first departure
is the error, and its notes name up to four others."""

from __future__ import annotations

from dataclasses import dataclass

from jaxlib.mlir import ir

from shardopt.forms.microbatched_form import violations
from shardopt.passes.base import Pass, PassContext


@dataclass(frozen=True)
class VerifyMicrobatched(Pass):
    name = "shardopt-verify-microbatched"
    summary = "check that @main is a prologue, one microbatch loop and an epilogue"

    def run(self, module: ir.Module, pm: PassContext) -> None:
        pm.refuse(violations(module))
        pm.preserve()
