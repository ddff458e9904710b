"""What the user demands of the values of a module: annotations in the IR and entries of a
constraints file.

    # puts markers where values are to be resharded
    demands = read_demands(module, main, mesh, entries)
    …read the op graphs of the meshes…
    demands.allowed(reader), demands.forbidden(reader)

Everything is a rule about one value on one mesh. Arguments of `@main` take their rules themselves;
any other value is followed by a marker, which is the one that has the sharding, so that the
operation before it stays free. A result that replaces a donated argument shares its rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jaxlib.mlir import ir

from shardopt.dialect.annotation import SHARDING, is_marker, read_annotation
from shardopt.dialect.attributes import entries as dictionary
from shardopt.dialect.donation import drop_replacements, read_replacements
from shardopt.dialect.mpmd import is_mesh_tensor, parse_mesh_tensor, read_topology
from shardopt.extract.control_flow import CONTROL_FLOW, planned_operations
from shardopt.extract.op_graph import GraphReader
from shardopt.ir.diagnostics import Located, position_of
from shardopt.ir.rewriting import defining, functions, identity, operations, symbol_name, terminator
from shardopt.mesh.annotation import Annotation
from shardopt.mesh.mesh import Mesh, Sharding
from shardopt.mesh.shardings import shardings_that
from shardopt.passes.sharding.apply.boundary import ReturnedOperand, place_of_result
from shardopt.passes.sharding.demands.crossings import crossing_values
from shardopt.passes.sharding.demands.demand_rules import (
    DemandError,
    DemandRule,
    Lost,
    agreement,
    choices,
    tensor_shape,
    what_is,
)
from shardopt.planfile.constraint_file import Entry

_RESULT_INFO = "jax.result_info"
# Names listed when a pattern matches none of them.
_MAX_LISTED = 8


def read_demands(
    module: ir.Module,
    main: ir.Operation,
    mesh: Mesh | None,
    entries: Sequence[Entry] = (),
    *,
    obey_annotations: bool,
    padded: bool,
) -> Demands:
    """The demands of a plain module on `mesh`, or without one of a staged module on the meshes of
    its topology."""
    callees = {symbol_name(function): function for function in functions(module)}
    meshes = {known.name: known for known in ([mesh] if mesh is not None else read_topology(main))}
    if mesh is not None:
        blocks = [(main.regions[0].blocks[0], mesh)]
    else:
        fragments = operations(module.operation, ("mpmd.fragment",))
        homes = [ir.StringAttr(fragment.attributes["mesh_name"]).value for fragment in fragments]
        blocks = [
            (f.regions[0].blocks[0], meshes[home]) for f, home in zip(fragments, homes, strict=True)
        ]
    return Demands(
        main, callees, meshes, blocks, entries, obey_annotations=obey_annotations, padded=padded
    )


class Demands:
    """Reads the demands of one module, and puts markers into it. Raises DemandError.

    `blocks` are those of StableHLO operations with the one of the `meshes` that they run on.
    Annotations are taken out of the IR; those that are not obeyed are gone."""

    def __init__(
        self,
        main: ir.Operation,
        callees: Mapping[str, ir.Operation],
        meshes: Mapping[str, Mesh],
        blocks: Sequence[tuple[ir.Block, Mesh]],
        entries: Sequence[Entry] = (),
        *,
        obey_annotations: bool,
        padded: bool,
    ) -> None:
        self.main, self.callees, self.entries = main, callees, entries
        self.obey, self.padded = obey_annotations, padded
        self.lost: list[Lost] = []
        self.obeyed = 0
        self._meshes = meshes
        self._crossing = crossing_values(main, callees)
        self._rules: dict[ir.Value, list[DemandRule]] = {}
        self._mesh_of: dict[ir.Value, Mesh] = {}
        # A value whose only reader is a marker -> the marker's result.
        self._markers: dict[ir.Value, ir.Value] = {}
        self._forbidden: dict[ir.Operation, frozenset[str]] = {}
        self._matched: set[Entry] = set()
        self._read_signature()
        # The markers of all blocks before entries of the file: what has one gets no second.
        for block, mesh in blocks:
            self._read_markers(block, mesh)
        for block, mesh in blocks:
            self._read_ops(block, mesh)
        self._check_matched()
        self._allowed = {
            value: choices(rules, value, self._mesh_of[value])
            for value, rules in self._rules.items()
        }

    def allowed(self, reader: GraphReader) -> dict[int, tuple[Sharding, ...]]:
        """The shardings that the tensors of a graph may have."""
        return {
            reader.index[value]: shardings
            for value, shardings in self._allowed.items()
            if value in reader.index
        }

    def forbidden(self, reader: GraphReader) -> dict[int, frozenset[str]]:
        """The axes that may not split the operations of a graph."""
        axes_of = ((number, self._forbidden.get(op)) for number, op in enumerate(reader.handles))
        return {number: axes for number, axes in axes_of if axes}

    # ---- annotations ----

    def _read_markers(self, block: ir.Block, mesh: Mesh) -> None:
        before = len(self.lost)
        # The last first: where one is not obeyed, what it marks goes where its result went.
        for marker in reversed(
            [op for op in planned_operations(block) if SHARDING in op.attributes]
        ):
            annotation = _read(marker, marker.attributes[SHARDING])
            del marker.attributes[SHARDING]
            value = marker.results[0]
            rule = self._rule_of(annotation, mesh, value, marker.location)
            if rule is None:
                if value in self._crossing:
                    self._crossing.add(marker.operands[0])
                value.replace_all_uses_with(marker.operands[0])
                marker.erase()
            else:
                self._add(value, mesh, [rule])
                # Only then it speaks for the value: another reader may want that otherwise.
                if sum(1 for _ in marker.operands[0].uses) == 1:
                    self._markers[marker.operands[0]] = value
        self.lost[before:] = reversed(self.lost[before:])

    def _rule_of(
        self, annotation: Annotation, mesh: Mesh, value: ir.Value, where: Located
    ) -> DemandRule | None:
        """The rule that an annotation is on a mesh, or None for one that is not obeyed or says
        nothing."""
        if not self.obey or annotation.is_vacuous:
            return None
        agrees = agreement(annotation, mesh)
        why = self._misfit(annotation, mesh, value)
        if not why and not shardings_that(agrees, mesh, tensor_shape(value)):
            why = f"its tiles are not those of axes of mesh {mesh}"
        if why:
            self.lost.append(Lost(where, mesh, f"{annotation} of {what_is(value)}: {why}"))
            return None
        self.obeyed += 1
        return DemandRule(f"the annotation {annotation}", where, agrees)

    def _misfit(self, annotation: Annotation, mesh: Mesh, value: ir.Value) -> str:
        """Why a value cannot have the sharding, or nothing."""
        shape = tensor_shape(value)
        if why := annotation.misfit(mesh, shape):
            return why
        crosses = self.padded and value in self._crossing
        if self.padded and not crosses:
            return ""
        agreeing = shardings_that(agreement(annotation, mesh), mesh, shape)
        if not agreeing or any(each.is_even(mesh, shape) for each in agreeing):
            return ""
        return "its tiles would need padding" + ", and it goes to another mesh" * crosses

    # ---- the signature of @main ----

    def _read_signature(self) -> None:
        arguments = list(self.main.regions[0].blocks[0].arguments)
        last = ir.FunctionType(ir.TypeAttr(self.main.attributes["function_type"]).value)
        entering = [
            self._rules_of_argument(k, *row)
            for k, row in enumerate(self._rows("arg_attrs", arguments))
        ]
        places = [place_of_result(self.main, k, self.callees) for k in range(len(last.results))]
        values = [place.value if isinstance(place, ReturnedOperand) else place for place in places]
        returned = [
            self._rules_of_result(k, *row) for k, row in enumerate(self._rows("res_attrs", values))
        ]
        self._part_contradicting(entering, returned, values)
        for argument, result in read_replacements(self.main).items():
            shared = [
                *entering[argument],
                *(rule for rule in returned[result] if rule not in entering[argument]),
            ]
            entering[argument], returned[result] = shared, shared
        for argument, rules in zip(arguments, entering, strict=True):
            self._add(argument, self._mesh(argument), rules)
        for number, (place, rules) in enumerate(zip(places, returned, strict=True)):
            if rules:
                self._add_result(place, self._result_mesh(number), rules)

    def _part_contradicting(
        self,
        entering: Sequence[Sequence[DemandRule]],
        returned: Sequence[Sequence[DemandRule]],
        values: Sequence[ir.Value],
    ) -> None:
        """What is not donated has the sharding of the result that replaces it as a favour to the
        next step, which demands on both of them override."""
        drop_replacements(
            self.main,
            [
                argument
                for argument, result in read_replacements(self.main).items()
                if entering[argument]
                and (returned[result] != entering[argument])
                and (returned[result] or self._is_annotated(values[result]))
            ],
        )

    def _is_annotated(self, value: ir.Value) -> bool:
        maker = defining(value)
        return self.obey and maker is not None and SHARDING in maker.attributes

    def _rows(
        self, which: str, values: Sequence[ir.Value]
    ) -> list[tuple[ir.Value, dict[str, ir.Attribute]]]:
        """The attributes of all arguments or results, out of which annotations are taken."""
        if which not in self.main.attributes:
            return [(value, {}) for value in values]
        rows = [dictionary(ir.DictAttr(row)) for row in ir.ArrayAttr(self.main.attributes[which])]
        kept = [{name: attr for name, attr in row.items() if name != SHARDING} for row in rows]
        self.main.attributes[which] = ir.ArrayAttr.get([ir.DictAttr.get(row) for row in kept])
        return list(zip(values, rows, strict=True))

    def _rules_of_argument(
        self, number: int, argument: ir.Value, row: dict[str, ir.Attribute]
    ) -> list[DemandRule]:
        mesh, name = self._mesh(argument), position_of(argument).name
        entries = [entry for entry in self.entries if entry.names(entry.argument, number, name)]
        return self._boundary_rules(argument, mesh, row, entries, argument)

    def _rules_of_result(
        self, number: int, value: ir.Value, row: dict[str, ir.Attribute]
    ) -> list[DemandRule]:
        name = ir.StringAttr(row[_RESULT_INFO]).value if _RESULT_INFO in row else ""
        entries = [entry for entry in self.entries if entry.names(entry.result, number, name)]
        return self._boundary_rules(value, self._result_mesh(number), row, entries, self.main)

    def _boundary_rules(
        self,
        value: ir.Value,
        mesh: Mesh,
        row: dict[str, ir.Attribute],
        entries: Sequence[Entry],
        where: Located,
    ) -> list[DemandRule]:
        rules = []
        if SHARDING in row:
            rule = self._rule_of(_read(where, row[SHARDING]), mesh, value, where)
            rules += [] if rule is None else [rule]
        for entry in entries:
            if entry.on_mesh(mesh):
                rules += self._entry_rules(entry, mesh, value, where, forbid=True)
        return rules

    def _result_mesh(self, number: int) -> Mesh:
        return self._mesh(terminator(self.main.regions[0].blocks[0]).operands[number])

    def _mesh(self, value: ir.Value) -> Mesh:
        if not is_mesh_tensor(value.type):
            return next(iter(self._meshes.values()))
        name = parse_mesh_tensor(value.type).mesh
        if name not in self._meshes:
            raise ValueError(
                f"expected a mesh of the topology ({', '.join(self._meshes)}), found '{name}'"
            )
        return self._meshes[name]

    def _add_result(
        self, place: ReturnedOperand | ir.Value, mesh: Mesh, rules: Sequence[DemandRule]
    ) -> None:
        if not isinstance(place, ReturnedOperand):
            self._add(place, mesh, rules)
            return
        marker = identity(
            place.value, place.terminator.location, ir.InsertionPoint(place.terminator)
        )
        place.terminator.operands[place.operand] = marker.results[0]
        self._add(marker.results[0], mesh, rules)

    # ---- the constraints file ----

    def _read_ops(self, block: ir.Block, mesh: Mesh) -> None:
        entries = [entry for entry in self.entries if entry.is_of_ops and entry.on_mesh(mesh)]
        for op in planned_operations(block) if entries else ():
            if is_marker(op) or not len(op.results):
                continue
            location, name = str(op.location), op.name.removeprefix("stablehlo.")
            for entry in entries:
                if entry.names_op(name, location):
                    self._constrain_op(op, entry, mesh)

    def _constrain_op(self, op: ir.Operation, entry: Entry, mesh: Mesh) -> None:
        self._matched.add(entry)
        self._check_forbidden(entry)
        inside = [inner for region in op.regions for inner in planned_operations(region.blocks[0])]
        # What loops and branches hold is planned by itself, the scalars of a reducer are not.
        for forbidding in (op, *(inside if op.name in CONTROL_FLOW else ())):
            self._forbidden[forbidding] = self._forbidden.get(forbidding, frozenset()) | set(
                entry.forbid
            )
        for result in op.results if entry.wants_sharding else ():
            if not isinstance(result.type, ir.RankedTensorType):
                continue
            rules = self._entry_rules(entry, mesh, result, op, forbid=False)
            if result not in self._markers:
                marker = identity(result, op.location, ir.InsertionPoint.after(op))
                result.replace_all_uses_except(marker.results[0], marker)
                self._markers[result] = marker.results[0]
            self._add(self._markers[result], mesh, rules)

    def _entry_rules(
        self, entry: Entry, mesh: Mesh, value: ir.Value, where: Located, *, forbid: bool
    ) -> list[DemandRule]:
        self._matched.add(entry)
        rules = []
        if entry.wants_sharding:
            shape = tensor_shape(value)
            try:
                annotation = entry.annotation(len(shape), mesh)
            except ValueError as error:
                raise DemandError(where, f"{entry}: {error}, for {what_is(value)}") from None
            if why := self._misfit(annotation, mesh, value):
                raise DemandError(
                    where, f"{entry}: sharding {annotation} does not fit {what_is(value)}: {why}"
                )
            rules.append(DemandRule(f"{entry}: {annotation}", where, agreement(annotation, mesh)))
        if forbid and entry.forbid:
            self._check_forbidden(entry)
            axes = frozenset(entry.forbid)
            text = f"{entry}: no axis {', '.join(entry.forbid)}"
            rules.append(DemandRule(text, where, lambda sharding: axes.isdisjoint(sharding.axes)))
        return rules

    def _check_forbidden(self, entry: Entry) -> None:
        known = {axis for mesh in self._meshes.values() for axis in mesh.axis_names}
        unknown = [axis for axis in entry.forbid if axis not in known]
        if unknown:
            raise DemandError(
                self.main,
                f"{entry}: expected axes of the mesh ({', '.join(sorted(known))}), found "
                f"'{unknown[0]}'",
            )

    def _check_matched(self) -> None:
        for entry in self.entries:
            if entry in self._matched or entry.optional:
                continue
            if entry.argument is None:
                what = "result" if entry.result is not None else "operation"
                raise DemandError(self.main, f"{entry} matches no {what}")
            arguments = self.main.regions[0].blocks[0].arguments
            names = [position_of(argument).name or str(k) for k, argument in enumerate(arguments)]
            listed = ", ".join(names[:_MAX_LISTED]) + (", …" if len(names) > _MAX_LISTED else "")
            raise DemandError(self.main, f"{entry} matches no argument, expected one of {listed}")

    # ---- rules ----

    def _add(self, value: ir.Value, mesh: Mesh, rules: Sequence[DemandRule]) -> None:
        if rules:
            self._rules.setdefault(value, []).extend(rules)
            self._mesh_of[value] = mesh


def _read(where: Located, attr: ir.Attribute) -> Annotation:
    try:
        return read_annotation(attr)
    except ValueError as error:
        raise DemandError(where, str(error)) from None
