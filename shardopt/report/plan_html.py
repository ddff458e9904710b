"""A plan in few lines, as text, and as a small piece of HTML for notebooks; `page` is the whole
report."""

from __future__ import annotations

from html import escape

from shardopt.report.plan_summary import PlanSummary, StageRow
from shardopt.report.plan_table import backward_text, ids_text, span_text
from shardopt.report.timeline_svg import timeline_svg
from shardopt.report.units import bytes_text, seconds_text
from shardopt.schedule.simulator import SimulationResult
from shardopt.support.counts import counted

# More are left out of texts and tables, which people look at in passing.
_MOST_STAGES = 16
_COLUMNS = ("stage", "layers", "mesh: devices", "shape", "forward", "backward", "memory")


def plan_text(summary: PlanSummary) -> str:
    """A line about the plan and one for each stage."""
    lines = [f"Plan({headline(summary)})"]
    for row in summary.stages[:_MOST_STAGES]:
        stage, layers, mesh, shape, forward, backward, memory = stage_cells(row)
        lines.append(
            f"  stage {stage}: layers {layers} on {mesh} as {shape}, forward {forward}, "
            f"backward {backward}, {memory} a device"
        )
    left_out = len(summary.stages) - _MOST_STAGES
    return "\n".join([*lines, *([f"  and {left_out} more stages"] if left_out > 0 else [])])


def plan_html(summary: PlanSummary, simulated: SimulationResult) -> str:
    """A table of stages, and the simulated step as a picture inside; it needs no other file."""
    cells = [stage_cells(row) for row in summary.stages[:_MOST_STAGES]]
    rows = [_row("th", _COLUMNS), *(_row("td", row) for row in cells)]
    left_out = len(summary.stages) - _MOST_STAGES
    note = f"<p>and {left_out} more stages</p>" if left_out > 0 else ""
    return (
        f"<div><p>{escape(headline(summary))}</p><table>{''.join(rows)}</table>{note}"
        f"{timeline_svg(simulated)}</div>"
    )


def headline(summary: PlanSummary) -> str:
    """Cluster, stages, microbatches, schedule and predicted step."""
    return (
        f"{summary.cluster}: {counted(len(summary.stages), 'stage')}, "
        f"{counted(summary.num_microbatches, 'microbatch')}, schedule {summary.schedule}, "
        f"predicted step {seconds_text(summary.step_seconds)}"
    )


def stage_cells(row: StageRow) -> tuple[str, ...]:
    """A stage as texts: number, layers, mesh, shape, forward, backward, memory of a device."""
    return (
        str(row.stage),
        span_text(row.layers),
        f"{row.mesh}: {ids_text(row.devices)}",
        "×".join(map(str, row.logical_shape)),
        seconds_text(row.forward_seconds),
        backward_text(row),
        bytes_text(row.peak_bytes),
    )


def _row(tag: str, cells: tuple[str, ...]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"
