"""`shardopt.schedule` on the microbatch loop: the order of tasks on every mesh, and what the
simulator predicts for it.

mpmd.for (…) {shardopt.schedule = {name = "1f1b", makespan_seconds = 0.1 : f64, bubble = 0.27 : f64,
              peak_bytes = array<i64: 4096, 2048>}} …
mpmd.for (…) {shardopt.schedule = {name = "auto", tasks = ["0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"],
…}} …"""

from __future__ import annotations

from collections.abc import Sequence

from jaxlib.mlir import ir

from shardopt.dialect.attributes import f64
from shardopt.dialect.mpmd import SCHEDULE
from shardopt.schedule.schedules import ScheduleText
from shardopt.schedule.simulator import SimulationResult

_TASKS = "tasks"


def write_schedule(
    loop: ir.Operation, text: ScheduleText, result: SimulationResult, peak_bytes: Sequence[int]
) -> None:
    """`peak_bytes` is the most that a device of each mesh holds in the whole step."""
    lists = (
        {_TASKS: ir.ArrayAttr.get([ir.StringAttr.get(row) for row in text.rows])}
        if text.rows
        else {}
    )
    loop.attributes[SCHEDULE] = ir.DictAttr.get(
        {
            "name": ir.StringAttr.get(text.name),
            **lists,
            "makespan_seconds": f64(result.makespan_seconds),
            "bubble": f64(result.bubble_fraction),
            "peak_bytes": ir.DenseI64ArrayAttr.get(list(peak_bytes)),
        }
    )


def read_peaks(loop: ir.Operation) -> tuple[int, ...]:
    """Bytes of a device of each mesh, from a loop with a schedule."""
    return tuple(ir.DenseI64ArrayAttr(ir.DictAttr(loop.attributes[SCHEDULE])["peak_bytes"]))


def read_schedule(loop: ir.Operation) -> ScheduleText | None:
    """None without the attribute."""
    if SCHEDULE not in loop.attributes:
        return None
    fields = ir.DictAttr(loop.attributes[SCHEDULE])
    rows = ir.ArrayAttr(fields[_TASKS]) if _TASKS in fields else ()
    return ScheduleText(
        ir.StringAttr(fields["name"]).value, tuple(ir.StringAttr(row).value for row in rows)
    )
