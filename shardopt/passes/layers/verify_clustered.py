"""Check that every operation has its layer, the contract between clustering and the stage phase.

Needs: shardopt-cluster-layers. Holds afterwards: what `shardopt.forms.clustered_form` says; the
module is unchanged. The first departure is the error, and its notes name up to four others."""

from __future__ import annotations

from dataclasses import dataclass

from jaxlib.mlir import ir

from shardopt.forms.clustered_form import violations
from shardopt.passes.base import Pass, PassContext


@dataclass(frozen=True)
class VerifyClustered(Pass):
    """See the head of the file."""

    name = "shardopt-verify-clustered"
    summary = "check that every operation belongs to a layer"

    def run(self, module: ir.Module, pm: PassContext) -> None:
        pm.refuse(violations(module))
        pm.preserve()
