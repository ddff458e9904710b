"""What a sharded module says, for people: where every argument and result lies, and what one step
exchanges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from jaxlib.mlir import ir

from shardopt.cost.frontier import Frontier
from shardopt.cost.summary import CostSummary
from shardopt.dialect.attributes import entries
from shardopt.dialect.donation import read_donation
from shardopt.dialect.sharding import MHLO_SHARDING, from_mhlo, from_sdy
from shardopt.dialect.tiles import TILE, read_tile
from shardopt.extract.op_graph import read_tensor
from shardopt.forms.frontier import read_frontier
from shardopt.forms.sharded_form import read_cost
from shardopt.forms.shardy_form import SDY_SHARDING
from shardopt.ir.diagnostics import position_of
from shardopt.ir.rewriting import functions, symbol_name
from shardopt.mesh.mesh import Mesh, Sharding
from shardopt.report.units import bytes_text, seconds_text

if TYPE_CHECKING:
    from rich.table import Table

# Rows of the table of arguments; a model has hundreds, and most of them alike.
_MAX_ROWS = 40


@dataclass(frozen=True)
class ValueRow:
    """An argument or result of `@main`: `local_bytes` is what one device holds of it."""

    name: str
    type: str
    sharding: Sharding
    local_bytes: int
    donated: bool = False


@dataclass(frozen=True)
class ShardingSummary:
    """A module sharded over one mesh: its signature, the predicted cost of one execution, and that
    of plans for other memory budgets where it was asked for."""

    mesh: Mesh
    arguments: tuple[ValueRow, ...]
    results: tuple[ValueRow, ...]
    cost: CostSummary
    frontier: Frontier | None = None

    def to_json(self) -> dict[str, object]:
        frontier = {} if self.frontier is None else {"frontier": self.frontier.to_json()}
        return {
            "mesh": dict(self.mesh.axes),
            "arguments": [_row_json(row) for row in self.arguments],
            "results": [_row_json(row) for row in self.results],
            "cost": {"seconds": self.cost.seconds, **asdict(self.cost)},
            **frontier,
        }


def summarize_sharding(module: ir.Module, mesh: Mesh) -> ShardingSummary:
    """Read a plain module that was sharded over `mesh`, in either format. Raises ValueError when a
    part is missing."""
    main = next(function for function in functions(module) if symbol_name(function) == "main")
    type_ = ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value)
    donated = read_donation(main)
    names = [position_of(argument).name for argument in main.regions[0].blocks[0].arguments]
    inputs = _signature(main, "arg_attrs", type_.inputs, mesh)
    outputs = _signature(main, "res_attrs", type_.results, mesh)
    inputs_of, outputs_of = (
        _whole_types(main, *side)
        for side in (("arg_attrs", type_.inputs), ("res_attrs", type_.results))
    )
    return ShardingSummary(
        mesh,
        tuple(
            _row(names[k] or f"argument {k}", tensor, sharding, mesh, k in donated)
            for k, (tensor, sharding) in enumerate(zip(inputs_of, inputs, strict=True))
        ),
        tuple(
            _row(f"result {k}", tensor, sharding, mesh, False)
            for k, (tensor, sharding) in enumerate(zip(outputs_of, outputs, strict=True))
        ),
        read_cost(main),
        read_frontier(main),
    )


def _signature(
    main: ir.Operation, which: str, types: Sequence[ir.Type], mesh: Mesh
) -> list[Sharding]:
    shardings = []
    for row, type_ in zip(
        ir.ArrayAttr(main.attributes[which]) if len(types) else (), types, strict=True
    ):
        attributes = entries(ir.DictAttr(row))
        if TILE in attributes:
            shardings.append(read_tile(attributes[TILE])[1])
        elif MHLO_SHARDING in attributes:
            text = ir.StringAttr(attributes[MHLO_SHARDING]).value
            shardings.append(from_mhlo(text, ir.RankedTensorType(type_).rank, mesh))
        elif SDY_SHARDING in attributes:
            shardings.append(from_sdy(str(attributes[SDY_SHARDING]))[1])
        else:
            raise ValueError(
                f"expected a sharding on every value of the signature of '@main', found {row}"
            )
    return shardings


def _whole_types(main: ir.Operation, which: str, types: Sequence[ir.Type]) -> list[ir.Type]:
    """Of the program for one device, the tensors that its tiles are of."""
    rows = map(ir.DictAttr, ir.ArrayAttr(main.attributes[which]) if len(types) else ())
    return [
        read_tile(row[TILE])[0] if TILE in row else type_
        for row, type_ in zip(rows, types, strict=True)
    ]


def _row(name: str, type_: ir.Type, sharding: Sharding, mesh: Mesh, donated: bool) -> ValueRow:
    tensor = read_tensor(type_)
    text = "x".join([*map(str, tensor.shape), tensor.dtype])
    return ValueRow(
        name, text, sharding, sharding.local_elements(mesh, tensor.shape) * tensor.itemsize, donated
    )


def _row_json(row: ValueRow) -> dict[str, object]:
    return {**asdict(row), "sharding": str(row.sharding)}


def signature_table(summary: ShardingSummary) -> Table:
    """Arguments by type and sharding; equal ones share a row, the largest come first."""
    from rich.table import Table

    groups: dict[tuple[str, str, bool], list[ValueRow]] = {}
    for row in summary.arguments:
        groups.setdefault((row.type, str(row.sharding), row.donated), []).append(row)
    order = sorted(
        groups.items(), key=lambda item: (-sum(row.local_bytes for row in item[1]), item[0])
    )
    total = sum(row.local_bytes for row in summary.arguments)
    table = Table(
        title=f"arguments on a mesh of {_shape(summary.mesh)}",
        caption=f"{bytes_text(total)} of arguments on each device",
    )
    table.add_column("argument")
    table.add_column("type")
    table.add_column("sharding")
    for name in ("number", "bytes on a device"):
        table.add_column(name, justify="right")
    for (type_, sharding, donated), rows in order[:_MAX_ROWS]:
        name = rows[0].name + (", …" if len(rows) > 1 else "") + (" (donated)" if donated else "")
        bytes_ = bytes_text(sum(row.local_bytes for row in rows))
        table.add_row(name, type_, sharding, str(len(rows)), bytes_)
    if len(order) > _MAX_ROWS:
        rest = [row for _, rows in order[_MAX_ROWS:] for row in rows]
        table.add_row(
            "others", "", "", str(len(rest)), bytes_text(sum(row.local_bytes for row in rest))
        )
    return table


def traffic_table(summary: ShardingSummary) -> Table:
    """The predicted collectives of one step by kind and mesh axes."""
    from rich.table import Table

    cost = summary.cost
    said = (
        f"compute {seconds_text(cost.compute_seconds)}",
        f"communication {seconds_text(cost.communication_seconds)}",
        f"peak memory {bytes_text(cost.peak_bytes)} on each device",
    )
    table = Table(
        title="predicted collectives of one step",
        caption="\n".join(said),
        min_width=max(map(len, said)),  # rich breaks captions at the width of the table
    )
    table.add_column("kind")
    table.add_column("axes")
    for name in ("tensors", "bytes"):
        table.add_column(name, justify="right")
    for item in cost.traffic:
        table.add_row(
            item.kind.replace("_", "-"),
            ", ".join(item.axes),
            str(item.tensors),
            bytes_text(item.bytes),
        )
    if not cost.traffic:
        table.add_row("none", "", "0", "0 B")
    return table


def _shape(mesh: Mesh) -> str:
    return " × ".join(f"{name}={size}" for name, size in mesh.axes)
