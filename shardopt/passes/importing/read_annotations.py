"""Bring the user's sharding annotations, GSPMD's and Shardy's, into the one form that the shard
phase obeys.

Needs: no calls (inlining turns annotations of callees into constraints). Holds afterwards: no `sdy`
operation or attribute and no `mhlo.sharding`; every annotation is a `shardopt.sharding` on an
argument or result of `@main`, or on a `@Sharding` custom call (a marker) behind the value it speaks
about. What has no such form (unfinished sums, single devices, sharding groups, annotations inside
of reducers) is named in a warning; GSPMD's shardings of code for one device (`manual`) are an
error, Shardy's regions have been read before (`shardopt-read-manual-regions`).

    sdy.mesh @mesh = <["dp"=2]>
    %0 = sdy.sharding_constraint %x <@mesh, [{"dp"}, {?}]> : tensor<8x4xf32>
 =>
    %0 = stablehlo.custom_call @Sharding(%x) {shardopt.sharding = {
           axes = ["dp"], sizes = array<i64: 2>, dims = [["dp"], []], open = array<i64: 1>}}

1. Signature of `@main`: attributes for attributes. Annotations that say nothing (all dimensions
   open, a mesh of one device) go.
2. Constraints become markers; an annotated operation gets a marker behind each result.
3. `annotations=drop` removes all of it instead; `annotations=require` makes the warning an error.
4. In which memory a value is to lie is dropped, with a warning where that is not the devices':
   what stages offload is for the stage phase to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from jaxlib.mlir import ir

from shardopt.dialect.annotation import SHARDING, annotation_attr, is_marker
from shardopt.dialect.attributes import entries
from shardopt.dialect.manual import MANUAL
from shardopt.ir.rewriting import functions, identity, op_name, operations, symbol_name
from shardopt.mesh.annotation import Annotation
from shardopt.options.names import Annotations
from shardopt.passes.base import Pass, PassContext, plan_option
from shardopt.passes.importing.user_shardings import (
    ManualError,
    UnsupportedError,
    from_gspmd,
    from_shardy,
    from_shardy_values,
    read_meshes,
    split_texts,
)
from shardopt.support.counts import counted

_MHLO, _SHARDY = "mhlo.sharding", "sdy.sharding"
_CONSTRAINTS = ("sdy.sharding_constraint", "sdy.reshard")
# Where an operation works on whole tensors; in the regions of other operations (reducers) it works
# on their elements.
_WHOLE = ("func.func", "stablehlo.while", "stablehlo.case", "stablehlo.if")

# Says in which memory its operand is to lie.
_PLACEMENT = "annotate_device_placement"

# Operations of Shardy that hand their operand on, and those that make nothing.
_IDENTITIES = (*_CONSTRAINTS, "sdy.propagation_barrier")
_STATEMENTS = ("sdy.sharding_group",)

Annotated = ir.Operation | ir.BlockArgument


def _drop_placements(main: ir.Operation, pm: PassContext) -> None:
    """Values lie where the stage phase lays them, whatever memory the program names."""
    placements = [
        op
        for op in operations(main, ("stablehlo.custom_call",))
        if ir.StringAttr(op.attributes["call_target_name"]).value == _PLACEMENT
        and len(op.operands) == len(op.results) == 1
    ]
    on_hosts = [(op, memory) for op in placements if (memory := _memory(op)) != "device"]
    if on_hosts:
        first, memory = on_hosts[0]
        pm.warning(
            first,
            f"the program lays {counted(len(on_hosts), 'value')} into {memory}, as checkpoint "
            "policies that offload do: they are planned on the devices; with --offload "
            "activations, or auto, what waits for a backward lies on the hosts",
        )
    for op in placements:
        op.results[0].replace_all_uses_with(op.operands[0])
        op.erase()
    pm.statistic("placements in memory dropped", len(placements))


def _memory(placement: ir.Operation) -> str:
    attributes = placement.attributes.get("mhlo.frontend_attributes", None)
    named = {} if attributes is None else entries(ir.DictAttr(attributes))
    memory = named.get("_xla_buffer_placement")
    return "device" if memory is None else ir.StringAttr(memory).value


@dataclass
class _Reader:
    """Reads annotations of one module; keeps what it could not read for the report."""

    module: ir.Module
    pm: PassContext
    kept: int = 0
    vacuous: int = 0
    unsupported: list[tuple[ir.Location, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.meshes = read_meshes(self.module)

    def read(
        self, op: Annotated, types: list[ir.Type], read: Callable[[], Iterable[Annotation]]
    ) -> list:
        """One annotation a value, None for what says nothing or has no form of ours."""
        try:
            annotations = list(read())
        except UnsupportedError as error:
            self.unsupported.append((op.location, str(error)))
            return [None] * len(types)
        except ManualError as error:
            raise self.pm.error(
                op, f"expected a program for all devices, found sharding '{error}'"
            ) from None
        except ValueError as error:
            raise self.pm.error(op, f"sharding annotation of {_named(op)}: {error}") from None
        if len(annotations) != len(types):
            raise self.pm.error(
                op, f"expected {len(types)} shardings on {_named(op)}, found {len(annotations)}"
            )
        for annotation, type_ in zip(annotations, types, strict=True):
            rank = ir.RankedTensorType(type_).rank if isinstance(type_, ir.RankedTensorType) else 0
            if annotation.rank != rank:
                mismatch = f"expected rank {rank}, found {annotation.rank} in {annotation}"
                raise self.pm.error(op, f"sharding annotation of {_named(op)}: {mismatch}")
        telling = [None if annotation.is_vacuous else annotation for annotation in annotations]
        self.vacuous += telling.count(None)
        self.kept += len(telling) - telling.count(None)
        return telling

    def of_attributes(
        self, op: Annotated, attributes: dict[str, ir.Attribute], types: list[ir.Type]
    ) -> list:
        """What `sdy.sharding` or, without one, `mhlo.sharding` says about the values of these
        types."""
        if _SHARDY in attributes:
            attr = attributes[_SHARDY]
            if str(attr).startswith("#sdy.sharding_per_value"):
                return self.read(op, types, lambda: from_shardy_values(attr, self.meshes))
            return self.read(op, types, lambda: [from_shardy(attr, self.meshes)])
        if not isinstance(attributes[_MHLO], ir.StringAttr):
            raise self.pm.error(
                op, f"expected '{_MHLO}' of {_named(op)} to be text, found {attributes[_MHLO]}"
            )
        text = ir.StringAttr(attributes[_MHLO]).value
        texts = split_texts(text)
        if len(texts) == 1 and not text.startswith("{{"):
            texts *= len(types)  # one text for all results
        config = _backend_config(op)
        ranks = [
            ir.RankedTensorType(t).rank if isinstance(t, ir.RankedTensorType) else 0 for t in types
        ]
        return self.read(
            op,
            types,
            lambda: [
                from_gspmd(one, rank, config) for one, rank in zip(texts, ranks, strict=False)
            ],
        )


def _named(where: Annotated) -> str:
    if isinstance(where, ir.BlockArgument):
        return f"argument {where.arg_number} of '@main'"
    return "a result of '@main'" if where.name == "func.func" else f"'{where.name}'"


def _backend_config(op: Annotated) -> str:
    if (
        not isinstance(op, ir.Operation)
        or not is_marker(op)
        or "backend_config" not in op.attributes
    ):
        return ""
    config = op.attributes["backend_config"]
    return ir.StringAttr(config).value if isinstance(config, ir.StringAttr) else ""


def _annotated(attributes: dict[str, ir.Attribute]) -> bool:
    return _SHARDY in attributes or _MHLO in attributes


def _without(attributes: dict[str, ir.Attribute]) -> dict[str, ir.Attribute]:
    return {name: value for name, value in attributes.items() if name not in (_SHARDY, _MHLO)}


def _read_signature(main: ir.Operation, reader: _Reader) -> None:
    type_ = ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value)
    for which, types in (("arg_attrs", type_.inputs), ("res_attrs", type_.results)):
        if which not in main.attributes:
            continue
        rows, arguments = [], list(main.regions[0].blocks[0].arguments)
        for number, (row, value_type) in enumerate(
            zip(ir.ArrayAttr(main.attributes[which]), types, strict=True)
        ):
            attributes = entries(ir.DictAttr(row))
            kept = _without(attributes)
            if _annotated(attributes):
                where = arguments[number] if which == "arg_attrs" else main
                [annotation] = reader.of_attributes(where, attributes, [value_type])
                if annotation is not None:
                    kept[SHARDING] = annotation_attr(annotation)
            rows.append(ir.DictAttr.get(kept))
        main.attributes[which] = ir.ArrayAttr.get(rows)


def _read_op(op: ir.Operation, reader: _Reader) -> None:
    name, said = op.name, op.attributes
    attributes = {named: said[named] for named in (_SHARDY, _MHLO) if named in said}
    hands_on = name in _IDENTITIES or is_marker(op)
    if not attributes and not hands_on and name not in _STATEMENTS:
        return  # as most operations, which say nothing
    for named in attributes:
        del said[named]
    types = [result.type for result in op.results]
    annotations = [None] * len(types)
    if name in _CONSTRAINTS:
        annotations = reader.read(
            op, types, lambda: [from_shardy(op.attributes["sharding"], reader.meshes)]
        )
    elif attributes and op.parent is not None and op_name(op.parent) not in _WHOLE:
        reader.unsupported.append((op.location, str(next(iter(attributes.values())))))
    elif attributes and types:
        annotations = reader.of_attributes(op, attributes, types)
    elif name in _STATEMENTS:
        reader.unsupported.append((op.location, name))
    elif SHARDING in said or not hands_on:
        return
    _mark(op, annotations)


def _mark(op: ir.Operation, annotations: list) -> None:
    """Put markers in the place of an operation that only says something, and behind any other."""
    hands_on = op.name in _IDENTITIES or is_marker(op)
    for number, (result, annotation) in enumerate(zip(op.results, annotations, strict=True)):
        value = op.operands[0] if hands_on else result
        if annotation is not None:
            marker = identity(value, op.location, ir.InsertionPoint.after(op))
            marker.attributes[SHARDING] = annotation_attr(annotation)
            result.replace_all_uses_except(marker.results[0], marker)
        elif hands_on:
            op.results[number].replace_all_uses_with(value)
    if hands_on or op.name in _STATEMENTS:
        op.erase()


def _drop(module: ir.Module, main: ir.Operation, pm: PassContext) -> int:
    dropped = 0
    for which in ("arg_attrs", "res_attrs"):
        if which in main.attributes:
            rows = [entries(ir.DictAttr(row)) for row in ir.ArrayAttr(main.attributes[which])]
            dropped += sum(map(_annotated, rows))
            main.attributes[which] = ir.ArrayAttr.get(
                [ir.DictAttr.get(_without(row)) for row in rows]
            )
    for op in operations(module.operation):
        hands_on = op.name in _IDENTITIES or is_marker(op)
        for name in (_SHARDY, _MHLO):
            if name in op.attributes:
                dropped += not hands_on
                del op.attributes[name]
        if hands_on or op.name in _STATEMENTS:
            pm.remark("dropped-annotation", op, f"'{op.name}' is dropped")
            dropped += 1
            _mark(op, [None] * len(op.results))
    return dropped


# Regions for one device have their mesh in their attributes by now.
_WITHOUT_SYMBOL = frozenset({"sdy.mesh", MANUAL, "sdy.return"})


def _erase_meshes(module: ir.Module) -> None:
    """Meshes that nothing refers to any more; what still does is for the verifier of the form to
    name."""
    meshes = [op.operation for op in module.body.operations if op_name(op) == "sdy.mesh"]
    # Other functions may still name a mesh in attributes that nobody has read.
    if not meshes or len(list(functions(module))) > 1:
        return
    names = {op.name for op in operations(module.operation)} - _WITHOUT_SYMBOL
    if not any(name.startswith("sdy.") for name in names):
        for mesh in meshes:
            mesh.erase()


def _report(reader: _Reader, mode: str, pm: PassContext) -> None:
    if not reader.unsupported:
        return
    (first, text), count = reader.unsupported[0], len(reader.unsupported)
    message = f"{count} sharding annotations cannot be kept, the first of them '{text}'"
    if mode == "require":
        raise pm.error(first, message)
    pm.warning(first, message)


@dataclass(frozen=True)
class ReadAnnotations(Pass):
    """See the head of the file."""

    name = "shardopt-read-annotations"
    summary = "bring the user's sharding annotations into the form that the shard phase obeys"

    annotations: Annotations = plan_option("annotations")

    def run(self, module: ir.Module, pm: PassContext) -> None:
        main = next((f for f in functions(module) if symbol_name(f) == "main"), None)
        if main is None:
            return  # a module without an entry is for the verifier to refuse
        _drop_placements(main, pm)
        if self.annotations == "drop":
            pm.statistic("annotations dropped", _drop(module, main, pm))
        else:
            reader = _Reader(module, pm)
            _read_signature(main, reader)
            for op in operations(main):
                _read_op(op, reader)
            _report(reader, self.annotations, pm)
            pm.statistic("annotations kept", reader.kept)
            pm.statistic("annotations that say nothing", reader.vacuous)
        _erase_meshes(module)
