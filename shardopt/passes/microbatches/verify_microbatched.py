"""Check that a module has the microbatched form, the contract between the microbatch phase and
clustering.

Needs: shardopt-split-microbatches. Holds afterwards: what `dialect/microbatched_form.py` says; the
module is unchanged. The first departure is the error, and its notes name up to four others."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from jaxlib.mlir import ir

from shardopt.forms.microbatched_form import violations
from shardopt.passes.base import Pass, PassContext

# One cause often repeats on many operations.
_MAX_REPORTED = 5


@dataclass(frozen=True)
class VerifyMicrobatched(Pass):
    name = "shardopt-verify-microbatched"
    summary = "check that @main is a prologue, one microbatch loop and an epilogue"

    def run(self, module: ir.Module, pm: PassContext) -> None:
        reported = list(islice(violations(module), _MAX_REPORTED))
        if reported:
            first, *others = reported
            raise pm.error(first.op, first.message, [(other.op, other.message) for other in others])
