"""Results as Markdown tables and as a picture of bars like the paper's figure 7."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from benchmarks.alpa.bars import Bar, Group, Panel, bars_svg
from benchmarks.alpa.methods import METHODS
from benchmarks.alpa.published import OUT_OF_MEMORY, published
from benchmarks.alpa.specs import CASES, Case

Row = Mapping[str, object]
TITLES = {"gpt": "GPT", "moe": "GShard MoE", "wresnet": "Wide-ResNet"}


def tflops(case: Case, seconds: float) -> float:
    """Of a device, as the artifact counts: GPT and MoE with the forward pass computed again,
    Wide-ResNet without."""
    return case.spec.flops(recompute=case.family != "wresnet") / seconds / case.devices / 1e12


def tables(results: Mapping[str, Row]) -> str:
    """One table a family: predicted TFLOPS of a device, the measured ones of the paper in
    parentheses. A row of the file that is marked `older`, as it was planned with another model or
    with other costs, has an asterisk."""
    return "\n\n".join(
        "\n".join(_table(family, results))
        for family in ("gpt", "moe", "wresnet")
        if _methods(family, results)
    )


def _methods(family: str, results: Mapping[str, Row]) -> list[str]:
    measured = {key.split("/")[1] for key in results if key.startswith(f"{family}-")}
    return [method for method in METHODS if method in measured]


def _table(family: str, results: Mapping[str, Row]) -> Iterator[str]:
    methods = _methods(family, results)
    yield "| model | GPUs | microbatches | " + " | ".join(methods) + " |"
    yield "|---|---|---|" + "---|" * len(methods)
    for case in CASES:
        if case.family == family and any(best(case, m, results) for m in methods):
            cells = [_cell(case, method, results) for method in methods]
            yield (
                f"| {case.name} | {case.devices} | {case.microbatches} | "
                + " | ".join(cells)
                + " |"
            )


def _cell(case: Case, method: str, results: Mapping[str, Row]) -> str:
    ours = _said(case, best(case, method, results))
    measured = published(case.family, method, case.devices)
    if measured is None:
        return ours
    return f"{ours} ({'does not fit' if measured == OUT_OF_MEMORY else f'{measured:.3g}'})"


def best(case: Case, method: str, results: Mapping[str, Row]) -> Row | None:
    """Of all numbers of microbatches that were tried, the fastest plan, if there are any of those
    with the logical shape that the authors stated; else any failure; else None."""
    key = f"{case.name}/{method}"
    rows = [row for name, row in results.items() if name == key or name.startswith(key + "/")]
    rows = [row for row in rows if row.get("logical_shape")] or rows
    planned = [row for row in rows if row.get("seconds")]
    if planned:
        return min(planned, key=lambda row: float(str(row["seconds"])))
    return rows[0] if rows else None


def _said(case: Case, row: Row | None) -> str:
    if row is None:
        return "not run"
    if row.get("seconds"):
        text = f"{tflops(case, float(str(row['seconds']))):.1f}"
        other = row["microbatches"] != case.microbatches
        text += f" with {row['microbatches']} microbatches" if other else ""
    elif row.get("timeout"):
        text = "not planned in time"
    else:
        text = "does not fit" if "memory" in str(row.get("error")) else "no plan"
    return f"{text}*" if row.get("older") else text


def picture(results: Mapping[str, Row]) -> str:
    """One panel a family; a method has one color in all of them."""
    return bars_svg(
        [
            _panel(family, results)
            for family in ("gpt", "moe", "wresnet")
            if _methods(family, results)
        ],
        tuple(METHODS),
    )


def _panel(family: str, results: Mapping[str, Row]) -> Panel:
    methods = _methods(family, results)
    groups = []
    for case in CASES:
        rows = [best(case, method, results) for method in METHODS]
        if case.family != family or not any(rows):
            continue
        bars = [
            Bar(
                _height(case, row),
                published(family, method, case.devices) or 0.0,
                row is not None and not row.get("seconds") and not row.get("timeout"),
                row is not None and bool(row.get("older")),
            )
            if method in methods
            else Bar(0.0, 0.0)
            for method, row in zip(METHODS, rows, strict=True)
        ]
        groups.append(Group(f"{case.name} · {case.devices}", tuple(bars)))
    shown = "predicted (bar, pale if older, × no plan), measured (line)"
    return Panel(f"{TITLES[family]}: TFLOPS of a GPU, {shown}", tuple(groups))


def _height(case: Case, row: Row | None) -> float:
    return (
        tflops(case, float(str(row["seconds"]))) if row is not None and row.get("seconds") else 0.0
    )
