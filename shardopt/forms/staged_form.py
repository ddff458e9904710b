"""What a module looks like after the stage phase: fragments on meshes, joined by transfers.

    module attributes {shardopt.cluster = {…}} {
      func.func public @main(%w: !mpmd.mesh_tensor<"m0", …>, …)
          attributes {topology = #mpmd.topology<<"m0" : <["x"=2]>>, …>,
                      shardopt.devices = [array<i64: 0, 1>, …]} {
        mpmd.fragment<mesh="m0", …, stage=0> {shardopt.kind = "prologue"} …      and transfers
        mpmd.for … { mpmd.call @microbatch … }
        mpmd.fragment<mesh="m0", …, stage=0> {shardopt.kind = "update"} … }      and transfers
      func.func private @microbatch(…)              kinds "fwd" and "bwd"…, and transfers

Each stage has one mesh, which it may share with others; forward fragments read nothing of later
stages, and every value lives on one mesh."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from jaxlib.mlir import ir

from shardopt.dialect.cluster import read_cluster
from shardopt.dialect.donation import donation_faults
from shardopt.dialect.mpmd import (
    BODY_KINDS,
    KIND,
    STAGE_ID,
    TOPOLOGY,
    is_mesh_tensor,
    parse_mesh_tensor,
    read_methods,
    read_topology,
)
from shardopt.dialect.program import StepProgram, read_program
from shardopt.forms.figures import figure_violations
from shardopt.forms.host_memory import host_memory_faults
from shardopt.forms.imported_form import Violation
from shardopt.forms.mesh_checks import mesh_errors, value_error
from shardopt.forms.microbatch_rows import call_violations, row_violations
from shardopt.ir.rewriting import operations, symbol_name
from shardopt.mesh.mesh import Mesh

_FRAGMENT, _TRANSFER = "mpmd.fragment", "mpmd.transfer"


def violations(module: ir.Module) -> Iterator[Violation]:
    """All departures from the form; a missing loop, cluster or topology is reported alone."""
    try:
        program = read_program(module)
        cluster = read_cluster(module)
        meshes = read_topology(program.main)
    except (ValueError, KeyError) as error:
        yield Violation(module.operation, str(error))
        return
    if misshapen := list(call_violations(program)):
        yield from misshapen  # what is carried cannot be followed
        return
    for message in mesh_errors(meshes, cluster):
        yield Violation(program.main, message)
    yield from (Violation(program.main, fault) for fault in donation_faults(program.main))
    for op, message in host_memory_faults(program.main):
        yield Violation(op, message)
    yield from figure_violations(module, {mesh.name: mesh for mesh in meshes})
    yield from _of_body_topology(program)
    yield from row_violations(program)
    yield from _Checker(program, {mesh.name: mesh for mesh in meshes}).violations()


def _of_body_topology(program: StepProgram) -> Iterator[Violation]:
    expected = program.main.attributes[TOPOLOGY]
    topology = program.body.attributes.get(TOPOLOGY, None)
    if topology != expected:
        name = symbol_name(program.body)
        yield Violation(
            program.body,
            f"expected the topology of '@main' on '@{name}', found {topology or 'none'}",
        )


class _Checker:
    """One walk over both functions; remembers which mesh a stage is on, and which stage made a
    value of the body."""

    def __init__(self, program: StepProgram, meshes: Mapping[str, Mesh]) -> None:
        self.program = program
        self.meshes = meshes
        self.mesh_of_stage: dict[int, str] = {}
        self.made_by: dict[ir.Value, int] = {}

    def violations(self) -> Iterator[Violation]:
        program = self.program
        for function, block in (
            (program.main, program.main_block),
            (program.body, program.body_block),
        ):
            for number, argument in enumerate(block.arguments):
                yield from self._of_value(
                    function, argument, f"argument {number} of '@{symbol_name(function)}'"
                )
        yield from self._of_ops(program.prologue, ("prologue",))
        yield from self._of_loop()
        yield from self._of_ops(program.epilogue, ("update",))
        yield from self._of_ops(program.body_ops, BODY_KINDS)
        # A stage without fragments is possible; more of them than there is anything are not.
        most = len(self.meshes) + len(operations(program.module.operation, (_FRAGMENT,)))
        last = max(self.mesh_of_stage, default=0)
        if last >= most:
            yield Violation(program.loop, f"expected stages below {most}, found stage {last}")
            return
        try:
            read_methods(program.loop, max(len(self.meshes), 1 + last))
        except ValueError as error:
            yield Violation(program.loop, str(error))

    def _of_value(self, op: ir.Operation, value: ir.Value, where: str) -> Iterator[Violation]:
        message = value_error(value.type, self.meshes)
        if message:
            yield Violation(op, f"{where}: {message}")

    def _of_loop(self) -> Iterator[Violation]:
        loop = self.program.loop
        for number, argument in enumerate(self.program.loop_block.arguments):
            yield from self._of_value(loop, argument, f"argument {number} of the loop")

    def _of_ops(self, ops: list[ir.Operation], kinds: tuple[str, ...]) -> Iterator[Violation]:
        for op in ops:
            for number, result in enumerate(op.results):
                yield from self._of_value(op, result, f"result {number} of '{op.name}'")
            if op.name == _FRAGMENT:
                yield from self._of_fragment(op, kinds)
            elif op.name == _TRANSFER:
                yield from self._of_transfer(op)
            else:
                yield Violation(op, f"expected fragments and transfers, found '{op.name}'")

    def _of_fragment(self, op: ir.Operation, kinds: tuple[str, ...]) -> Iterator[Violation]:
        mesh = ir.StringAttr(op.attributes["mesh_name"]).value
        kind = ir.StringAttr(op.attributes[KIND]).value if KIND in op.attributes else None
        if kind not in kinds:
            kind_text = f"'{kind}'" if kind else "none"
            yield Violation(
                op,
                f"expected '{KIND}' {' or '.join(map(repr, kinds))} on the fragment here, "
                f"found {kind_text}",
            )
        if STAGE_ID not in op.attributes:
            yield Violation(op, f"expected a stage on the fragment of mesh '{mesh}', found none")
            return
        stage = ir.IntegerAttr(op.attributes[STAGE_ID]).value
        if stage < 0:
            yield Violation(op, f"expected a stage from 0 on, found {stage}")
            return
        home = self.mesh_of_stage.setdefault(stage, mesh)
        if home != mesh:
            yield Violation(
                op,
                f"expected stage {stage} on mesh '{home}', found its {kind} fragment "
                f"on mesh '{mesh}'",
            )
        for number, operand in enumerate(op.operands):
            made_by = self.made_by.get(operand, stage)
            if kind == "fwd" and made_by > stage:
                yield Violation(
                    op,
                    f"expected the fwd fragment of stage {stage} to read nothing of later stages, "
                    f"found operand {number} made by stage {made_by}",
                )
        self.made_by.update((result, stage) for result in op.results)

    def _of_transfer(self, op: ir.Operation) -> Iterator[Violation]:
        source, target = op.operands[0], op.results[0]
        if source in self.made_by:
            self.made_by[target] = self.made_by[source]
        if is_mesh_tensor(source.type) and is_mesh_tensor(target.type):
            mesh = parse_mesh_tensor(source.type).mesh
            if mesh == parse_mesh_tensor(target.type).mesh:
                yield Violation(
                    op, f"expected a transfer between two meshes, found one within mesh '{mesh}'"
                )
