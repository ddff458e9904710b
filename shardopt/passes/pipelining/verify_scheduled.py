"""Check that the loop carries a schedule that the dataflow, the order of sends and the memory of
the devices allow.

Needs: shardopt-schedule-pipeline. Holds afterwards: what `shardopt.forms.scheduled_form` says; the
module is unchanged. The first departure is the error, and its notes name up to four others."""

from __future__ import annotations

from dataclasses import dataclass

from jaxlib.mlir import ir

from shardopt.forms.scheduled_form import violations
from shardopt.passes.base import Pass, PassContext
from shardopt.passes.options import plan_option


@dataclass(frozen=True)
class VerifyScheduled(Pass):
    """See the head of the file."""

    name = "shardopt-verify-scheduled"
    summary = "check that the loop carries a schedule that can run in memory"

    memory_fraction: float = plan_option("memory_fraction")

    def run(self, module: ir.Module, pm: PassContext) -> None:
        pm.refuse(violations(module, limits_memory=self.memory_fraction > 0))
        pm.preserve()
