"""What the stage phase predicts for a step, on the microbatch loop: `shardopt.predicted`.

mpmd.for (…) {shardopt.predicted = {schedule = "1f1b", step_seconds = 1.5e-02 : f64, formula_seconds
              = 1.4e-02 : f64, formula_bound = 1.4e-02 : f64}} …
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxlib.mlir import ir

from shardopt.dialect.attributes import f64

PREDICTED = "shardopt.predicted"
_SECONDS = ("step_seconds", "formula_seconds", "formula_bound")


@dataclass(frozen=True)
class PlannedPrediction:
    """The schedule that the stages were planned for; seconds of a step by the simulator and by the
    formula of the stage DP, and a lower bound of the formula over all plans (None for a
    baseline)."""

    schedule: str
    step_seconds: float
    formula_seconds: float
    formula_bound: float | None


def write_prediction(loop: ir.Operation, prediction: PlannedPrediction) -> None:
    seconds = {name: getattr(prediction, name) for name in _SECONDS}
    numbers = {name: f64(value) for name, value in seconds.items() if value is not None}
    loop.attributes[PREDICTED] = ir.DictAttr.get(
        {"schedule": ir.StringAttr.get(prediction.schedule), **numbers}
    )


def read_prediction(loop: ir.Operation) -> PlannedPrediction | None:
    """None where stages were made by hand. Raises ValueError when the attribute is broken."""
    if PREDICTED not in loop.attributes:
        return None
    try:
        fields = ir.DictAttr(loop.attributes[PREDICTED])
        step, formula = (ir.FloatAttr(fields[name]).value for name in _SECONDS[:2])
        bound = ir.FloatAttr(fields[_SECONDS[2]]).value if _SECONDS[2] in fields else None
        return PlannedPrediction(ir.StringAttr(fields["schedule"]).value, step, formula, bound)
    except (KeyError, ValueError) as error:
        raise ValueError(
            f"expected '{PREDICTED}' with a schedule and its seconds, found "
            f"{loop.attributes[PREDICTED]}"
        ) from error
