"""From `mhlo.sharding` annotations on a plain module to Shardy's form, which is what plain
`jax.jit` partitions.

    func.func public @main(%a: tensor<8x4xf32> {mhlo.sharding = "{devices=[2,1]<=[2]}"}) …
      %0 = stablehlo.add %a, %a {mhlo.sharding = "{devices=[2,1]<=[2]}"} : tensor<8x4xf32>
 =>
    sdy.mesh @mesh = <["x"=2]>
    func.func public @main(%a: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) …
      %0 = stablehlo.add %a, %a : tensor<8x4xf32>
      %1 = sdy.sharding_constraint %0 <@mesh, [{"x"}, {}]> : tensor<8x4xf32>

Only constraints bind inside a function: XLA's import drops `sdy.sharding` on operations. With every
value constrained Shardy emits the same collectives as GSPMD does from the annotations; with the
signature alone it chooses others. Arguments and results with uneven tiles are padded
(`shardopt.forms.padded_signature`)."""

from __future__ import annotations

from collections.abc import Sequence

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from shardopt.dialect.annotation import is_marker
from shardopt.dialect.manual import MANUAL, read_region, write_region
from shardopt.dialect.sharding import MHLO_SHARDING, from_mhlo, split_tuple
from shardopt.forms.padded_signature import pad_signature
from shardopt.forms.sharded_form import regions_of
from shardopt.forms.shardy_form import SDY_SHARDING, needs_no_constraint
from shardopt.ir.rewriting import defining, functions, operations, symbol_name, terminator
from shardopt.mesh.mesh import Mesh, Sharding

_PARTITIONS = ("mhlo.num_partitions", "mhlo.num_replicas")


def to_shardy(module: ir.Module, mesh: Mesh) -> None:
    """Rewrite a plain annotated module in place.

    `mesh` is the one that the annotations mean. Raises ValueError for a sharding that is none of
    its axis shardings."""
    main = next(function for function in functions(module) if symbol_name(function) == "main")
    type_ = ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value)
    with module.context, ir.Location.unknown():
        axes = [sdy.MeshAxisAttr.get(name, size) for name, size in mesh.axes]
        with ir.InsertionPoint.at_block_begin(module.body):
            sdy.MeshOp(ir.StringAttr.get(mesh.name), sdy.MeshAttr.get(axes))
        for name in _PARTITIONS:
            if name in module.operation.attributes:
                del module.operation.attributes[name]
        for op in operations(main, (MANUAL,)):
            region = read_region(op).on(mesh)
            assert region is not None  # checked when its shardings were chosen
            write_region(op, mesh.name, region)
        attributes = _Attributes(mesh)
        # A list, as constraints are inserted on the way.
        for view in list(main.regions[0].blocks[0].operations):
            _constrain(view.operation, attributes)
        arguments = _signature(main, "arg_attrs", type_.inputs, attributes)
        results = _signature(main, "res_attrs", type_.results, attributes)
        # Behind the signature, whose shardings it reads.
        _mark_unreduced(main)
        pad_signature(main, mesh, arguments, results, attributes.__getitem__)


class _Attributes(dict[Sharding, sdy.TensorShardingAttr]):
    """Shardy's form of shardings on a mesh: few stand on many values, and each is made once."""

    def __init__(self, mesh: Mesh) -> None:
        super().__init__()
        self.mesh = mesh

    def __missing__(self, sharding: Sharding) -> sdy.TensorShardingAttr:
        made = self[sharding] = sharding_attribute(sharding, self.mesh)
        return made


def sharding_attribute(sharding: Sharding, mesh: Mesh) -> sdy.TensorShardingAttr:
    dims = [
        sdy.DimensionShardingAttr.get([sdy.AxisRefAttr.get(axis) for axis in axes], is_closed=True)
        for axes in sharding.dims
    ]
    unreduced = [sdy.AxisRefAttr.get(axis) for axis in sharding.unreduced]
    return sdy.TensorShardingAttr.get(mesh.name, dims, unreduced_axes=unreduced)


def _signature(
    main: ir.Operation, which: str, types: Sequence[ir.Type], known: _Attributes
) -> tuple[Sharding, ...]:
    """Replace the annotations of all arguments or of all results, and return them."""
    if not len(types):
        return ()
    rows, shardings = [], []
    for row, type_ in zip(ir.ArrayAttr(main.attributes[which]), types, strict=True):
        named = ir.DictAttr(row)
        attributes = {named[k].name: named[k].attr for k in range(len(named))}
        text = ir.StringAttr(attributes.pop(MHLO_SHARDING)).value
        sharding = from_mhlo(text, ir.RankedTensorType(type_).rank, known.mesh)
        shardings.append(sharding)
        rows.append(ir.DictAttr.get({**attributes, SDY_SHARDING: known[sharding]}))
    main.attributes[which] = ir.ArrayAttr.get(rows)
    return tuple(shardings)


def _mark_unreduced(main: ir.Operation) -> None:
    """Say on each result that is an unfinished sum that it becomes one there: a constant of zeros
    lies on every device as it is, and Shardy takes no such step by itself (since jaxlib 0.11)."""
    end = terminator(main.regions[0].blocks[0])
    for number, row in enumerate(
        ir.ArrayAttr(main.attributes["res_attrs"]) if len(end.operands) else ()
    ):
        sharding = sdy.TensorShardingAttr(ir.DictAttr(row)[SDY_SHARDING])
        maker = defining(end.operands[number])
        if len(sharding.unreduced_axes) and maker is not None and needs_no_constraint(maker):
            with ir.InsertionPoint(end):
                made = sdy.ShardingConstraintOp(end.operands[number], sharding, loc=maker.location)
            end.operands[number] = made.result


def _constrain(op: ir.Operation, known: _Attributes) -> None:
    """Replace the annotation of an operation by a constraint on each of its results."""
    for block in regions_of(op):
        for view in list(block.operations):
            _constrain(view.operation, known)
    if MHLO_SHARDING not in op.attributes:
        return
    text = ir.StringAttr(op.attributes[MHLO_SHARDING]).value
    del op.attributes[MHLO_SHARDING]
    if is_marker(op):
        _constraint(op, op.operands[0], op.results[0], text, known)
        op.erase()
    elif needs_no_constraint(op):
        _split_for_terms(op, text, known)
    else:
        texts = split_tuple(text)
        for result, one in zip(op.results, texts, strict=True):
            if isinstance(result.type, ir.RankedTensorType):
                _constraint(op, result, result, one, known)


def _split_for_terms(op: ir.Operation, text: str, known: _Attributes) -> None:
    """Constrain a value that is made anew, for readers that leave terms of sums along its axes:
    nothing else says that they read parts, and each device would add up the whole value."""
    value = op.results[0]
    readers = [use.owner.operation for use in value.uses]
    terms = [(reader, axes) for reader in readers if (axes := _terms_axes(reader, known.mesh))]
    if not terms:
        return
    sharding = from_mhlo(text, ir.RankedTensorType(value.type).rank, known.mesh)
    split = {axis for axes in sharding.dims for axis in axes}
    for reader, axes in terms:
        for number, operand in enumerate(reader.operands):
            if operand == value and split & axes:
                with ir.InsertionPoint(reader):
                    made = sdy.ShardingConstraintOp(value, known[sharding], loc=op.location)
                reader.operands[number] = made.result


def _terms_axes(op: ir.Operation, mesh: Mesh) -> set[str]:
    """The axes along which a result of an annotated operation stays unreduced."""
    if MHLO_SHARDING not in op.attributes:
        return set()
    texts = split_tuple(ir.StringAttr(op.attributes[MHLO_SHARDING]).value)
    return {
        axis
        for text, result in zip(texts, op.results, strict=True)
        if "unreduced" in text
        for axis in from_mhlo(text, ir.RankedTensorType(result.type).rank, mesh).unreduced
    }


def _constraint(
    op: ir.Operation, value: ir.Value, replaced: ir.Value, text: str, known: _Attributes
) -> None:
    """Put `value`, constrained, behind `op` and in the place of `replaced`."""
    sharding = from_mhlo(text, ir.RankedTensorType(value.type).rank, known.mesh)
    with ir.InsertionPoint.after(op):
        made = sdy.ShardingConstraintOp(value, known[sharding], loc=op.location)
    replaced.replace_all_uses_except(made.result, made.operation)
