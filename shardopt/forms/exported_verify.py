"""The verifier of the exported form: everything the runtime relies on, checked before anything
runs.

The C++ verifiers of the dialect leave mesh names, device ids, shardings against callees, resharding
plans and the shape of the microbatch loop unchecked; wrong ones would crash the process or give
wrong numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from jaxlib.mlir import ir

from shardopt.dialect.cluster import CLUSTER, read_cluster
from shardopt.dialect.donation import donation_faults, read_donation
from shardopt.dialect.mpmd import (
    BODY_KINDS,
    KIND,
    STAGE,
    mesh_shape_attr,
    parse_mesh_tensor,
    read_topology,
)
from shardopt.dialect.padding import shape_faults
from shardopt.dialect.parts import part_faults
from shardopt.dialect.schedule import read_schedule
from shardopt.dialect.sharding import MHLO_SHARDING, from_mhlo, split_tuple, to_mhlo
from shardopt.extract.op_graph import sharding_rules
from shardopt.forms.attribute_types import is_of_types, type_violations
from shardopt.forms.exported_form import (
    MAIN,
    MESH_SHAPE,
    attribute_dicts,
    callee_name,
    entry_block,
    find_function,
    function_type,
    is_annotated,
    mesh_value,
    read_steps,
)
from shardopt.forms.exported_program import MeshValue
from shardopt.forms.figures import figure_violations
from shardopt.forms.host_memory import host_memory_faults
from shardopt.forms.mesh_checks import mesh_errors
from shardopt.forms.microbatch_rows import row_faults
from shardopt.forms.reshard_steps import find_plan_fault, tiles_by_device
from shardopt.forms.shardy_functions import stated_sharding
from shardopt.forms.unreduced_proof import has_unreduced, is_unreduced, unproven, unsummed_ends
from shardopt.ir.rewriting import operations, symbol_name
from shardopt.ir.rewriting import terminator as end_of
from shardopt.mesh.mesh import Mesh
from shardopt.schedule.schedules import find_schedule
from shardopt.support.errors import UserError

Problem = tuple[ir.Location, str]


def verify_exported(module: ir.Module) -> list[Problem]:
    """Every fault as (location, message), in program order; empty for a module that the runtime can
    execute."""
    symbols = ir.SymbolTable(module.operation)
    verifier = _Verifier(module, symbols)
    with verifier.reporting(module.operation):
        verifier.verify_main(find_function(symbols, MAIN))
        if not verifier.problems:
            verifier.verify_terms()
    if any(is_of_types(message) for _, message in verifier.problems):
        typed = [(op.location, message) for op, message in type_violations(module)]
        return typed or verifier.problems
    return verifier.problems


class _Verifier:
    def __init__(self, module: ir.Module, symbols: ir.SymbolTable) -> None:
        self.module = module
        self.calls: int | None = None
        self.symbols = symbols
        self.meshes: dict[str, Mesh] = {}
        self.problems: list[Problem] = []
        self.homes: dict[int, str] = {}  # stage -> mesh
        # A call, its function and mesh, where values are unreduced.
        self.terms: dict[str, tuple[ir.Operation, ir.Operation, Mesh]] = {}

    def report(self, op: ir.Operation | ir.OpView, message: str) -> None:
        self.problems.append((op.operation.location, message))

    @contextmanager
    def reporting(self, op: ir.Operation | ir.OpView) -> Iterator[None]:
        """Turn what the readers raise on malformed attributes and types into a problem at `op`."""
        try:
            yield
        except (ValueError, KeyError, TypeError, ir.MLIRError) as error:
            self.report(op, str(error))

    def verify_main(self, main: ir.Operation) -> None:
        with self.reporting(main):
            self.meshes = self._meshes(main)
            before = len(self.problems)
            self._verify_values(main)
            # Aliases compare values, which malformed types do not have.
            if len(self.problems) == before:
                self._verify_aliases(main)
                for op, message in host_memory_faults(main):
                    self.report(op, message)
                for message in unsummed_ends(main):
                    self.report(main, message)
                for op, message in figure_violations(self.module, self.meshes):
                    self.report(op, message)
                self._verify_cluster(main)
        if self.meshes:
            self._verify_ops(entry_block(main), in_body=False)

    def _verify_cluster(self, main: ir.Operation) -> None:
        """Modules of others name none."""
        if CLUSTER not in self.module.operation.attributes:
            return
        for message in mesh_errors(tuple(self.meshes.values()), read_cluster(self.module)):
            self.report(main, message)

    def _meshes(self, function: ir.Operation) -> dict[str, Mesh]:
        meshes = read_topology(function)
        owners: dict[int, str] = {}
        for mesh in meshes:
            if sum(other.name == mesh.name for other in meshes) > 1:
                raise ValueError(f"mesh '{mesh.name}' stands twice in the topology")
            for device in mesh.devices:
                if owners.setdefault(device, mesh.name) != mesh.name:
                    raise ValueError(
                        f"device {device} is in mesh '{owners[device]}' and in mesh '{mesh.name}'"
                    )
        if not meshes:
            raise ValueError("expected at least one mesh in the topology, found none")
        return {mesh.name: mesh for mesh in meshes}

    def _verify_values(self, function: ir.Operation) -> None:
        for number, type_ in enumerate(function_type(function).inputs):
            self._value(function, type_, f"argument {number}")
        for number, type_ in enumerate(function_type(function).results):
            self._value(function, type_, f"result {number}")

    def _value(self, op: ir.Operation | ir.OpView, type_: ir.Type, what: str) -> MeshValue | None:
        """The value behind a type, None (and a problem) if its mesh or sharding does not fit."""
        try:
            value = mesh_value(type_)
            if value.mesh not in self.meshes:
                raise ValueError(
                    f"mesh '{value.mesh}' is not in the topology ({', '.join(self.meshes)})"
                )
            value.spec.sharding.check(self.meshes[value.mesh], value.spec.shape)
        except ValueError as error:
            self.report(op, f"{what}: {error}")
            return None
        return value

    def _verify_aliases(self, main: ir.Operation) -> None:
        faults = [*donation_faults(main), *part_faults(main), *shape_faults(main, self.meshes)]
        for fault in faults:
            self.report(main, fault)
        if faults:
            return
        type_ = function_type(main)
        inputs, results = tuple(type_.inputs), tuple(type_.results)  # each time a list of all
        for number, alias in read_donation(main).items():
            source, target = inputs[number], results[alias]
            if mesh_value(source) != mesh_value(target):
                self.report(
                    main,
                    f"argument {number} is donated to result {alias}: expected equal shardings, "
                    f"found {source} and {target}",
                )

    def _verify_ops(self, block: ir.Block, *, in_body: bool) -> None:
        loops = 0
        *body, terminator = block.operations
        for view in body:
            op = view.operation
            with self.reporting(op):
                values = [self._value(op, value.type, "result") for value in op.results]
                if None in values:
                    continue
                if op.name == "mpmd.fragment_call":
                    self._verify_call(op, in_body=in_body)
                elif op.name == "mpmd.transfer":
                    self._verify_transfer(op)
                elif op.name == "mpmd.for" and not in_body:
                    loops += 1
                    self._verify_loop(op)
                else:
                    self.report(
                        op,
                        f"expected a fragment call{'' if in_body else ', a loop'} or a transfer, "
                        f"found '{op.name}'",
                    )
        if loops > 1:
            self.report(terminator, f"expected at most one microbatch loop, found {loops}")

    def _verify_call(self, op: ir.Operation, *, in_body: bool) -> None:
        mesh = ir.StringAttr(op.attributes["mesh_name"]).value
        if mesh not in self.meshes:
            return self.report(
                op, f"mesh '{mesh}' is not in the topology ({', '.join(self.meshes)})"
            )
        self._verify_task(op, mesh, in_body=in_body)
        self._verify_callee(op, find_function(self.symbols, callee_name(op)), self.meshes[mesh])

    def _verify_task(self, op: ir.Operation, mesh: str, *, in_body: bool) -> None:
        for key in (KIND, STAGE):
            if key not in op.attributes:
                return (
                    self.report(op, f"expected attribute '{key}', found none") if in_body else None
                )
        kind = ir.StringAttr(op.attributes[KIND]).value
        stage = int(ir.IntegerAttr(op.attributes[STAGE]))
        if in_body and kind not in BODY_KINDS:
            self.report(
                op,
                f"expected a kind of the microbatch body ({', '.join(BODY_KINDS)}), found '{kind}'",
            )
        calls = self._count_calls()
        if not 0 <= stage < calls:
            self.report(op, f"expected a stage from 0 to {calls - 1}, found {stage}")
        home = self.homes.setdefault(stage, mesh)
        if home != mesh:
            self.report(op, f"{kind} of stage {stage} runs on mesh '{home}' and on mesh '{mesh}'")

    def _count_calls(self) -> int:
        """There are no more stages than calls."""
        if self.calls is None:
            self.calls = len(operations(self.module.operation, ("mpmd.fragment_call",)))
        return self.calls

    def _verify_callee(self, op: ir.Operation, callee: ir.Operation, mesh: Mesh) -> None:
        name = symbol_name(callee)
        expected = mesh_shape_attr(mesh)
        stated = callee.attributes.get(MESH_SHAPE, None)
        if stated != expected:
            self.report(
                op,
                f"function @{name}: expected mesh_shape {expected} of mesh '{mesh.name}', "
                f"found {stated}",
            )
        annotated = is_annotated(callee)
        calls = [inner.name for inner in _nested_ops(callee) if inner.name == "func.call"]
        if calls and annotated:
            self.report(
                op, f"function @{name}: expected plain StableHLO without calls, found '{calls[0]}'"
            )
        self._verify_donated(op, callee)
        self._verify_inside(callee, mesh)
        if annotated and name not in self.terms and has_unreduced(op, callee):
            self.terms[name] = op, callee, mesh
        for what, values, types, key in (
            ("argument", op.operands, function_type(callee).inputs, "arg_attrs"),
            ("result", op.results, function_type(callee).results, "res_attrs"),
        ):
            if len(values) != len(types):
                self.report(
                    op, f"function @{name}: expected {len(types)} {what}s, found {len(values)}"
                )
                continue
            rows = zip(values, types, attribute_dicts(callee, key), strict=True)
            for number, (value, type_, attributes) in enumerate(rows):
                where = f"{what} {number} of @{name}"
                self._verify_boundary(op, mesh, value.type, type_, attributes, where, annotated)

    def _verify_donated(self, op: ir.Operation, callee: ir.Operation) -> None:
        """A result lies where its donated argument lay, tile for tile."""
        name = symbol_name(callee)
        faults = list(donation_faults(callee))
        for fault in faults:
            self.report(op, f"function @{name}: {fault}")
        for number, alias in () if faults else read_donation(callee).items():
            if number >= len(op.operands) or alias >= len(op.results):
                continue  # told with the counts
            source, target = op.operands[number].type, op.results[alias].type
            if mesh_value(source) != mesh_value(target):
                self.report(
                    op,
                    f"function @{name}: argument {number} is donated to result {alias}: expected "
                    f"equal shardings, found {source} and {target}",
                )

    def _verify_inside(self, callee: ir.Operation, mesh: Mesh) -> None:
        """Shardings of operations lie along axes of the mesh: what is handed to the partitioner
        otherwise is not what was planned."""
        for inner in _nested_ops(callee):
            if MHLO_SHARDING not in inner.attributes:
                continue
            texts = split_tuple(ir.StringAttr(inner.attributes[MHLO_SHARDING]).value)
            if len(texts) != len(inner.results):
                count = len(inner.results)
                self.report(
                    inner,
                    f"expected {count} shardings on '{inner.name}', found {len(texts)}",
                )
                continue
            for text, result in zip(texts, inner.results, strict=True):
                if not isinstance(result.type, ir.RankedTensorType):
                    continue
                with self.reporting(inner):
                    shape = tuple(result.type.shape)
                    from_mhlo(text, len(shape), mesh).check(mesh, shape)

    def verify_terms(self) -> None:
        """Unreduced values are terms of sums; once all shardings read."""
        if not self.terms:  # most modules: spare them the sharding rules
            return
        with sharding_rules(self.module):
            for call, callee, mesh in self.terms.values():
                for op, message in unproven(call, mesh, callee):
                    self.report(op, message)

    def _verify_boundary(
        self,
        op: ir.Operation,
        mesh: Mesh,
        outer: ir.Type,
        inner: ir.Type,
        attributes: dict[str, ir.Attribute],
        where: str,
        annotated: bool,
    ) -> None:
        """One argument or result of a call: same mesh, same tensor type, same sharding on both
        sides.

        Where the callee is not annotated the outer type decides, and what the callee states must be
        the same."""
        value = mesh_value(outer)
        tensor = parse_mesh_tensor(outer).tensor
        if value.mesh != mesh.name:
            return self.report(
                op, f"{where}: expected a value of mesh '{mesh.name}', found one of '{value.mesh}'"
            )
        if tensor != inner:
            return self.report(op, f"{where}: expected {inner}, found {tensor}")
        if not annotated:
            stated = stated_sharding(attributes)
            if stated is not None and to_mhlo(stated, mesh) != to_mhlo(value.spec.sharding, mesh):
                self.report(
                    op, f"{where}: expected sdy.sharding {value.spec.sharding}, found {stated}"
                )
            return
        expected = to_mhlo(value.spec.sharding, mesh)
        annotation = (
            f'"{ir.StringAttr(attributes[MHLO_SHARDING]).value}"'
            if MHLO_SHARDING in attributes
            else "none"
        )
        if annotation != f'"{expected}"':
            self.report(op, f'{where}: expected {MHLO_SHARDING} "{expected}", found {annotation}')

    def _verify_transfer(self, op: ir.Operation) -> None:
        if is_unreduced(op.operands[0]) or is_unreduced(op.results[0]):
            found = op.operands[0].type
            self.report(op, f"expected a transfer of a value that is summed up, found {found}")
        source, target = mesh_value(op.operands[0].type), mesh_value(op.results[0].type)
        if (source.spec.shape, source.spec.dtype) != (target.spec.shape, target.spec.dtype):
            return self.report(
                op, f"transfer: expected equal tensors, found {source.spec} and {target.spec}"
            )
        steps = read_steps(op, len(source.spec.shape))
        if steps:
            fault = find_plan_fault(
                steps,
                tiles_by_device(self.meshes[source.mesh], source.spec),
                tiles_by_device(self.meshes[target.mesh], target.spec),
            )
            if fault is not None:
                self.report(
                    op,
                    f"resharding plan from mesh '{source.mesh}' to mesh '{target.mesh}': {fault}",
                )

    def _verify_loop(self, op: ir.Operation) -> None:
        schedule = read_schedule(op)
        if schedule is not None and not schedule.rows:
            try:
                find_schedule(schedule.name)
            except UserError as error:
                self.report(op, str(error))
        block = op.regions[0].blocks[0]
        names = [view.operation.name for view in block.operations]
        if names != ["mpmd.call", "mpmd.return"]:
            return self.report(
                op, f"expected a loop body of mpmd.call and mpmd.return, found {', '.join(names)}"
            )
        call, terminator = (view.operation for view in block.operations)
        body = find_function(self.symbols, callee_name(call))
        with self.reporting(body):
            if {name: mesh.axes for name, mesh in self._meshes(body).items()} != {
                name: mesh.axes for name, mesh in self.meshes.items()
            }:
                self.report(
                    body, f"function @{callee_name(call)}: expected the topology of @{MAIN}"
                )
        before = len(self.problems)
        self._verify_ops(entry_block(body), in_body=True)
        if before == len(self.problems):  # calls can be followed
            self._verify_rows(op, call, body)
        self._verify_carried(call, terminator, list(block.arguments), body)

    def _verify_rows(self, loop: ir.Operation, call: ir.Operation, body: ir.Operation) -> None:
        outer = list(loop.regions[0].blocks[0].arguments)
        indices = outer[len(loop.operands) :]
        number = next((k for k, value in enumerate(call.operands) if value in indices), None)
        index = None if number is None else entry_block(body).arguments[number]
        for op, message in row_faults(self.symbols, loop, index):
            self.report(op, message)

    def _verify_carried(
        self,
        call: ir.Operation,
        terminator: ir.Operation,
        block_arguments: list[ir.Value],
        body: ir.Operation,
    ) -> None:
        """A carried value must be read and written by one task, else the schedule could not reorder
        microbatches."""
        arguments = list(entry_block(body).arguments)
        returned = list(end_of(entry_block(body)).operands)
        passed: dict[ir.Value, list[int]] = {}
        for position, operand in enumerate(call.operands):
            passed.setdefault(operand, []).append(position)
        writers: dict[ir.Value, object] = {
            result: returned[number].owner for number, result in enumerate(call.results)
        }
        for number, value in enumerate(terminator.operands):
            if value == block_arguments[number]:
                continue
            writer = writers.get(value)
            if (
                not isinstance(writer, (ir.Operation, ir.OpView))
                or writer.operation.name != "mpmd.fragment_call"
            ):
                self.report(
                    terminator,
                    f"carried value {number}: expected its own argument, or the result of a "
                    "fragment call in the body",
                )
                continue
            for position in passed.get(block_arguments[number], ()):
                self._verify_readers(number, arguments[position], writer.operation)

    def _verify_readers(self, number: int, argument: ir.Value, writer: ir.Operation) -> None:
        for use in argument.uses:
            reader = use.owner.operation
            if _task(reader) != _task(writer):
                self.report(
                    reader,
                    f"carried value {number} is written by {_task(writer)} but read by "
                    f"{_task(reader)}: the schedule may run them in another order",
                )


def _task(op: ir.Operation) -> str:
    if op.name != "mpmd.fragment_call" or KIND not in op.attributes or STAGE not in op.attributes:
        return f"'{op.name}'"
    return (
        f"{ir.StringAttr(op.attributes[KIND]).value} of stage "
        f"{int(ir.IntegerAttr(op.attributes[STAGE]))}"
    )


def _nested_ops(op: ir.Operation) -> Iterator[ir.Operation]:
    for region in op.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield inner.operation
                yield from _nested_ops(inner.operation)
