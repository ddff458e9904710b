"""`shardopt.size`: how much of a cluster a model needs, found by planning it for parts of it; and
how much of its batch the cluster takes at a time."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, Unpack, get_args

from shardopt.frontend.calls.arguments import options_of
from shardopt.frontend.calls.python_words import errors_for_python, python_handler
from shardopt.frontend.planning.make_plan import batch_rows
from shardopt.frontend.planning.optimize import optimize
from shardopt.frontend.planning.step_search import thinned_divisors
from shardopt.frontend.plans.plan import Plan
from shardopt.hardware.cluster import HostGroup
from shardopt.hardware.parts import parts_of
from shardopt.options.keywords import PlanKeywords
from shardopt.options.names import Objective
from shardopt.options.signatures import shows_options
from shardopt.support.errors import UserError
from shardopt.support.suggestions import unknown_name

if TYPE_CHECKING:
    from rich.table import Table

    from shardopt.ir.diagnostics import Handler

_SECONDS_AN_HOUR = 3600


@dataclass(frozen=True)
class SizedPlan:
    """A part of a cluster, what it costs an hour if that is known, and the plan for it; without one
    `reason` says why. `rows` of the batch are in a microbatch, where that was asked for."""

    cluster: str
    devices: int
    price_per_hour: float | None
    plan: Plan | None
    reason: str = ""
    rows: int | None = None

    @property
    def step_seconds(self) -> float | None:
        return None if self.plan is None else self.plan.summary.step_seconds

    @property
    def price_per_step(self) -> float | None:
        """A part of a host costs as much as the host."""
        if self.step_seconds is None or self.price_per_hour is None:
            return None
        return self.step_seconds * self.price_per_hour / _SECONDS_AN_HOUR

    @property
    def peak_bytes(self) -> int | None:
        """The most that a device holds."""
        if self.plan is None:
            return None
        return max(row.peak_bytes for row in self.plan.summary.stages)


@dataclass(frozen=True)
class Sizes:
    """The parts of a cluster that were planned for, smallest first, and the `best` of them: None
    where none keeps to the limit."""

    tried: tuple[SizedPlan, ...]
    best: SizedPlan | None

    def table(self) -> Table:
        """A line a part; the best one has an arrow."""
        from shardopt.report.sizes import sizes_table

        return sizes_table(self)

    def to_json(self) -> list[dict[str, object]]:
        """The same as values."""
        return [
            {
                "cluster": each.cluster,
                "devices": each.devices,
                "step_seconds": each.step_seconds,
                "peak_bytes": each.peak_bytes,
                "price_per_hour": each.price_per_hour,
                "price_per_step": each.price_per_step,
                "rows": each.rows,
                "reason": each.reason or None,
                "best": each is self.best,
            }
            for each in self.tried
        ]


def sizes_of(
    cluster: str,
    plan_for: Callable[[str, int | None], Plan],
    objective: Objective,
    step_seconds: float | None = None,
    on_part: Callable[[str, int, int], None] | None = None,
    batch_rows: Callable[[], int] = lambda: 1,
) -> Sizes:
    """`size`, with the plan for each part made by `plan_for`, which is given a number of
    microbatches where that is what differs, and raises UserError where there is none. `batch_rows`
    are those of the batch."""
    if objective not in get_args(Objective):
        raise UserError(unknown_name("objective", objective, get_args(Objective)))
    if step_seconds is not None and not 0 < step_seconds < inf:
        raise UserError(f"expected seconds of a step above 0, found {step_seconds!r}")
    parts = parts_of(cluster)
    if objective == "cost" and parts[0][1].price_per_hour is None:
        raise UserError(
            f"cluster '{cluster}': objective 'cost' needs the field 'price_per_hour', what a host "
            "costs an hour, found none"
        )
    tries: list[tuple[str, HostGroup, int | None]] = [(*part, None) for part in parts]
    rows = batch_rows() if objective == "batch" else 0
    if objective == "batch":
        tries = [(*parts[-1], count) for count in thinned_divisors(rows)]
    tried: list[SizedPlan] = []
    allowed: list[SizedPlan] = []
    refusal: UserError | None = None
    for number, (spec, group, count) in enumerate(tries, 1):
        if on_part is not None:
            on_part(spec, number, len(tries))
        price = None if group.price_per_hour is None else group.price_per_hour * group.hosts
        about = (spec, group.num_devices, price)
        each = None if count is None else rows // count
        try:
            tried.append(SizedPlan(*about, plan_for(spec, count), rows=each))
        except UserError as error:
            refusal = error
            tried.append(SizedPlan(*about, None, _reason(error), each))
            continue
        seconds = tried[-1].step_seconds
        if step_seconds is None or (seconds is not None and seconds <= step_seconds):
            allowed.append(tried[-1])
            if objective in ("devices", "batch"):
                break
    if refusal is not None and all(each.plan is None for each in tried):
        raise refusal
    return Sizes(tuple(tried), min(allowed, key=_MEASURES[objective], default=None))


@shows_options("optimize")
def size(
    model: Any,
    cluster: str | os.PathLike[str],
    *,
    objective: Objective = "devices",
    step_seconds: float | None = None,
    cache: bool = True,
    on_part: Callable[[str, int, int], None] | None = None,
    on_phase: Callable[[str], None] | None = None,
    handler: Handler | None = None,
    **options: Unpack[PlanKeywords],
) -> Sizes:
    """Plan a model for parts of a cluster of one host group, and choose one by `objective`:

    * `"devices"`: the fewest devices on which it fits; planning ends there;
    * `"cost"`: the least price of a step, of what hosts cost by `price_per_hour` in the cluster
      file;
    * `"step"`: the shortest step;
    * `"batch"`: the most rows of the batch at a time, on the whole cluster: the fewest microbatches
      that fit its memory. `microbatches` is not taken then.

    Parts are powers of two of the devices of a host, then of hosts, and the whole. With
    `step_seconds` only those count whose step is predicted to take no longer. `model`, `cluster`,
    `cache`, `on_phase`, `handler` and `options` are those of `shardopt.optimize`;
    `on_part(cluster, number, count)` is told when a part begins. Raises UserError for a model that
    has no plan on any part, and for an objective that needs prices where the file has none."""

    def plan_for(spec: str, microbatches: int | None) -> Plan:
        chosen = PlanKeywords(**options)
        if microbatches is not None:
            chosen["microbatches"] = microbatches
        return optimize(model, spec, cache=cache, on_phase=on_phase, handler=handler, **chosen)

    def rows() -> int:
        with errors_for_python():
            chosen = options_of("optimize", cluster, options, model)
            return batch_rows(model, chosen, python_handler(handler))

    return sizes_of(os.fspath(cluster), plan_for, objective, step_seconds, on_part, rows)


def _step_seconds(each: SizedPlan) -> float:
    assert each.step_seconds is not None, "the caller leaves out what has no plan"
    return each.step_seconds


def _price(each: SizedPlan) -> float:
    assert each.price_per_step is not None, "the caller looks whether there are prices"
    return each.price_per_step


def _devices(each: SizedPlan) -> float:
    return each.devices


def _rows(each: SizedPlan) -> float:
    return -(each.rows or 0)


_MEASURES = {"devices": _devices, "cost": _price, "step": _step_seconds, "batch": _rows}


def _reason(error: UserError) -> str:
    from shardopt.ir.diagnostics import DiagnosedError

    return error.diagnostics[0].message if isinstance(error, DiagnosedError) else str(error)
