"""The stages of a plan as two tables for a terminal: what they are and take, and what they
exchange.

Both fit 80 columns. Where a terminal is narrower, texts go on in the next line: no number is
cut."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardopt.report.plan_summary import PlanSummary, StageRow
from shardopt.report.units import bytes_text, seconds_text
from shardopt.support.counts import counted

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

_TEXTS = ("stage", "layers", "mesh:\ndevices", "shape", "re-\ncompute")
_NUMBERS = ("forward", "back-\nward", "outside\nloop", "memory")
_PADDING = (0, 1, 0, 0)  # a column more for the border, and ten columns of figures fit
# In the order of how much a step usually exchanges by them.
_KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute")


def plan_table(summary: PlanSummary) -> Group:
    """Both tables; the second is left out where nothing is exchanged."""
    from rich.console import Group

    exchanging = any(row.collectives or row.sent_bytes for row in summary.stages)
    tables = (_stage_table(summary), *([_exchange_table(summary)] if exchanging else []))
    return Group(*tables)


def _table(title: str, caption: str, texts: tuple[str, ...], numbers: tuple[str, ...]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(title=title, caption=caption, box=SIMPLE_HEAD, padding=_PADDING, pad_edge=False)
    for name in texts:
        table.add_column(name, overflow="fold")
    for name in numbers:
        table.add_column(name, justify="right", overflow="fold")
    return table


def _stage_table(summary: PlanSummary) -> Table:
    # A column of its own where some stage offloads; most plans do not.
    offloads = any(row.offload != "none" for row in summary.stages)
    microbatches = counted(summary.num_microbatches, "microbatch")
    table = _table(
        f"{summary.cluster} · {microbatches} · {summary.schedule}",
        f"predicted step {seconds_text(summary.step_seconds)} · "
        f"bubble {summary.bubble_fraction:.1%}",
        _TEXTS,
        (*_NUMBERS, *("on\nhosts",) * offloads),
    )
    for row in summary.stages:
        table.add_row(
            str(row.stage),
            span_text(row.layers),
            f"{row.mesh}: {ids_text(row.devices)}",
            "×".join(map(str, row.logical_shape)),
            row.recompute.replace("none", "–"),
            seconds_text(row.forward_seconds),
            backward_text(row),
            seconds_text(row.outside_seconds),
            bytes_text(row.peak_bytes),
            *(_on_hosts(row),) * offloads,
        )
    return table


def _on_hosts(row: StageRow) -> str:
    """What a stage lays there; a last stage has nothing that waits for a backward."""
    if row.offload == "none":
        return "–"
    what = row.offload.replace("all", "optimizer, activations")
    return f"{what}: {bytes_text(row.host_bytes)}" if row.host_bytes else "–"


def _exchange_table(summary: PlanSummary) -> Table:
    """Bytes of a step, by kind; kinds that no stage uses have no column."""
    present = {item.kind for row in summary.stages for item in row.collectives}
    kinds = [kind for kind in _KINDS if kind in present] + sorted(present - set(_KINDS))
    headings = tuple(kind.replace("_", "-\n", 1).replace("_", "-") for kind in kinds)
    table = _table("exchanged in a step", "", ("stage",), (*headings, "sent to\nstages"))
    for row in summary.stages:
        table.add_row(str(row.stage), *(_bytes(row, kind) for kind in kinds), _text(row.sent_bytes))
    return table


def _bytes(row: StageRow, kind: str) -> str:
    return _text(sum(item.bytes for item in row.collectives if item.kind == kind))


def _text(size: int) -> str:
    return bytes_text(size) if size else "–"


def backward_text(row: StageRow) -> str:
    """The seconds of the backward, unless the stage has none of its own: then its forward does it,
    or nothing is trained."""
    return seconds_text(row.backward_seconds) if row.backward_seconds else "–"


def span_text(layers: tuple[str, ...]) -> str:
    numbers = sorted(int(name.removeprefix("layer_")) for name in layers)
    return (
        "–"
        if not numbers
        else str(numbers[0])
        if len(numbers) == 1
        else f"{numbers[0]}–{numbers[-1]}"
    )


def ids_text(devices: tuple[int, ...]) -> str:
    contiguous = devices == tuple(range(devices[0], devices[0] + len(devices)))
    return (
        f"{devices[0]}–{devices[-1]}"
        if contiguous and len(devices) > 1
        else ",".join(map(str, devices))
    )
