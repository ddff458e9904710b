"""Results as Markdown tables and as a picture of bars like the paper's figure 8."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from benchmarks.alpa.methods import METHODS
from benchmarks.alpa.published import OUT_OF_MEMORY, published
from benchmarks.alpa.specs import CASES, Case

Row = Mapping[str, object]
_COLORS = ("#2b6cb0", "#dd6b20", "#38a169", "#805ad5", "#d53f8c", "#718096", "#b7791f", "#319795")


def tflops(case: Case, seconds: float) -> float:
    """Of a device, as the artifact counts: GPT and MoE with the forward pass computed again,
    Wide-ResNet without."""
    return case.spec.flops(recompute=case.family != "wresnet") / seconds / case.devices / 1e12


def tables(results: Mapping[str, Row]) -> str:
    """One table a family: predicted TFLOPS of a device, the measured ones of the paper in
    parentheses."""
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
    """Of all numbers of microbatches that were tried, the fastest plan; else any failure; else
    None."""
    key = f"{case.name}/{method}"
    rows = [row for name, row in results.items() if name == key or name.startswith(key + "/")]
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
        return f"{text} with {row['microbatches']} microbatches" if other else text
    if row.get("timeout"):
        return "not planned in time"
    return "does not fit" if "memory" in str(row.get("error")) else "no plan"


def bars_svg(results: Mapping[str, Row]) -> str:
    """Predicted bars, with the paper's measurement as a line across each; one row of groups a
    family."""
    parts, top = [], 0
    for family in ("gpt", "moe", "wresnet"):
        methods = _methods(family, results)
        if methods:
            parts += _panel(family, methods, results, top)
            top += 200
    body = "\n".join(parts)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="760" height="{top}" '
        'font-family="sans-serif">'
    )
    return f"{head}\n{body}\n</svg>\n"


def _panel(family: str, methods: list[str], results: Mapping[str, Row], top: int) -> list[str]:
    cases = [
        case
        for case in CASES
        if case.family == family and any(best(case, m, results) for m in methods)
    ]
    values = {
        (case.name, m): _height(case, best(case, m, results)) for case in cases for m in methods
    }
    paper_values = {
        (case.name, m): published(family, m, case.devices) or 0.0 for case in cases for m in methods
    }
    scale = 130 / max(*values.values(), *paper_values.values(), 1e-9)
    base, group = top + 170, 720 // max(len(cases), 1)
    width = max(4, (group - 20) // len(methods))
    parts = [
        _text(
            10,
            top + 16,
            f"{family}: TFLOPS of a GPU, predicted (bar) and measured in the paper (line)",
            12,
        )
    ]
    for number, method in enumerate(methods):
        x = 10 + 90 * number
        parts.append(
            f'<rect x="{x}" y="{top + 22}" width="9" height="9" fill="{_COLORS[number]}"/>'
        )
        parts.append(_text(x + 12, top + 30, method, 10))
    for place, case in enumerate(cases):
        left = 20 + place * group
        parts.append(_text(left, base + 14, f"{case.name} · {case.devices}", 10))
        for number, method in enumerate(methods):
            x, tall = left + number * width, values[case.name, method] * scale
            if tall:
                parts.append(_bar(x, base - tall, width - 2, tall, _COLORS[number]))
            if paper_values[case.name, method]:
                parts.append(
                    _bar(x, base - paper_values[case.name, method] * scale, width - 2, 2, "#000")
                )
    return parts


def _height(case: Case, row: Row | None) -> float:
    return (
        tflops(case, float(str(row["seconds"]))) if row is not None and row.get("seconds") else 0.0
    )


def _bar(x: float, y: float, width: float, height: float, color: str) -> str:
    return f'<rect x="{x}" y="{y:.1f}" width="{width}" height="{height:.1f}" fill="{color}"/>'


def _text(x: float, y: float, text: str, size: int) -> str:
    return f'<text x="{x}" y="{y}" font-size="{size}">{text}</text>'
