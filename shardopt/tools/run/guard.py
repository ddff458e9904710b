"""`shardopt run --nonfinite`: what becomes of a step whose loss is not a number."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Literal

from shardopt.support.errors import UserError

NonFinite = Literal["report", "stop", "skip"]


def check_finite(step: int, scalars: Mapping[str, float], policy: NonFinite) -> None:
    """Raises UserError or LeaveOut, or prints a warning, as the policy has it."""
    wrong = {name: value for name, value in scalars.items() if not math.isfinite(value)}
    if not wrong:
        return
    from shardopt.runtime.restart import LeaveOut

    text = ", ".join(f"{name} is {value}" for name, value in wrong.items())
    if policy == "stop":
        raise UserError(f"step {step}: {text}")
    if policy == "skip":
        raise LeaveOut(text)
    print(f"warning: step {step}: {text}", file=sys.stderr)
