"""From options of planning to options of phases: which phase is given what, as pipeline text.

    PlanOptions("cpu-test:1x4", stages=2)     stage   cluster=cpu-test:1x4 num-stages=2
                                              cluster least-layers=2
                                              import  unroll=true

The table of options says which phases take an option and what it is called there. Here stands what
is more than that: values that a phase reads otherwise, and options of phases that follow from
others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from shardopt.options.plan_options import PlanOptions
from shardopt.options.table import OptionRow, rows
from shardopt.schedule.csv_format import read_csv_file
from shardopt.schedule.schedules import AUTO, SCHEDULES, SEARCH, like
from shardopt.support.errors import UserError

# The pipeline of one mesh without stages, which takes options as a phase does.
INTRA = "intra"

# (phase, option) -> the value that the phase is given, where that is another one; None to leave it
# out.
_READ_AS: Mapping[tuple[str, str], Callable[[PlanOptions], object]] = {
    # The search tries numbers of layers, beginning with the one that is found without any.
    ("cluster", "layers"): lambda options: None if options.layers == "search" else options.layers,
    # The search asks for both.
    ("cluster", "layer_balance"): lambda options: (
        None if options.layer_balance == "search" else options.layer_balance
    ),
    ("cluster", "cluster"): lambda options: _if_timed(options, options.cluster),
    ("cluster", "profile"): lambda options: _if_timed(options, options.profile),
    ("cluster", "recompute"): lambda options: _if_timed(options, options.recompute),
    # On one mesh a stack is as good as its rows, and is fewer operations.
    ("cluster", "split_stacks"): lambda options: options.split_stacks and options.stages != 1,
    # One baseline clusters by itself, and then plans its layers as another one does.
    ("cluster", "inter_op"): lambda options: "equal-op" if options.inter_op == "equal-op" else None,
    ("stage", "inter_op"): lambda options: (
        "equal-layer" if options.inter_op == "equal-op" else options.inter_op
    ),
    ("stage", "mcmc_proposals"): lambda options: (
        options.mcmc_proposals if options.inter_op == "mcmc" else None
    ),
    # The search plans for one schedule after the other.
    ("stage", "schedule"): lambda options: _planned_for(options.schedule),
    ("schedule", "schedule"): lambda options: _one_schedule(options.schedule),
}


def phase_text(options: PlanOptions, phase: str) -> str:
    """The options of a phase, or of `shardopt-intra`, as pipeline text; what has its default is
    left out."""
    values = {**dict(_of_table(options, phase)), **_derived(options, phase)}
    return " ".join(f"{name}={option_text(value)}" for name, value in values.items())


def option_text(value: object) -> str:
    """A value as it stands behind `name=` in pipeline text."""
    if isinstance(value, bool):
        return str(value).lower()
    text = str(value)
    return text if text and not set(text) & set(' {}="') else '"' + text + '"'


def _of_table(options: PlanOptions, phase: str) -> Iterator[tuple[str, object]]:
    for row in rows(type(options)):
        if phase not in row.phases:
            continue
        value: object = getattr(options, row.field)
        if (phase, row.field) in _READ_AS:
            value = _READ_AS[phase, row.field](options)
        if value is not None and value != _default_of(row):
            yield row.phases[phase] or row.name, value


def _default_of(row: OptionRow) -> Any:
    """What a phase does where nothing is said; a switch is off."""
    return False if row.base is bool else row.pass_default


def _derived(options: PlanOptions, phase: str) -> dict[str, object]:
    """Options of a phase that are none of planning."""
    if phase == "cluster" and options.stages is not None and options.stages > 1:
        return {"least-layers": options.stages}  # every stage has a layer
    if phase == "stage":
        # The stage phase refuses schedules that are unknown.
        kind = SCHEDULES.get(_planned_for(options.schedule).partition(":")[0])
        if options.token_slices != AUTO and not (kind is not None and kind.cuts_tokens):
            raise UserError(
                f"expected token_slices with schedule terapipe, found {options.schedule}"
            )
        if kind is not None and kind.splits_backward:
            return {"split-backward": True}
        if kind is not None and kind.streams > 1:
            return {"mirror-stages": True}
        if kind is not None and kind.weight_ages is not None:
            return {"version-weights": True}
        if kind is not None and kind.cuts_tokens:
            return {"slice-tokens": True}
    return {}


def _if_timed(options: PlanOptions, value: str) -> str | None:
    """What only layers of equal seconds ask for."""
    return value if options.layer_balance == "seconds" else None


def _one_schedule(schedule: str) -> str:
    return AUTO if schedule == SEARCH else schedule


def _planned_for(schedule: str) -> str:
    """The name of the schedule that stages are planned for. For an order from a file it is one
    that lays them alike; what is wrong with the file is for the schedule phase to say."""
    if not schedule.endswith(".csv"):
        return _one_schedule(schedule)
    try:
        named = like(read_csv_file(schedule).schedule)
    except UserError:
        named = ""
    return named or "gpipe"  # under which all microbatches may be in flight
