"""Figure 8 of the paper: sharding methods inside of one stage, on 1 to 8 V100 of one host.

    python -m benchmarks.alpa.figure8 [--families gpt,moe,wresnet] [--page]

Every cell is a model, a number of devices and a method; `figure8.csv` has what the authors measured
(`osdi22_artifact/results_intra_ablation_ref.tsv` of github.com/alpa-projects/alpa): seconds of a
step, peak memory, or that it did not fit. Cells are planned and predicted as by `shardopt
compare-measured` and kept in `figure8.jsonl`; `--page` writes tables and picture to the docs.

The authors' plan of "auto" is the best over logical shapes of the devices; so is ours. A cell fits
if there is a plan within nine tenths of a device's memory, the planner's default: as stated, or,
where that needs more, with what the planner gathers or computes twice for it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median

from benchmarks.alpa.bars import Bar, Group, Panel, bars_svg
from benchmarks.alpa.kept import Result, fill, message
from benchmarks.alpa.pages import PAGE, write_part
from benchmarks.alpa.report import TITLES
from shardopt.measured.case import Case, case_of
from shardopt.measured.predict import prediction, prediction_within
from shardopt.measured.rows import Row, read_rows
from shardopt.measured.stretch import StepPrediction
from shardopt.support.errors import UserError

FOLDER = Path(__file__).parent
PUBLISHED, KEPT = FOLDER / "figure8.csv", FOLDER / "figure8.jsonl"
PICTURE = PAGE.parent / "alpa-figure8.svg"
FAMILIES = ("gpt", "moe", "wresnet")
METHODS = ("auto_sharding", "data_parallel", "zero_2", "zero_3", "heuristic")
DEVICES = (1, 2, 4, 8)
USABLE = 0.9
GIB = 2**30


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--families", default=",".join(FAMILIES))
    parser.add_argument("--results", type=Path, default=KEPT, help="file of results")
    parser.add_argument("--page", action="store_true", help="write tables and picture to the docs")
    args = parser.parse_args(argv)
    rows = published()
    cells = [cell for cell in rows if cell.partition("-")[0] in args.families.split(",")]
    results = fill(args.results, cells, lambda cell: predicted(rows[cell]))
    text = report(rows, results)
    print(text)
    if args.page:
        write_part("figure 8", text)
        PICTURE.write_text(picture(rows, results))
    return 0


def published() -> dict[str, Row]:
    """The measured step of every cell, `family-devices-method`, those on few devices first: of
    several logical shapes the best one."""
    best: dict[str, Row] = {}
    for row in read_rows(PUBLISHED):
        cell = f"{row.group}-{row.devices}-{row.note.removeprefix('method ')}"
        if cell not in best or _seconds(row) < _seconds(best[cell]):
            best[cell] = row
    return dict(sorted(best.items(), key=lambda item: item[1].devices or 0))


def predicted(row: Row) -> Result:
    """The fastest plan that fits, over logical shapes; or why none does."""
    plans, refusals = [], []
    for case in _shapes(case_of(row)):
        try:
            plans.append((case, *_fitting(case)))
        except UserError as error:
            refusals.append(message(error))
    if not plans:
        return {"fits": False, "reason": refusals[0]}
    case, best, is_plain = min(plans, key=lambda plan: plan[1].step_seconds)
    return {
        "fits": True,
        "shape": list(case.layout.shape),
        "step_seconds": best.step_seconds,
        "memory_bytes": best.memory_bytes,
        "within_memory_from_the_start": is_plain,
    }


def _fitting(case: Case) -> tuple[StepPrediction, bool]:
    """The plan as stated, or where that exceeds the memory the planner's within it, and whether it
    is the former. Raises UserError where there is none."""
    plan = prediction(case)
    usable = USABLE * case.machine.device.memory_bytes
    if plan.memory_bytes <= usable:
        return plan, True
    plan = prediction_within(case, USABLE)
    if plan.memory_bytes > usable:  # with what sums hold that the planner makes one by one
        raise UserError(f"gradients summed together need {plan.memory_bytes / GIB:.2f} GiB")
    return plan, False


def _shapes(case: Case) -> Iterator[Case]:
    """Logical shapes that are free to choose: all devices on one axis, or half of them on two."""
    yield case
    devices = case.layout.width
    if case.layout.intra_op == "ilp" and devices > 2:
        yield replace(case, layout=replace(case.layout, shape=(devices // 2, 2)))


def _seconds(row: Row) -> float:
    return row.step_s if row.step_s is not None else float("inf")


# ---- tables ----


def report(rows: dict[str, Row], results: dict[str, Result]) -> str:
    """A table a family, and how predictions agree with what was measured."""
    parts = ["\n".join(_table(family, rows, results)) for family in FAMILIES]
    return "\n\n".join([*parts, "\n".join(_agreement(rows, results))])


def _table(family: str, rows: dict[str, Row], results: dict[str, Result]) -> Iterator[str]:
    yield f"| {family} | " + " | ".join(f"{count} GPU: s, GiB" for count in DEVICES) + " |"
    yield "|---|" + "---|" * len(DEVICES)
    for method in METHODS:
        cells = [f"{family}-{count}-{method}" for count in DEVICES]
        texts = [_cell(rows[cell], results.get(cell)) for cell in cells]
        yield f"| {method} | " + " | ".join(texts) + " |"


def _cell(row: Row, result: Result | None) -> str:
    measured = "(OOM)" if row.step_s is None else f"({row.step_s:.3f}, {row.mem_GiB:.1f})"
    if result is None:
        return f"not run {measured}"
    if not result["fits"]:
        return f"OOM {measured}"
    seconds, memory = _figures(result)
    return f"{seconds:.3f}, {memory / GIB:.1f} {measured}"


def _figures(result: Result) -> tuple[float, float]:
    """Seconds and bytes of a plan that fits."""
    return float(str(result["step_seconds"])), float(str(result["memory_bytes"]))


def _agreement(rows: dict[str, Row], results: dict[str, Result]) -> Iterator[str]:
    yield "| cells | run | fit or not as measured | seconds: median, mean error, bias | memory |"
    yield "|---|---|---|---|---|"
    for family in (*FAMILIES, ""):
        cells = [cell for cell in rows if cell.startswith(family)]
        run = [cell for cell in cells if cell in results]
        right = sum(results[cell]["fits"] == (rows[cell].step_s is not None) for cell in run)
        both = [cell for cell in run if results[cell]["fits"] and rows[cell].step_s is not None]
        pairs = [(_figures(results[cell]), rows[cell]) for cell in both]
        seconds = [figures[0] / _seconds(row) - 1 for figures, row in pairs]
        memory = [figures[1] / GIB / (row.mem_GiB or 1) - 1 for figures, row in pairs]
        yield (
            f"| {family or 'all'} | {len(run)} of {len(cells)} | {right} of {len(run)} "
            f"| {_errors(seconds)} | {_errors(memory)} |"
        )


def _errors(errors: list[float]) -> str:
    if not errors:
        return "–"
    sizes = [abs(error) for error in errors]
    return f"{median(sizes):.1%}, {fmean(sizes):.1%}, {fmean(errors):+.1%}"


# ---- picture ----


def picture(rows: dict[str, Row], results: dict[str, Result]) -> str:
    return bars_svg([_panel(family, rows, results) for family in FAMILIES], METHODS)


def _panel(family: str, rows: dict[str, Row], results: dict[str, Result]) -> Panel:
    """Steps a second of all devices, as in the paper; what does not fit has no bar."""
    groups = []
    for count in DEVICES:
        bars = []
        for method in METHODS:
            cell = f"{family}-{count}-{method}"
            row, result = rows[cell], results.get(cell, {})
            rate = 1 / _figures(result)[0] if result.get("fits") else 0.0
            bars.append(Bar(rate, 1 / _seconds(row), result.get("fits") is False))
        groups.append(Group(f"{count} GPU", tuple(bars)))
    title = f"{TITLES[family]}: steps a second, predicted (bar, × out of memory), measured (line)"
    return Panel(title, tuple(groups))


if __name__ == "__main__":
    sys.exit(main())
