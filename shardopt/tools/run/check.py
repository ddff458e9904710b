"""`shardopt run --check`: the first step against one device, output by output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from shardopt.support.errors import UserError
from shardopt.tools.common import console

if TYPE_CHECKING:
    import numpy as np

    from shardopt.frontend.plans.plan import Plan
    from shardopt.runtime.reference import OutputDifference

Function: TypeAlias = "Callable[[Sequence[np.ndarray]], list[np.ndarray]]"

_OK, _ILL_CONDITIONED, _DIFFERS = "ok", "ill-conditioned", "DIFFERS"


def plan_reference(plan: Plan) -> Function:
    """The model that a plan was made for, on one device. Raises UserError for custom calls that
    may not run."""
    from shardopt.runtime.reference import Reference

    with plan.loaded as modules:
        original = modules.read(plan.original, name="original.mlirbc")
        # What the plan makes of the model is one file, and the model another.
        return Reference(original, plan.options.custom_calls)


def check(
    function: Function,
    inputs: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
    tolerance: float,
) -> None:
    """Print every output against one device, which `function` runs on. Raises UserError when one
    differs that is not ill-conditioned."""
    from shardopt.runtime.reference import compare, conditioning

    reference = function(inputs)
    rows = compare(outputs, reference)
    passed = all(row.within(tolerance) for row in rows)
    floors = [0.0] * len(rows) if passed else conditioning(function, inputs, reference)
    verdicts = [_verdict(row, floor, tolerance) for row, floor in zip(rows, floors, strict=True)]
    console().print(_difference_table(rows, verdicts))
    differing = [
        row.name for row, verdict in zip(rows, verdicts, strict=True) if verdict == _DIFFERS
    ]
    if differing:
        names = ", ".join(differing)
        raise UserError(
            f"{len(differing)} of {len(rows)} outputs differ by more than {tolerance:g}: {names}"
        )
    print(
        f"check passed: {verdicts.count(_OK)} of {len(rows)} outputs within "
        f"{tolerance:g} of one device"
    )
    if unstable := verdicts.count(_ILL_CONDITIONED):
        print(
            f"{unstable} ill-conditioned: the last bit of the inputs changes them by more "
            "than the tolerance"
        )


def _verdict(row: OutputDifference, floor: float, tolerance: float) -> str:
    from shardopt.runtime.reference import is_noise

    if row.within(tolerance):
        return _OK
    return _ILL_CONDITIONED if is_noise(row, floor, tolerance) else _DIFFERS


def _difference_table(rows: Sequence[OutputDifference], verdicts: Sequence[str]) -> Any:
    from rich.table import Table

    table = Table("output", "type", title="against one device")
    for name in ("max abs", "max rel", "unmatched", ""):
        table.add_column(name, justify="right")
    for row, verdict in zip(rows, verdicts, strict=True):
        type_ = f"{row.dtype}{list(row.shape)}"
        table.add_row(
            row.name, type_, f"{row.max_abs:.3g}", f"{row.max_rel:.3g}", str(row.unmatched), verdict
        )
    return table
