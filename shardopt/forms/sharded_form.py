"""The sharded form: every value inside a stage has a sharding, and every fragment its predicted
cost.

    mpmd.fragment<mesh="m0", …> … {shardopt.cost = { seconds = 1.0e-3 : f64, compute_seconds = …,
        communication_seconds = …, communication_bytes = 4096 : i64, peak_bytes = 65536 : i64,
        collectives = [{kind = "all_reduce", axes = ["x"], tensors = 2 : i64, bytes = 4096 : i64}]}}
        … {
      stablehlo.add … {mhlo.sharding = "{devices=[2,1]<=[2]}"}
    } … -> !mpmd.mesh_tensor<"m0", tensor<8x4xf32>, sharding=<@m0, [{"x"}, {}]>>

Seconds, bytes and collectives of a fragment are of one execution.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import starmap
from math import prod

from jaxlib.mlir import ir

from shardopt.cost.summary import CostSummary
from shardopt.cost.traffic import Traffic
from shardopt.dialect.attributes import f64, i64
from shardopt.dialect.mpmd import COST, is_mesh_tensor, parse_mesh_tensor, read_topology
from shardopt.dialect.padding import shape_faults
from shardopt.dialect.plain_mesh import PLAIN_MESH
from shardopt.dialect.sharding import MHLO_SHARDING, from_mhlo, split_tuple
from shardopt.extract.op_graph import sharding_rules
from shardopt.forms.device_form import errors as device_errors
from shardopt.forms.figures import figure_violations
from shardopt.forms.imported_form import Violation
from shardopt.forms.manual_code import MANUAL_SHARDING, is_manual_or_border, misplaced
from shardopt.forms.shardy_form import errors, read_mesh
from shardopt.forms.unreduced_proof import has_unreduced, is_unreduced, unproven, unsummed_ends
from shardopt.ir.rewriting import functions, operations, symbol_name
from shardopt.mesh.mesh import Mesh

REPLICATED = "{replicated}"
UNREDUCED = "{unreduced}"  # along all axes of the mesh
_NO_FORM = "expected a sharding of the form {replicated} or {devices=[…]<=[…]}, found "

# Operations that have no sharding of their own: what their regions hold and return has.
CONTROL_FLOW = frozenset({"stablehlo.case", "stablehlo.if", "stablehlo.while"})

_TILES = re.compile(
    r"\{devices=\[(?P<tiles>[\d,]+)\](?:<=\[[\d,]+\](?:T\([\d,]+\))?|[\d,]+)"
    r"(?P<last> last_tile_dim_replicate| last_tile_dims=\{unreduced(?:, replicated)?\})?\}"
)


def write_cost(fragment: ir.Operation, cost: CostSummary) -> None:
    hidden = {"hidden_seconds": f64(cost.hidden_seconds)} if cost.hidden_seconds else {}
    host = {"host_seconds": f64(cost.host_seconds)} if cost.host_seconds else {}
    fragment.attributes[COST] = ir.DictAttr.get(
        {
            **hidden,
            **host,
            "seconds": f64(cost.seconds),
            "compute_seconds": f64(cost.compute_seconds),
            "communication_seconds": f64(cost.communication_seconds),
            "communication_bytes": i64(cost.communication_bytes),
            "peak_bytes": i64(cost.peak_bytes),
            "collectives": ir.ArrayAttr.get([_write_traffic(item) for item in cost.traffic]),
        }
    )


def read_cost(fragment: ir.Operation) -> CostSummary:
    """Raises ValueError when the fragment carries none."""
    if COST not in fragment.attributes:
        raise ValueError(f"expected attribute '{COST}' on the fragment, found none")
    attrs = ir.DictAttr(fragment.attributes[COST])
    return CostSummary(
        ir.FloatAttr(attrs["compute_seconds"]).value,
        ir.FloatAttr(attrs["communication_seconds"]).value,
        ir.IntegerAttr(attrs["peak_bytes"]).value,
        tuple(_read_traffic(ir.DictAttr(row)) for row in ir.ArrayAttr(attrs["collectives"])),
        *(
            ir.FloatAttr(attrs[name]).value if name in attrs else 0.0
            for name in ("hidden_seconds", "host_seconds")
        ),
    )


def _write_traffic(item: Traffic) -> ir.DictAttr:
    axes = ir.ArrayAttr.get([ir.StringAttr.get(axis) for axis in item.axes])
    kind = ir.StringAttr.get(item.kind)
    return ir.DictAttr.get(
        {"kind": kind, "axes": axes, "tensors": i64(item.tensors), "bytes": i64(item.bytes)}
    )


def _read_traffic(row: ir.DictAttr) -> Traffic:
    return Traffic(
        ir.StringAttr(row["kind"]).value,
        tuple(ir.StringAttr(axis).value for axis in ir.ArrayAttr(row["axes"])),
        ir.IntegerAttr(row["tensors"]).value,
        ir.IntegerAttr(row["bytes"]).value,
    )


def regions_of(op: ir.Operation) -> list[ir.Block]:
    """The blocks of a loop or branch, whose values have shardings; none for reducers and the
    like."""
    return [region.blocks[0] for region in op.regions] if op.name in CONTROL_FLOW else []


def violations(module: ir.Module) -> Iterator[Violation]:
    """All departures from the sharded form in program order: of the staged form, or of a plain
    module annotated in GSPMD's or in Shardy's way (`shardopt.forms.shardy_form`), or as the program
    of one device (`shardopt.forms.device_form`)."""
    main = next((f for f in functions(module) if symbol_name(f) == "main"), None)
    if main is None:
        yield Violation(module.operation, "expected a function '@main', found none")
    elif PLAIN_MESH in main.attributes:
        yield from starmap(Violation, device_errors(module, main))
    elif "topology" not in main.attributes:
        mesh = read_mesh(module)
        yield from (
            _of_plain(module, main) if mesh is None else starmap(Violation, errors(main, mesh))
        )
    else:
        meshes = {mesh.name: mesh for mesh in read_topology(main)}
        malformed = [each for f in functions(module) for each in _of_function(f, meshes)]
        malformed += figure_violations(module, meshes)
        malformed += [Violation(main, fault) for fault in shape_faults(main, meshes)]
        # The proof reads every sharding.
        yield from malformed or _unproven(module, meshes)


def _unproven(module: ir.Module, meshes: dict[str, Mesh]) -> list[Violation]:
    """Values that are unreduced without reason (`shardopt.forms.unreduced_proof`)."""
    fragments = list(operations(module.operation, ("mpmd.fragment",)))
    if not any(map(has_unreduced, fragments)):  # most modules: spare them the sharding rules
        return []
    with sharding_rules(module):
        return [
            Violation(*each)
            for fragment in fragments
            for each in unproven(fragment, meshes[_mesh_name(fragment)])
        ]


def _of_plain(module: ir.Module, main: ir.Operation) -> Iterator[Violation]:
    """No mesh is written in a plain module, so only presence and the number of devices can be
    checked."""
    if "mhlo.num_partitions" not in module.operation.attributes:
        yield Violation(
            module.operation, "expected attribute 'mhlo.num_partitions' on the module, found none"
        )
        return
    count = ir.IntegerAttr(module.operation.attributes["mhlo.num_partitions"]).value
    for which, name in (("arg_attrs", "argument"), ("res_attrs", "result")):
        rows = (
            [ir.DictAttr(row) for row in ir.ArrayAttr(main.attributes[which])]
            if which in main.attributes
            else []
        )
        for number, row in enumerate(rows):
            if MHLO_SHARDING not in row:
                yield Violation(
                    main, f"expected '{MHLO_SHARDING}' on {name} {number} of '@main', found none"
                )
    manual = any(map(is_manual_or_border, operations(main)))
    yield from _of_ops(main.regions[0].blocks[0], count, manual=manual)


def _of_function(function: ir.Operation, meshes: dict[str, Mesh]) -> Iterator[Violation]:
    block = function.regions[0].blocks[0]
    for number, argument in enumerate(block.arguments):
        for message in _of_type(argument.type, meshes):
            yield Violation(function, f"argument {number} of '@{symbol_name(function)}': {message}")
    if symbol_name(function) == "main":
        yield from (Violation(function, message) for message in unsummed_ends(function))
    yield from _of_block(block, meshes)


def _of_block(block: ir.Block, meshes: dict[str, Mesh]) -> Iterator[Violation]:
    for view in block.operations:
        op = view.operation
        for number, result in enumerate(op.results):
            for message in _of_type(result.type, meshes):
                yield Violation(op, f"result {number} of '{op.name}': {message}")
        if op.name == "mpmd.fragment":
            yield from _of_fragment(op, meshes)
        elif op.name == "mpmd.transfer" and (
            is_unreduced(op.operands[0]) or is_unreduced(op.results[0])
        ):
            yield Violation(
                op, f"expected a transfer of a value that is summed up, found {op.operands[0].type}"
            )
        elif op.name == "mpmd.for":
            yield from _of_block(op.regions[0].blocks[0], meshes)


def _of_fragment(op: ir.Operation, meshes: dict[str, Mesh]) -> Iterator[Violation]:
    mesh = meshes[_mesh_name(op)]
    if COST not in op.attributes:
        yield Violation(op, f"expected attribute '{COST}' on the fragment, found none")
    yield from _of_ops(op.regions[0].blocks[0], mesh.size, mesh)


def _mesh_name(fragment: ir.Operation) -> str:
    return ir.StringAttr(fragment.attributes["mesh_name"]).value


def _of_type(type_: ir.Type, meshes: dict[str, Mesh]) -> Iterator[str]:
    if not is_mesh_tensor(type_):
        return
    parsed = parse_mesh_tensor(type_)
    if parsed.mesh not in meshes:
        yield f"expected a mesh of the topology ({', '.join(meshes)}), found '{parsed.mesh}'"
    elif parsed.sharding is None:
        yield f"expected a mesh tensor with a sharding, found {type_}"
    else:
        try:
            parsed.sharding.check(meshes[parsed.mesh], tuple(parsed.tensor.shape))
        except ValueError as error:
            yield str(error)


def _of_ops(
    block: ir.Block, devices: int, mesh: Mesh | None = None, *, manual: bool = False
) -> Iterator[Violation]:
    """`manual` says whether there is code for one device, which has to stand together."""
    for view in block.operations:
        op = view.operation
        for inner in regions_of(op):
            yield from _of_ops(inner, devices, mesh, manual=manual)
        if not len(op.results) or op.name in CONTROL_FLOW:
            continue
        if MHLO_SHARDING not in op.attributes:
            yield Violation(op, f"expected attribute '{MHLO_SHARDING}' on '{op.name}', found none")
            continue
        texts = split_tuple(ir.StringAttr(op.attributes[MHLO_SHARDING]).value)
        if len(texts) != len(op.results):
            yield Violation(
                op, f"expected {len(op.results)} shardings on '{op.name}', found {len(texts)}"
            )
            continue
        for text, result in zip(texts, op.results, strict=False):
            shape = tuple(ir.RankedTensorType(result.type).shape)
            message = _misfit(text, shape, devices, mesh)
            if message:
                yield Violation(op, f"'{op.name}': {message}")
        if manual and (message := misplaced(op)):
            yield Violation(op, f"'{op.name}': {message}")


@lru_cache(maxsize=65536)  # few shardings stand on many values
def _misfit(text: str, shape: tuple[int, ...], devices: int, mesh: Mesh | None) -> str:
    return _tile_error(text, shape, devices) or _axes_error(text, shape, mesh)


def _axes_error(text: str, shape: tuple[int, ...], mesh: Mesh | None) -> str:
    """Why a sharding does not lie along the axes of the mesh, where that is known."""
    try:
        if mesh is not None and text == MANUAL_SHARDING:  # blocks for one device stand in no stage
            return _NO_FORM + f"'{text}'"
        if mesh is not None:
            from_mhlo(text, len(shape), mesh).check(mesh, shape)
    except ValueError as error:
        return str(error)
    return ""


def _tile_error(text: str, shape: tuple[int, ...], devices: int) -> str:
    """What is wrong with one sharding of a tensor on so many devices, or nothing."""
    if text in (REPLICATED, UNREDUCED, MANUAL_SHARDING):
        return ""
    match = _TILES.fullmatch(text)
    if match is None:
        return _NO_FORM + f"'{text}'"
    tiles = [int(count) for count in match["tiles"].split(",")]
    if prod(tiles) != devices:
        return f"expected a sharding over {devices} devices, found {prod(tiles)} in '{text}'"
    if match["last"]:
        del tiles[-1 - match["last"].count(",") :]
    if len(tiles) != len(shape):
        return f"expected tile counts for rank {len(shape)}, found {len(tiles)} in '{text}'"
    return ""
