"""A plan in which functions that say how they may be split are written out for its devices."""

from __future__ import annotations

from dataclasses import replace

from shardopt.frontend.calls.partitionable import Partitionables
from shardopt.frontend.plans.loaded_modules import LoadedModules
from shardopt.frontend.plans.plan import Plan


def written_out(plan: Plan, partitionables: Partitionables) -> Plan:
    """The plan with code in the place of the calls that stand for `partitionables`, and so without
    the model that it was made from. Raises UserError."""
    if not partitionables.functions:
        return plan
    from shardopt.ir.context import make_context
    from shardopt.ir.io import load_module, module_bytecode

    written = []
    with make_context() as context:
        for data in (plan.module, plan.original):
            module = load_module(data, context)
            partitionables.write_out(module)
            written.append(module_bytecode(module))
    module_data, original = written
    return replace(plan, module=module_data, original=original, source=None, loaded=LoadedModules())
