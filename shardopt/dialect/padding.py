"""`shardopt.shape`: the shape of the array that the caller has, on an argument or result of a
staged `@main` whose type has padding behind uneven tiles.

    func.func public @main(
        %w: !mpmd.mesh_tensor<"m0", tensor<12x8xf32>, sharding=<@m0, [{"x"}, {}]>>
            {shardopt.shape = array<i64: 10, 8>}) …

Ten rows over four devices are tiles of 3, 3, 3 and 1. Operations of `mpmd` accept full tiles alone:
between them such a value has twelve rows, of which fragments read ten
(`shardopt.passes.sharding.apply.padded_borders`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from jaxlib.mlir import ir

from shardopt.dialect.attributes import entries
from shardopt.dialect.donation import read_donation
from shardopt.dialect.mpmd import is_mesh_tensor, parse_mesh_tensor
from shardopt.mesh.mesh import Mesh

SHAPE = "shardopt.shape"

Shape = tuple[int, ...]
# Where the attributes of arguments and of results stand, and what one of them is called.
_SIDES = (("arg_attrs", "argument"), ("res_attrs", "result"))


def write_shapes(
    main: ir.Operation, arguments: Mapping[int, Shape], results: Mapping[int, Shape]
) -> None:
    """Say what the arguments and results of these numbers are without their padding."""
    type_ = ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value)
    counts = (len(type_.inputs), len(type_.results))
    for (which, _), count, shapes in zip(_SIDES, counts, (arguments, results), strict=True):
        if not shapes:
            continue
        rows = _rows(main, which) or [{} for _ in range(count)]
        for number, shape in shapes.items():
            rows[number][SHAPE] = ir.DenseI64ArrayAttr.get(list(shape))
        main.attributes[which] = ir.ArrayAttr.get([ir.DictAttr.get(row) for row in rows])


def read_shape(attributes: Mapping[str, ir.Attribute]) -> Shape | None:
    """The shape without padding; None where there is none to leave out. Raises ValueError for
    another attribute of this name."""
    if SHAPE not in attributes:
        return None
    if not isinstance(attributes[SHAPE], ir.DenseI64ArrayAttr):
        raise ValueError(f"expected array<i64: …> in '{SHAPE}', found {attributes[SHAPE]}")
    return tuple(ir.DenseI64ArrayAttr(attributes[SHAPE]))


def shape_faults(main: ir.Operation, meshes: Mapping[str, Mesh]) -> Iterator[str]:
    """Shapes whose tiles do not make up the type, or that change from one step to the next."""
    type_ = ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value)
    shapes: list[dict[int, Shape]] = []
    for (which, noun), types in zip(_SIDES, (type_.inputs, type_.results), strict=True):
        shapes.append({})
        for number, row in enumerate(_rows(main, which)):
            try:
                shape = read_shape(row)
            except ValueError as error:
                yield f"{noun} {number}: {error}"
                return
            if shape is not None:
                shapes[-1][number] = shape
                if fault := _fault(shape, types[number], meshes):
                    yield f"{noun} {number}: {fault}"
    arguments, results = shapes
    for number, result in read_donation(main).items():
        if arguments.get(number) != results.get(result):
            yield (
                f"argument {number} and result {result}, which replaces it: expected equal "
                f"'{SHAPE}', found {arguments.get(number)} and {results.get(result)}"
            )


def _fault(shape: Shape, type_: ir.Type, meshes: Mapping[str, Mesh]) -> str:
    if not is_mesh_tensor(type_):
        return f"expected '{SHAPE}' on a mesh tensor, found {type_}"
    value = parse_mesh_tensor(type_)
    if value.sharding is None or value.mesh not in meshes:
        return f"expected '{SHAPE}' on a mesh tensor with a sharding, found {type_}"
    padded = tuple(value.tensor.shape)
    if len(shape) != len(padded) or min(shape, default=0) < 0:
        return f"expected {len(padded)} extents in '{SHAPE}', found {list(shape)}"
    if value.sharding.padded_shape(meshes[value.mesh], shape) != padded:
        return f"expected '{SHAPE}' whose tiles make up {list(padded)}, found {list(shape)}"
    return ""


def _rows(main: ir.Operation, which: str) -> list[dict[str, ir.Attribute]]:
    if which not in main.attributes:
        return []
    return [entries(ir.DictAttr(row)) for row in ir.ArrayAttr(main.attributes[which])]
