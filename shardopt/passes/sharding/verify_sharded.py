"""Check that every value inside a stage has a sharding that fits its shape and mesh; changes
nothing.

Runs after annotate-shardings, so that the later phases (transfers, export, the runtime) can rely on
the form described in `shardopt.forms.sharded_form`. The first departure in program order is the
error; its notes name up to four others."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from jaxlib.mlir import ir

from shardopt.forms.sharded_form import violations
from shardopt.passes.base import Pass, PassContext

# One cause (a pass that forgot an operation) often repeats on thousands of values.
_MAX_REPORTED = 5


@dataclass(frozen=True)
class VerifySharded(Pass):
    """See the head of the file."""

    name = "shardopt-verify-sharded"
    summary = "check that every value inside a stage has a sharding"

    def run(self, module: ir.Module, pm: PassContext) -> None:
        reported = list(islice(violations(module), _MAX_REPORTED))
        if reported:
            first, *others = reported
            raise pm.error(first.op, first.message, [(other.op, other.message) for other in others])
