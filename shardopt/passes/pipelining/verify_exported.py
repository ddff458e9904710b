"""Check that a module has the exported form, the contract between the compiler and the runtime.

Needs: shardopt-lower-to-fragment-calls. Holds afterwards:
what `shardopt.forms.exported_form` says; the module is unchanged. The first departure
is the error, and its notes name up to four others."""

from __future__ import annotations

from dataclasses import dataclass

from jaxlib.mlir import ir

from shardopt.forms.exported_verify import verify_exported
from shardopt.passes.base import Pass, PassContext


@dataclass(frozen=True)
class VerifyExported(Pass):
    """See the head of the file."""

    name = "shardopt-verify-exported"
    summary = "check that the module is a program of fragment calls that the runtime can execute"

    def run(self, module: ir.Module, pm: PassContext) -> None:
        pm.refuse(verify_exported(module))
        pm.preserve()
