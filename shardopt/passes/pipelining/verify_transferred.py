"""Check that every transfer carries a plan that fills each tile of its destination, as the runtime
relies on.

Needs: shardopt-insert-transfers. Holds afterwards: what `shardopt.forms.transferred_form` says; the
module is unchanged. The first departure is the error, and its notes name up to four others."""

from __future__ import annotations

from dataclasses import dataclass

from jaxlib.mlir import ir

from shardopt.forms.transferred_form import violations
from shardopt.passes.base import Pass, PassContext


@dataclass(frozen=True)
class VerifyTransferred(Pass):
    """See the head of the file."""

    name = "shardopt-verify-transferred"
    summary = "check that every transfer carries a complete resharding plan"

    def run(self, module: ir.Module, pm: PassContext) -> None:
        pm.refuse(violations(module))
        pm.preserve()
