"""Refuse custom calls that are not known.

Needs: no calls (shardopt-inline-calls), so that what nobody calls is gone. Holds afterwards: every
custom call is one that XLA or JAX registers, or that the option `custom-calls` names
(`shardopt.dialect.custom_calls`); the module is unchanged.

    %0 = custom_call @lapack_spotrf_ffi(%x)                ok
    %1 = custom_call @mine(%x)                             error, ok with custom-calls=mine
    %2 = custom_call @xla_ffi_python_cpu_callback(%x)      error

Said when the model is planned, not only before it runs: another target has no registration in the
processes of the workers, or follows an address of the process that traced the model."""

from __future__ import annotations

from dataclasses import dataclass

from jaxlib.mlir import ir

from shardopt.dialect.custom_calls import custom_call_faults
from shardopt.passes.base import Pass, PassContext
from shardopt.passes.options import plan_option


@dataclass(frozen=True)
class CheckCustomCalls(Pass):
    name = "shardopt-check-custom-calls"
    summary = "refuse custom calls that neither XLA nor JAX registers and that no option allows"

    custom_calls: str = plan_option("custom_calls")

    def run(self, module: ir.Module, pm: PassContext) -> None:
        pm.refuse(custom_call_faults(module, self.custom_calls))
        pm.preserve()
