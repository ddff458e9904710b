"""A table of measurements, predicted row by row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

from shardopt.measured.agreement import Agreement, Pairing, agreement
from shardopt.measured.case import Case, case_of
from shardopt.measured.figures import measured_seconds
from shardopt.measured.rows import Row
from shardopt.measured.unstated import InexpressibleRow
from shardopt.support.errors import UserError

ALL = "all"
GIB = 2**30


@dataclass(frozen=True)
class RowOutcome:
    """A row with its prediction, or with the `reason` why there is none."""

    row: Row
    step_seconds: float | None = None
    memory_bytes: int | None = None
    reason: str = ""


@dataclass(frozen=True)
class Comparison:
    """Outcomes in the order of the rows, and how steps and memory agree, by group; behind several
    groups, over all rows."""

    outcomes: tuple[RowOutcome, ...]
    steps: tuple[Agreement, ...]
    memory: tuple[Agreement, ...]


def compare(
    rows: Sequence[Row], jobs: int = 1, on_outcome: Callable[[RowOutcome], None] | None = None
) -> Comparison:
    """Predict the rows in `jobs` processes. `on_outcome` is told of each row as it is done, in any
    order."""
    outcomes: dict[int, RowOutcome] = {}
    cases: dict[int, Case] = {}
    for number, row in enumerate(rows):
        try:
            cases[number] = case_of(row)
        except InexpressibleRow as error:
            outcomes[number] = RowOutcome(row, reason=str(error))
    for number, outcome in _predicted(cases, jobs):
        outcomes[number] = outcome
        if on_outcome is not None:
            on_outcome(outcome)
    ordered = tuple(outcomes[number] for number in range(len(rows)))
    return Comparison(ordered, _agreements(_steps(ordered)), _agreements(_memory(ordered)))


def _predicted(cases: dict[int, Case], jobs: int) -> Iterable[tuple[int, RowOutcome]]:
    # Cases that share short plans go to one process, one behind the other.
    shared: dict[str, list[tuple[int, Case]]] = {}
    for number, case in cases.items():
        shared.setdefault(case.shared_by, []).append((number, case))
    batches = list(shared.values())
    jobs = min(jobs, len(batches))
    if jobs <= 1:
        for batch in batches:
            for item in batch:
                yield from _predict_all([item])
        return
    # The parent has threads of JAX, which no fork survives.
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for done in pool.map(_predict_all, batches):
            yield from done


def _predict_all(cases: list[tuple[int, Case]]) -> list[tuple[int, RowOutcome]]:
    return [(number, _outcome(case)) for number, case in cases]


def _outcome(case: Case) -> RowOutcome:
    from shardopt.measured.predict import prediction

    try:
        predicted = prediction(case)
    except UserError as error:
        return RowOutcome(case.row, reason=f"refused: {error}".partition("\n")[0])
    return RowOutcome(case.row, predicted.step_seconds, predicted.memory_bytes)


def _steps(outcomes: Iterable[RowOutcome]) -> list[Pairing]:
    pairings = []
    for outcome in outcomes:
        measured = measured_seconds(outcome.row)
        if outcome.step_seconds is not None and measured is not None:
            pairings.append(_pairing(outcome.row, outcome.step_seconds, measured))
    return pairings


def _memory(outcomes: Iterable[RowOutcome]) -> list[Pairing]:
    return [
        _pairing(outcome.row, outcome.memory_bytes / GIB, outcome.row.mem_GiB)
        for outcome in outcomes
        if outcome.memory_bytes is not None and outcome.row.mem_GiB is not None
    ]


def _pairing(row: Row, predicted: float, measured: float) -> Pairing:
    return Pairing(row.id, row.group, _ranking(row), predicted, measured)


def _ranking(row: Row) -> str:
    """Model, batch and machine."""
    model = (row.arch, row.layers, row.hidden, row.heads, row.ffn, row.vocab, row.seq, row.experts)
    machine = (row.hardware, row.devices, row.precision, row.params_B)
    return repr((row.group, *model, row.gbs, *machine))


def _agreements(pairings: Sequence[Pairing]) -> tuple[Agreement, ...]:
    groups = sorted({pairing.group for pairing in pairings})
    by_group = [agreement(name, [p for p in pairings if p.group == name]) for name in groups]
    return (*by_group, agreement(ALL, pairings)) if len(groups) > 1 else tuple(by_group)
