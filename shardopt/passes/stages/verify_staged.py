"""Check that a program is laid out on disjoint meshes, the contract between the stage phase and
everything after it.

Needs: shardopt-outline-fragments. Holds afterwards: what `shardopt.forms.staged_form` says; the
module is unchanged. The first departure is the error, and its notes name up to four others."""

from __future__ import annotations

from dataclasses import dataclass

from jaxlib.mlir import ir

from shardopt.forms.staged_form import violations
from shardopt.passes.base import Pass, PassContext


@dataclass(frozen=True)
class VerifyStaged(Pass):
    """See the head of the file."""

    name = "shardopt-verify-staged"
    summary = "check that the program consists of fragments on disjoint meshes, joined by transfers"

    def run(self, module: ir.Module, pm: PassContext) -> None:
        pm.refuse(violations(module))
        pm.preserve()
