"""Why a pipeline is cut where it is, in sentences: what crosses each cut, and how even the stages
are."""

from __future__ import annotations

from shardopt.report.page.layers import LayerWork
from shardopt.report.plan_summary import PlanSummary, StageRow
from shardopt.report.units import bytes_text, seconds_text


def cut_reasons(summary: PlanSummary, layers: LayerWork | None) -> tuple[str, ...]:
    """One sentence or two for each cut between two stages that follow each other."""
    count = max(summary.num_microbatches, 1)
    loads = [(row.forward_seconds + row.backward_seconds) / count for row in summary.stages]
    reasons = []
    for left, right in zip(summary.stages, summary.stages[1:], strict=False):
        last, first = _numbers(left), _numbers(right)
        if not last or not first:
            continue
        border = last[-1]
        text = f"Between layers {border} and {first[0]}. "
        if layers is not None and border < len(layers.border_bytes):
            text += _crossing(layers, border)
        before, after = loads[left.stage], loads[right.stage]
        text += (
            f"Stage {left.stage} takes {seconds_text(before)} for a microbatch, "
            f"stage {right.stage} {seconds_text(after)}"
        )
        pace = max(loads)
        if pace in (before, after) and before != after:
            slow = left.stage if before == pace else right.stage
            text += f"; stage {slow} sets the pace of the pipeline"
        reasons.append(text + ".")
    return tuple(reasons)


def _crossing(layers: LayerWork, border: int) -> str:
    crossing = layers.border_bytes[border]
    fewer = sum(size < crossing for size in layers.border_bytes)
    total = len(layers.border_bytes)
    text = f"{bytes_text(crossing)} of each microbatch cross here"
    if total == 1:
        return text + ". "
    if not fewer:
        return text + f", as little as at any of the {total} borders. "
    return text + f"; at {fewer} of the {total} borders less would. "


def _numbers(row: StageRow) -> list[int]:
    return sorted(int(name.removeprefix("layer_")) for name in row.layers)
