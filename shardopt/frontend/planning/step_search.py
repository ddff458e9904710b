"""What only a whole step can decide (the numbers of microbatches and of layers, what layers have
equal shares of, the schedule): plan the stages for values, compare.

    imported module ─┬─ clone ─▶ microbatch ─▶ cluster ─▶ stage ─▶ predicted seconds of a step
                     ├─ clone ─▶ …                                            the least wins
                     └─ clone ─▶ …

The import phase has run once, before, and what comes before the stages runs once for all schedules.
Every number of microbatches is tried, with every schedule where these are searched, too, but the
stage phase gives up as soon as costs say that no step is shorter than the best so far
(`faster-than`): that is what too small microbatches come to, and most schedules. The costs of equal
stages are found once for all (`shardopt.caching`). Layers get more as long as that shortens the
step: cutting every layer in two leaves all stages of before, and adds some."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import gcd
from typing import TYPE_CHECKING, get_args

from shardopt.caching.memory import remembering
from shardopt.options.names import LayerBalance
from shardopt.options.plan_options import PlanOptions
from shardopt.schedule.schedules import AUTO, SEARCH, planned_schedules
from shardopt.support.counts import counted
from shardopt.support.errors import UserError

if TYPE_CHECKING:
    from jaxlib.mlir import ir

    from shardopt.ir.diagnostics import Diagnostic

PHASES = ("microbatch", "cluster", "stage")
# The stage phase finds costs of an interval for each pair of layers.
MAX_SEARCHED_LAYERS = 64

RunPhase = Callable[["ir.Module", str, PlanOptions, Callable[["Diagnostic"], None], str], None]


@dataclass(frozen=True)
class Choice:
    """Options to try, and what they are called in remarks."""

    name: str
    options: PlanOptions


@dataclass
class Attempt:
    """A choice whose stages are planned: the module, its form after each phase, and what was
    reported, as long as it may be the best; `step_seconds` is None, and `refusal` says why, where
    there is no plan."""

    choice: Choice
    module: ir.Module | None
    forms: list[tuple[str, bytes]] = field(default_factory=list)
    diagnostics: list[Diagnostic] = field(default_factory=list)
    num_layers: int = 0
    step_seconds: float | None = None
    refusal: UserError | None = None

    def __str__(self) -> str:
        outcome = f"{self.step_seconds:.4g} s" if self.step_seconds is not None else self._reason()
        return f"{self.choice.name}: {outcome}"

    def _reason(self) -> str:
        from shardopt.ir.diagnostics import DiagnosedError

        error = self.refusal
        message = error.diagnostics[0].message if isinstance(error, DiagnosedError) else str(error)
        return message.replace("; ", ", ")  # choices are told apart by semicolons


def microbatch_choices(
    module: ir.Module, options: PlanOptions, run: RunPhase
) -> tuple[Choice, ...]:
    """A choice for each number of microbatches worth trying, for the imported form: one alone where
    no batch is known. `run` as in `best_choice`. Raises UserError for batch arguments that do not
    exist."""
    return tuple(
        Choice(counted(count, "microbatch"), replace(options, microbatches=count))
        for count in thinned_divisors(batch_extent(module, options, run))
    )


def balance_choices(choice: Choice) -> tuple[Choice, ...]:
    """The choice with layers of equal FLOPs and of equal seconds."""
    return tuple(
        Choice(
            f"{choice.name}, layers of equal {balance}".removeprefix(", "),
            replace(choice.options, layer_balance=balance),
        )
        for balance in get_args(LayerBalance)
    )


def schedule_choices(choice: Choice) -> tuple[Choice, ...]:
    """The choice with each schedule that stages can be planned for, or as it is where these are not
    searched; those of one stage a mesh first, as most of what they cost serves all, then those with
    the least bubble, as most others can be given up early against a short step."""
    from shardopt.schedule.even_pipeline import least_bubble_first

    if choice.options.schedule != SEARCH:
        return (choice,)
    others = [name for name in planned_schedules() if name != AUTO]
    return tuple(
        Choice(f"{choice.name}, {name}".removeprefix(", "), replace(choice.options, schedule=name))
        for name in (AUTO, *least_bubble_first(others))
    )


def batch_extent(module: ir.Module, options: PlanOptions, run: RunPhase) -> int:
    """What all numbers of microbatches divide, as the microbatch phase finds it in the imported
    form; 1 where no batch is known. `run` as in `best_choice`. Raises UserError for batch arguments
    that do not exist."""
    from shardopt.dialect.batch import read_batch
    from shardopt.extract.chosen_plan import main_of
    from shardopt.ir.rewriting import copy_of, shape_of

    copy = copy_of(module)
    run(copy, PHASES[0], replace(options, microbatches=1), lambda _: None, "")
    main = main_of(copy)
    arguments = main.regions[0].blocks[0].arguments
    extents = (shape_of(arguments[number])[dim] for number, dim in read_batch(main).items())
    return gcd(*extents) or 1


def thinned_divisors(extent: int) -> tuple[int, ...]:
    """Divisors of `extent` from 1 up, each at least twice the one before."""
    kept = [1]
    kept.extend(
        count for count in range(2, extent + 1) if extent % count == 0 and count >= 2 * kept[-1]
    )
    return tuple(kept)


def best_choice(
    module: ir.Module, choices: Iterable[Choice], run: RunPhase, margin: float = 0.0
) -> tuple[Attempt, tuple[Attempt, ...]]:
    """The attempt with the shortest predicted step, the first of equals, and all of them. Later
    ones have to be shorter by a share of `margin`.

    `run(module, phase, options, handler, more)` runs one phase in place, with `more` options as
    text. Raises the refusal of the last choice, under its first schedule, if there is no plan at
    all: more microbatches need less memory, and the others want meshes that are alike.
    """
    from shardopt.ir.rewriting import copy_of

    attempts: list[Attempt] = []
    best: Attempt | None = None
    refusal: UserError | None = None
    with remembering():
        for choice in choices:
            clustered = _cluster(choice, copy_of(module), run)
            first, with_schedules = len(attempts), schedule_choices(choice)
            for each in with_schedules:
                limit = best.step_seconds * (1 - margin) if best and best.step_seconds else None
                is_only = len(with_schedules) == 1
                attempt = _plan_stages(each, clustered, run, limit, is_only)
                attempts.append(attempt)
                if attempt.step_seconds is None or (limit and attempt.step_seconds >= limit):
                    _forget(attempt)
                    continue
                if best is not None:
                    _forget(best)
                best = attempt
            refusal = attempts[first].refusal
    if best is None:
        raise refusal or UserError("nothing to try")
    return best, tuple(attempts)


def grow_layers(
    module: ir.Module, options: PlanOptions, run: RunPhase
) -> tuple[Attempt, tuple[Attempt, ...]]:
    """The number of layers that clustering finds, then two, three, … times as many, as long as the
    predicted step gets shorter; the last attempt that did, and all of them. `run` as in
    `best_choice`. Raises UserError if the first has no plan."""
    from shardopt.ir.rewriting import copy_of

    first = Choice("layers as found", replace(options, layers=None))
    best = _try(first, copy_of(module), run)
    if best.refusal is not None:
        raise best.refusal
    attempts, step = [best], best.num_layers
    for count in range(2 * step, MAX_SEARCHED_LAYERS + 1, step):
        choice = Choice(f"{count} layers", replace(options, layers=count))
        attempt = _try(choice, copy_of(module), run, best.step_seconds)
        attempts.append(attempt)
        if (
            attempt.step_seconds is None
            or best.step_seconds is None
            or attempt.step_seconds >= best.step_seconds
        ):
            _forget(attempt)
            break
        _forget(best)
        best = attempt
    return best, tuple(attempts)


def _try(
    choice: Choice, module: ir.Module, run: RunPhase, faster_than: float | None = None
) -> Attempt:
    """Plan the stages, as long as a step may take less than `faster_than` seconds."""
    return _plan_stages(choice, _cluster(choice, module, run), run, faster_than, is_only=True)


def _cluster(choice: Choice, module: ir.Module, run: RunPhase) -> Attempt:
    """Run the phases before that of the stages, which no schedule changes."""
    from shardopt.dialect.program import read_program

    attempt = Attempt(choice, module)
    try:
        for phase in PHASES[:-1]:
            _run_phase(attempt, phase, run)
        attempt.num_layers = _count_layers(read_program(module).body_ops)
    except UserError as error:
        attempt.refusal = error
    return attempt


def _plan_stages(
    choice: Choice, clustered: Attempt, run: RunPhase, faster_than: float | None, is_only: bool
) -> Attempt:
    """Go on from `clustered`, which stays as it is unless this is the only choice that does so."""
    from shardopt.dialect.prediction import read_prediction
    from shardopt.dialect.program import read_program
    from shardopt.ir.rewriting import copy_of

    module = clustered.module
    assert module is not None, "nothing has ended yet"
    if clustered.refusal is not None:  # a phase has left the module unusable
        return replace(clustered, choice=choice)
    module = module if is_only else copy_of(module)
    attempt = replace(
        clustered,
        choice=choice,
        module=module,
        forms=[*clustered.forms],
        diagnostics=[*clustered.diagnostics],
    )
    try:
        _run_phase(attempt, PHASES[-1], run, f" faster-than={faster_than!r}" if faster_than else "")
    except UserError as error:
        attempt.refusal = error
        return attempt
    prediction = read_prediction(read_program(module).loop)
    attempt.step_seconds = prediction.step_seconds if prediction else None
    return attempt


def _run_phase(attempt: Attempt, phase: str, run: RunPhase, more: str = "") -> None:
    from shardopt.ir.io import module_bytecode

    module = attempt.module
    assert module is not None, "nothing has ended yet"
    run(module, phase, attempt.choice.options, attempt.diagnostics.append, more)
    attempt.forms.append((phase, module_bytecode(module)))


def _count_layers(ops: Iterable[ir.Operation]) -> int:
    from jaxlib.mlir import ir

    from shardopt.dialect.mpmd import LAYER

    return 1 + max((ir.IntegerAttr(op.attributes[LAYER]).value for op in ops), default=0)


def _forget(attempt: Attempt) -> None:
    """Keep what it said of the step, not the modules."""
    attempt.module = None
    attempt.forms.clear()
    attempt.diagnostics.clear()


def comparison(best: Attempt, attempts: Sequence[Attempt]) -> str:
    """What each choice gave, in one line."""
    return f"best with {best.choice.name}; steps: {'; '.join(map(str, attempts))}"


def best_by_schedule(attempts: Iterable[Attempt]) -> tuple[Attempt, ...]:
    """The shortest attempt of each schedule, or the last one refused."""
    best: dict[str, Attempt] = {}
    for attempt in attempts:
        name = attempt.choice.options.schedule
        known = best.get(name)
        best[name] = min((known, attempt), key=_seconds) if known else attempt
    return tuple(best.values())


def _seconds(attempt: Attempt) -> float:
    return float("inf") if attempt.step_seconds is None else attempt.step_seconds
