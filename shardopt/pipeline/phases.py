"""The compiler's phases: a declarative table of named pipelines, in the order in which they run.

A phase is usable wherever a pass is (`shardopt-stage{cluster=c.yaml num-stages=2}`). The options of
a phase are those of its passes, under the same names: each is handed to every pass of the phase
that has it. On top of them a phase may have switches, which turn single steps on. The last step of
a phase verifies the form that it leaves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shardopt.passes.options import (
    OptionError,
    OptionText,
    option_specs,
    split_options,
)
from shardopt.passes.registry import PASSES, PREFIX, pass_class
from shardopt.support.errors import UserError
from shardopt.support.suggestions import unknown_name


@dataclass(frozen=True)
class When:
    """Steps that a phase runs only when its switch is on (`shardopt-import{unroll=true}`)."""

    switch: str
    steps: tuple[str, ...]


@dataclass(frozen=True)
class Phase:
    """A named pipeline. Steps are pipeline text; a bare name of one of our passes receives the
    phase's options. What a phase that `extends` leaves still has the form that it was given."""

    name: str
    summary: str
    steps: tuple[str | When, ...]
    extends: bool = False


PHASES: tuple[Phase, ...] = (
    Phase(
        "import",
        "bring any StableHLO module into one straight-line @main",
        (
            "shardopt-inline-calls",  # the later steps see one function
            # before annotations are read: these erase the meshes that regions name
            "shardopt-read-manual-regions",
            "shardopt-flatten-tuples",  # behind inlining: one signature is left
            # behind inlining, which turns those of callees into constraints
            "shardopt-read-annotations",
            # before loops are unrolled: one that sums gradients over parts of its own is kept
            "shardopt-roll-parts",
            # before constants are folded: iterations written out know their counters
            When("unroll", ("shardopt-unroll-loops",)),
            # sharding rules know operations of StableHLO only
            "func.func(chlo-legalize-to-stablehlo)",
            "canonicalize,cse,symbol-dce",  # folds the constants by which gathers are recognised
            "shardopt-split-branches",  # behind symbol-dce and cse: fewer operations to copy
            # before the step is cut: rows that are sorted are no rows of the batch
            "shardopt-unsort-rows",
            # likewise, through batching dimensions; finds what unsorted rows are gathered at
            "shardopt-batch-gathers",
            "shardopt-normalize",  # does more behind the folding above
            "canonicalize,cse",  # drops what the rewrites have left without readers
            # again: of loops that were one behind the other, forward and backward, or that had
            # their first part outside, copies are left now
            When("unroll", ("shardopt-roll-parts", "canonicalize,cse")),
            # behind all that drops what nobody reads: what is left runs
            "shardopt-check-custom-calls",
            "shardopt-verify-imported",
        ),
    ),
    Phase(
        "microbatch",
        "cut the step into prologue, microbatch loop and epilogue",
        # the cut leaves reshapes of blocks, and constants that body and epilogue both copied
        ("shardopt-split-microbatches", "canonicalize,cse", "shardopt-verify-microbatched"),
    ),
    Phase(
        "cluster",
        "group the ops of the body into layers of similar cost",
        (
            # behind the cut, which leaves rows of stacks outside of the loop
            When("split-stacks", ("shardopt-split-stacks", "canonicalize,cse")),
            # likewise: layers are those of the body, which every microbatch repeats
            "shardopt-cluster-layers",
            "shardopt-verify-clustered",
        ),
    ),
    Phase(
        "stage",
        "choose stages and submeshes, outline fragments",
        (
            "shardopt-split-sums",  # what borders of stages cost depends on it
            "shardopt-choose-stages",
            "shardopt-join-sums",  # what landed in one stage, before anything is copied
            "shardopt-verify-placed",  # what stands behind it obeys, and trusts what it reads
            # first: what is recomputed is found in each of the two pipelines
            When("mirror-stages", ("shardopt-mirror-stages", "shardopt-verify-placed")),
            # before fragments: a version lies where its weight does
            When("version-weights", ("shardopt-version-weights", "shardopt-verify-placed")),
            # likewise: each slice of a stage has its forward and its backward
            When("slice-tokens", ("shardopt-slice-tokens", "shardopt-verify-placed")),
            # copies belong to the backward, so they are there before it is outlined
            "shardopt-recompute-stages",
            # before fragments: the update is outlined in pieces that stream what lies on the host
            "shardopt-offload-state",
            "shardopt-outline-fragments",
            # behind outlining: it halves the backward fragments that stand now
            When("split-backward", ("shardopt-split-backward",)),
            "shardopt-verify-staged",
        ),
    ),
    Phase(
        "shard",
        "choose a sharding for every value inside a fragment",
        (
            # first: what stands behind it takes regions as they are
            "shardopt-rotate-keys",
            # before shardings are chosen: each accumulator is to have its own
            "shardopt-separate-accumulators",
            # likewise: where values may be resharded has to be an operation
            "shardopt-mark-carried",
            "shardopt-choose-shardings",
            "shardopt-verify-chosen",  # the only steps behind it obey, and trust what they read
            # copies change who reads what, and so where values are resharded
            "shardopt-rematerialize",
            "shardopt-insert-reshards",
            "shardopt-localize-calls",  # behind the decisions: what is split has its tiles now
            # last: nobody may insert a value without a sharding any more
            "shardopt-annotate-shardings",
            "shardopt-verify-sharded",
        ),
        extends=True,
    ),
    Phase(
        "transfer",
        "make every edge between meshes one explicit transfer",
        # behind sharding: what moves follows from the shardings at both ends
        ("shardopt-insert-transfers", "shardopt-verify-transferred"),
        extends=True,
    ),
    Phase(
        "schedule",
        "order the tasks of every mesh and simulate the step",
        # behind transfers: their seconds decide between two orders of tasks
        ("shardopt-schedule-pipeline", "shardopt-verify-scheduled"),
        extends=True,
    ),
    Phase(
        "export",
        "one callable module for each stage, and the plan",
        # last: everybody before looks into fragments, and nobody into functions
        ("shardopt-lower-to-fragment-calls", "shardopt-verify-exported"),
    ),
)

PHASE_NAMES: tuple[str, ...] = tuple(phase.name for phase in PHASES)


def _steps_of(*names: str) -> tuple[str | When, ...]:
    return tuple(step for phase in PHASES if phase.name in names for step in phase.steps)


# Pipelines beside the order of the phases: named and given options like them, but no end of a
# `--from`/`--to` range.
PIPELINES: tuple[Phase, ...] = (
    Phase(
        "intra",
        "shard a whole module over one mesh: an ordinary SPMD program, without stages",
        # what stands between the two makes stages, and what stands behind them joins stages
        _steps_of("import", "shard"),
    ),
)


def find_phase(pipeline_name: str) -> Phase | None:
    """The phase behind `shardopt-import`, or the pipeline behind `shardopt-intra`, or None."""
    return next(
        (phase for phase in (*PHASES, *PIPELINES) if PREFIX + phase.name == pipeline_name), None
    )


def phase_options(phase: Phase, enabled: Sequence[str] | None = None) -> tuple[str, ...]:
    """Names of all options a phase takes: switches, then those of its passes (only `enabled` steps
    when given)."""
    names = [step.switch for step in phase.steps if isinstance(step, When)]
    for name in _own_passes(phase, enabled):
        names += [spec.name for spec in option_specs(pass_class(name))]
    return tuple(dict.fromkeys(names))


def expand_phase(phase: Phase, options: str = "") -> str:
    """The phase as pipeline text with `options` handed to its passes. Raises OptionError for one
    that nobody takes."""
    texts = split_options(options)
    switches = {step.switch for step in phase.steps if isinstance(step, When)}
    enabled = [option.name for option in texts if option.name in switches and _is_on(option)]
    known = phase_options(phase, enabled)
    for option in texts:
        if option.name not in known:
            raise OptionError(
                unknown_name(f"option of {PREFIX}{phase.name}", option.name, known), option.offset
            )
    passed_on = [option for option in texts if option.name not in switches]
    return ",".join(_with_options(step, passed_on) for step in _enabled_steps(phase, enabled))


def phase_range(
    first: str = "", last: str = "", options: str = "", *, verify_input: bool = False
) -> str:
    """The phases from `first` to `last` (both included, by default all) as pipeline text.

    With `verify_input` the forms that the phases before leave are verified first. `options` go to
    every phase of the range that takes them. Raises UserError for a wrong name, an empty range, or
    an option that no phase of the range takes."""
    start = _phase_index(first) if first else 0
    stop = _phase_index(last) if last else len(PHASES) - 1
    if start > stop:
        raise UserError(
            f"phase '{first}' comes after phase '{last}'; the order is {', '.join(PHASE_NAMES)}"
        )
    chosen = PHASES[start : stop + 1]
    texts = split_options(options)
    takers = {phase.name: phase_options(phase) for phase in chosen}
    known = tuple(dict.fromkeys(name for names in takers.values() for name in names))
    for option in texts:
        if option.name not in known:
            where = f"option of the phases {chosen[0].name} to {chosen[-1].name}"
            raise OptionError(unknown_name(where, option.name, known), option.offset)
    steps = list(_verifiers_before(start)) if verify_input else []
    for phase in chosen:
        text = _option_text([option for option in texts if option.name in takers[phase.name]])
        steps.append(PREFIX + phase.name + (f"{{{text}}}" if text else ""))
    return f"builtin.module({','.join(steps)})"


def _verifiers_before(start: int) -> Iterator[str]:
    """The last steps of the phases before number `start` whose forms still hold there."""
    first = start
    while first and (first == start or PHASES[first].extends):
        first -= 1
    for phase in PHASES[first:start]:
        yield from (step for step in phase.steps[-1:] if isinstance(step, str))


def _phase_index(name: str) -> int:
    if name not in PHASE_NAMES:
        raise UserError(unknown_name("phase", name, PHASE_NAMES))
    return PHASE_NAMES.index(name)


def _enabled_steps(phase: Phase, enabled: Sequence[str] | None) -> list[str]:
    steps: list[str] = []
    for step in phase.steps:
        if isinstance(step, str):
            steps.append(step)
        elif enabled is None or step.switch in enabled:
            steps.extend(step.steps)
    return steps


def _own_passes(phase: Phase, enabled: Sequence[str] | None) -> tuple[str, ...]:
    return tuple(dict.fromkeys(step for step in _enabled_steps(phase, enabled) if step in PASSES))


def _with_options(step: str, texts: Sequence[OptionText]) -> str:
    if step not in PASSES:
        return step
    names = {spec.name for spec in option_specs(pass_class(step))}
    text = _option_text([option for option in texts if option.name in names])
    return f"{step}{{{text}}}" if text else step


def _option_text(options: Sequence[OptionText]) -> str:
    return " ".join(str(option) for option in options)


def _is_on(switch: OptionText) -> bool:
    if switch.text not in (None, "true", "false"):
        raise OptionError(
            f"option '{switch.name}' expects true or false, found '{switch.text}'", switch.offset
        )
    return switch.text != "false"
