"""Check that every value inside a stage has a sharding that fits its shape and mesh; changes
nothing.

Runs after annotate-shardings, so that the later phases (transfers, export, the runtime) can rely on
the form described in `shardopt.forms.sharded_form`. The first departure in program order is the
error; its notes name up to four others."""

from __future__ import annotations

from dataclasses import dataclass

from jaxlib.mlir import ir

from shardopt.forms.sharded_form import violations
from shardopt.passes.base import Pass, PassContext


@dataclass(frozen=True)
class VerifySharded(Pass):
    """See the head of the file."""

    name = "shardopt-verify-sharded"
    summary = "check that every value inside a stage has a sharding"

    def run(self, module: ir.Module, pm: PassContext) -> None:
        pm.refuse(violations(module))
        pm.preserve()
