"""`shardopt.sharding`: a user's annotation, on arguments and results of `@main` and on markers
inside of it.

    %1 = stablehlo.custom_call @Sharding(%0) {shardopt.sharding = {
        axes = ["dp", "mp"], sizes = array<i64: 2, 4>, dims = [["dp"], []], open = array<i64: 1>}}

A *marker* is the custom call `@Sharding`, which hands its operand on: it survives whatever treats
it as an operation, and has the sharding that the annotation asks for whatever the operation before
it makes. `devices` and `replicated` are written where they say something (see
`shardopt.mesh.annotation`)."""

from __future__ import annotations

from collections.abc import Iterable

from jaxlib.mlir import ir

from shardopt.dialect.attributes import entries
from shardopt.dialect.custom_calls import call_target
from shardopt.mesh.annotation import Annotation

SHARDING = "shardopt.sharding"

_FIELDS = frozenset({"axes", "sizes", "dims", "open", "replicated", "devices"})


def is_marker(op: ir.Operation) -> bool:
    """A `@Sharding` custom call: ours, or GSPMD's form of a constraint."""
    return op.name == "stablehlo.custom_call" and call_target(op) == "Sharding"


def annotation_attr(annotation: Annotation) -> ir.DictAttr:
    fields: dict[str, ir.Attribute] = {
        "axes": _names([name for name, _ in annotation.axes]),
        "sizes": ir.DenseI64ArrayAttr.get([size for _, size in annotation.axes]),
        "dims": ir.ArrayAttr.get([_names(dim) for dim in annotation.dims]),
    }
    if annotation.open:
        fields["open"] = ir.DenseI64ArrayAttr.get(list(annotation.open))
    if annotation.replicated:
        fields["replicated"] = _names(annotation.replicated)
    if annotation.devices:
        fields["devices"] = ir.DenseI64ArrayAttr.get(list(annotation.devices))
    return ir.DictAttr.get(fields)


def read_annotation(attr: ir.Attribute) -> Annotation:
    """The inverse of `annotation_attr`. Raises ValueError for any other attribute."""
    try:
        fields = entries(ir.DictAttr(attr))
        if not {"axes", "sizes", "dims"} <= fields.keys() <= _FIELDS:
            raise ValueError(", ".join(fields))
        names, sizes = _read_names(fields["axes"]), _read_numbers(fields["sizes"])
        return Annotation(
            tuple(zip(names, sizes, strict=True)),
            tuple(_read_names(dim) for dim in ir.ArrayAttr(fields["dims"])),
            _read_numbers(fields["open"]) if "open" in fields else (),
            _read_names(fields["replicated"]) if "replicated" in fields else (),
            _read_numbers(fields["devices"]) if "devices" in fields else (),
        )
    except ValueError as error:
        raise ValueError(
            f'expected \'{SHARDING}\' to be {{axes = ["x"], sizes = array<i64: 2>, dims = [["x"], '
            "[]]} "
            f"(and open, replicated, devices), found {attr}: {error}"
        ) from error


def _names(names: Iterable[str]) -> ir.ArrayAttr:
    return ir.ArrayAttr.get([ir.StringAttr.get(name) for name in names])


def _read_names(attr: ir.Attribute) -> tuple[str, ...]:
    return tuple(ir.StringAttr(name).value for name in ir.ArrayAttr(attr))


def _read_numbers(attr: ir.Attribute) -> tuple[int, ...]:
    return tuple(ir.DenseI64ArrayAttr(attr))
