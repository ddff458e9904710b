"""Rewrite a clustered program onto stages: `@main` and `@microbatch` become fragments on meshes.

The loop body gives one forward and one backward fragment a stage
(`shardopt.solve.stages.body.backward`). What is computed again does not leave its stage
(`shardopt.passes.stages.cut_repeats`). Operations outside the loop are grouped by stage and by how
many mesh crossings precede them, so that one fragment never waits for another that waits for it;
where they read arguments on the host, in pieces (`shardopt.graph.streamed_state`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func as func_dialect
from jaxlib.mlir.dialects import mpmd

from shardopt.dialect.attributes import entries, i32, u32
from shardopt.dialect.donation import (
    ALIASING_OUTPUT,
    BUFFER_DONOR,
    argument_attributes,
    read_donation,
    read_on_host,
)
from shardopt.dialect.mpmd import (
    IN_FLIGHT,
    INTRA_OP,
    LAYER,
    OFFLOAD,
    RECOMPUTE,
    STREAMS,
    read_topology,
    write_topology,
)
from shardopt.dialect.prediction import PREDICTED
from shardopt.dialect.program import StepProgram, read_program
from shardopt.dialect.stages import STAGES, read_stages, stage_of_layers
from shardopt.dialect.token_slices import TOKEN_SLICES
from shardopt.extract.layered_body import read_body
from shardopt.extract.op_graph import read_tensor, reads
from shardopt.graph.op_graph import SHARED
from shardopt.graph.streamed_state import reads_with_copies, update_pieces
from shardopt.ir.rewriting import defining, symbol_name
from shardopt.mesh.mesh import Mesh
from shardopt.passes.stages.cut_repeats import cut_repeats
from shardopt.passes.stages.outlining import Group, Outliner, Resolved, resolve
from shardopt.passes.stages.read_step import check_clustered
from shardopt.solve.stages.body.backward import backward_rows

# What was decided about stages stands on the loop, whatever its operands are.
_DECISIONS = (IN_FLIGHT, RECOMPUTE, OFFLOAD, INTRA_OP, PREDICTED, STREAMS, TOKEN_SLICES)


@dataclass(frozen=True)
class StagePlacement:
    """The stage of every layer, rising, and the mesh of every stage. Stages may share a mesh."""

    stage_of_layer: tuple[int, ...]
    meshes: tuple[Mesh, ...]

    @property
    def topology(self) -> tuple[Mesh, ...]:
        """Every mesh once, in the order of the first stages."""
        return tuple(dict.fromkeys(self.meshes))

    def stage(self, layer: int) -> int:
        return self.stage_of_layer[layer] if layer >= 0 else SHARED

    def layers(self, stage: int) -> range:
        start = self.stage_of_layer.index(stage)
        return range(start, start + self.stage_of_layer.count(stage))


def read_placement(program: StepProgram) -> StagePlacement:
    """What `shardopt-choose-stages` wrote. Raises ValueError where a layer has no stage or a stage
    no mesh, and UserError where operations have no layers."""
    check_clustered(program)
    stages = read_stages(program.main)
    stage_of = stage_of_layers(stages)
    meshes = {mesh.name: mesh for mesh in read_topology(program.main)}
    if unknown := sorted({stage.mesh for stage in stages} - meshes.keys()):
        raise ValueError(
            f"expected a mesh of the topology ({', '.join(meshes)}), found '{unknown[0]}'"
        )
    ops = (*program.body_ops, *program.prologue, *program.epilogue)
    layered = (*(op.attributes for op in ops), *argument_attributes(program.main))
    used = {_layer(attributes) for attributes in layered} - {SHARED}
    if unplaced := sorted((used | set(range(max(stage_of, default=0)))) - stage_of.keys()):
        raise ValueError(f"expected layer {unplaced[0]} in some stage of '{STAGES}', found none")
    return StagePlacement(
        tuple(stage_of[layer] for layer in sorted(stage_of)),
        tuple(meshes[stage.mesh] for stage in stages),
    )


def outline_fragments(program: StepProgram, placement: StagePlacement) -> None:
    """Replace `@main` and `@microbatch` of the clustered form by their staged form, in place."""
    _Staging(program, placement).run()


class _Staging:
    def __init__(self, program: StepProgram, placement: StagePlacement) -> None:
        self.placement = placement
        main_ops = [*program.prologue, *program.epilogue]
        self.stage_of = {op: placement.stage(_layer(op.attributes)) for op in main_ops}
        # What an operation waits for is read before the cut, which takes values out of barriers.
        body = read_body(program).body
        rows = cut_repeats(program, placement.stage)
        self.stage_of.update((op, placement.stage(body.layers[number])) for number, op in rows)
        self.reached = [body.reached[number] for number, _ in rows]
        # An earlier layer reads what depends on a later one.
        self.goes_back = any(self.reached[k] > body.layers[n] >= 0 for k, (n, _) in enumerate(rows))
        self.program = program = read_program(program.module)
        arguments = argument_attributes(program.main)
        self.argument_stage: dict[ir.Value, int] = {
            argument: max(placement.stage(_layer(attributes)), 0)
            for argument, attributes in zip(program.main_block.arguments, arguments, strict=True)
        }
        # Bytes of arguments on the host.
        self.resting: dict[ir.Value, int] = {
            program.main_block.arguments[number]: read_tensor(
                program.main_block.arguments[number].type
            ).size_bytes
            for number in sorted(read_on_host(program.main))
        }
        self.accumulator_stage = [self._accumulator_stage(result) for _, result in program.carried]

    def run(self) -> None:
        program = self.program
        # The loop captures what groups of the body read, so they come first.
        body = self._resolve_body()
        self._build_main(body)
        self._build_body(body)
        program.main.erase()
        program.body.erase()

    # ---- what goes where ----

    def _mesh(self, stage: int) -> str:
        return self.placement.meshes[stage].name

    def _is_shared(self, value: ir.Value) -> bool:
        producer = defining(value)
        return producer is not None and self.stage_of.get(producer) == SHARED

    def _reads_of_copy(self, value: ir.Value) -> list[ir.Value]:
        """What the maker of a value reads, if each group that reads the value has a copy of it."""
        maker = defining(value)
        return reads(maker) if maker is not None and self._is_shared(value) else []

    def _accumulator_stage(self, result: int) -> int:
        producer = defining(self.program.body_result(result))
        return 0 if producer is None else max(self.stage_of[producer], 0)

    def _resolve_body(self) -> list[Resolved]:
        """Forward fragments by rising stage, then backward fragments by falling stage."""
        groups: dict[tuple[str, int], Group] = {}
        for op, kind in self._body_kinds().items():
            stage = self.stage_of[op]
            groups.setdefault((kind, stage), Group(self._mesh(stage), stage, kind)).ops.append(op)
        for (kind, stage), group in groups.items():
            group.backward = kind == "fwd" and self.goes_back and ("bwd", stage) not in groups
        for stage, (_, result) in zip(self.accumulator_stage, self.program.carried, strict=True):
            value = self.program.body_result(result)
            if self._is_shared(value):
                groups.setdefault(
                    ("fwd", stage), Group(self._mesh(stage), stage, "fwd")
                ).exports.append(value)
        order = sorted(groups, key=lambda key: (0, key[1]) if key[0] == "fwd" else (1, -key[1]))
        return resolve((groups[key] for key in order), self.program.body_ops, self._is_shared)

    def _body_kinds(self) -> dict[ir.Operation, str]:
        """Kind of every operation of the body that belongs to a stage, in program order."""
        rows, placement = read_body(self.program), self.placement
        backward: set[int] = set()
        for stage in range(len(placement.meshes)):
            layers = placement.layers(stage)
            backward |= backward_rows(rows.body, layers.start, layers.stop, reached=self.reached)
        return {
            op: "bwd" if row in backward else "fwd"
            for row, op in enumerate(rows.ops)
            if self.stage_of[op] != SHARED
        }

    def _resolve_outside_loop(
        self, ops: Sequence[ir.Operation], kind: str, required: Iterable[tuple[ir.Value, int]]
    ) -> list[Resolved]:
        """Groups of prologue or epilogue by (crossings before, stage); `required`: (value, stage)
        they must give."""
        level: dict[ir.Value, dict[int, int]] = {}
        groups: dict[tuple[int, int], Group] = {}
        for op in ops:
            stage = self.stage_of[op]
            arrivals: dict[int, int] = {}
            for value in reads(op):
                for source, crossings in level.get(value, {}).items():
                    arrivals[source] = max(arrivals.get(source, 0), crossings)
            # Each group that reads it has a copy, which waits for what it waits for.
            if stage == SHARED:
                level.update((result, arrivals) for result in op.results)
                continue
            depth = max(
                (crossings + (source != stage) for source, crossings in arrivals.items()), default=0
            )
            level.update((result, {stage: depth}) for result in op.results)
            groups.setdefault((depth, stage), Group(self._mesh(stage), stage, kind)).ops.append(op)
        for value, stage in required:
            if self._is_shared(value):
                arrivals = level.get(value, {})
                depth = max(
                    (crossings + (source != stage) for source, crossings in arrivals.items()),
                    default=0,
                )
                group = groups.setdefault((depth, stage), Group(self._mesh(stage), stage, kind))
                group.exports += [value] * (value not in group.exports)
        order = [*self.program.prologue, *self.program.epilogue]
        # By crossings: a group waits for groups with fewer of them only.
        rising = (piece for key in sorted(groups) for piece in self._pieces(groups[key]))
        return resolve(rising, order, self._is_shared)

    def _pieces(self, group: Group) -> list[Group]:
        """A group around the loop, in parts that read little of what lies on the host."""
        makes = [list(op.results) for op in group.ops]
        seen = [reads_with_copies(reads(op), self._reads_of_copy) for op in group.ops]
        pieces = update_pieces(seen, makes, self.resting)
        parts = {number: replace(group, ops=[], exports=[]) for number in sorted({*pieces}) or [0]}
        for op, number in zip(group.ops, pieces, strict=True):
            parts[number].ops.append(op)
        next(iter(parts.values())).exports = group.exports
        return list(parts.values())

    # ---- @main ----

    def _build_main(self, body: Sequence[Resolved]) -> None:
        program = self.program
        captures = self._captures(body)
        prologue = self._resolve_outside_loop(
            program.prologue,
            "prologue",
            [
                *((program.captured[k], stage) for k, stage in captures),
                *(
                    (value, stage)
                    for value, stage in zip(
                        program.loop.operands, self.accumulator_stage, strict=False
                    )
                ),
            ],
        )
        replaced = {result: argument for argument, result in read_donation(program.main).items()}
        returned = [
            (value, self._return_stage(replaced.get(k), value))
            for k, value in enumerate(program.returned)
        ]
        epilogue = self._resolve_outside_loop(program.epilogue, "update", returned)
        live = {value for group in (*prologue, *epilogue) for value in group.inputs}
        live |= {*program.returned, *program.captured.values(), *program.loop.operands}

        arguments = [
            (argument, self.argument_stage[argument]) for argument in program.main_block.arguments
        ]
        function, out = self._function(program.main, arguments)
        _copy_attributes(program.main, function)
        write_topology(function, self.placement.topology, devices=True)
        for group in prologue:
            out.emit(group, live)
        self._build_loop(out, captures)
        for group in epilogue:
            out.emit(group, live)
        loc = program.main.location
        results = [out.arrive(value, self._mesh(stage), loc) for value, stage in returned]
        self._finish(function, out, results)

    def _return_stage(self, argument: int | None, value: ir.Value) -> int:
        """A result that replaces an argument goes where the argument lives; others stay where they
        are made."""
        if argument is not None:
            return self.argument_stage[self.program.main_block.arguments[argument]]
        producer = defining(value)
        if producer is None:
            return self.argument_stage[value]
        if producer == self.program.loop:
            return self.accumulator_stage[ir.OpResult(value).result_number]
        return max(self.stage_of[producer], 0)

    def _captures(self, body: Sequence[Resolved]) -> list[tuple[int, int]]:
        """(argument of `@microbatch`, stage) for every captured value and the first stage that
        reads it on each mesh."""
        number: dict[ir.Value, int] = {
            self.program.body_block.arguments[k]: k for k in self.program.captured
        }
        readers: dict[int, dict[str, int]] = {}
        for group in sorted(
            (resolved for resolved in body), key=lambda resolved: resolved.group.stage
        ):
            for value in group.inputs:
                if value in number:
                    readers.setdefault(number[value], {}).setdefault(
                        group.group.mesh, group.group.stage
                    )
        return [(k, stage) for k in sorted(readers) for stage in readers[k].values()]

    def _build_loop(self, out: Outliner, captures: Sequence[tuple[int, int]]) -> None:
        """`mpmd.for` over the accumulators; everything captured arrives on its mesh before the
        loop."""
        program, loc = self.program, self.program.loop.location
        outer = [out.arrive(program.captured[k], self._mesh(stage), loc) for k, stage in captures]
        inits = [
            out.arrive(value, self._mesh(stage), loc)
            for value, stage in zip(program.loop.operands, self.accumulator_stage, strict=True)
        ]
        types = [value.type for value in inits]
        point = ir.InsertionPoint(out.block)
        loop = mpmd.ForOp(types, inits, u32(program.num_microbatches), loc=loc, ip=point).operation
        # On the first mesh; transfers to the others move nothing, as each of them counts for
        # itself.
        index_type = out.type_on(self._mesh(0), _index_type())
        for name in _DECISIONS:
            if name in program.loop.attributes:
                loop.attributes[name] = program.loop.attributes[name]
        block = loop.regions[0].blocks.append(*types, index_type, arg_locs=[loc] * (len(types) + 1))
        inside = ir.InsertionPoint(block)
        operands = [*outer, *block.arguments]
        call = mpmd.CallOp(types, operands, symbol_name(program.body), loc=loc, ip=inside).operation
        call.attributes["call_counter"] = u32(0)
        mpmd.ReturnOp(list(call.results), loc=loc, ip=inside)
        for k, result in enumerate(loop.results):
            out.define(program.loop.results[k], self._mesh(self.accumulator_stage[k]), result)

    # ---- @microbatch ----

    def _build_body(self, body: Sequence[Resolved]) -> None:
        program = self.program
        arguments = list(program.body_block.arguments)
        captures = [(arguments[k], stage) for k, stage in self._captures(body)]
        carried = [
            (arguments[a], stage)
            for (a, _), stage in zip(program.carried, self.accumulator_stage, strict=True)
        ]
        index = None if program.index_argument is None else arguments[program.index_argument]
        function, out = self._function(program.body, [*captures, *carried, (index, 0)])
        write_topology(function, self.placement.topology, devices=False)
        returned = [program.body_result(result) for _, result in program.carried]
        live = {value for group in body for value in group.inputs} | set(returned)
        for group in body:
            out.emit(group, live)
        loc = program.body.location
        values = [
            out.arrive(v, self._mesh(stage), loc)
            for v, stage in zip(returned, self.accumulator_stage, strict=True)
        ]
        self._finish(function, out, values)

    # ---- functions ----

    def _function(
        self, like: ir.Operation, arguments: Sequence[tuple[ir.Value | None, int]]
    ) -> tuple[ir.Operation, Outliner]:
        """A function with one mesh tensor a (value, stage), None for the index; `_finish` gives it
        results."""
        loc, out = like.location, Outliner()
        types = [
            out.type_on(self._mesh(s), _index_type() if v is None else v.type) for v, s in arguments
        ]
        function = func_dialect.FuncOp(
            symbol_name(like),
            ir.FunctionType.get(types, []),
            visibility="private" if like == self.program.body else "public",  # type: ignore[call-arg]
            loc=loc,
            ip=ir.InsertionPoint(self.program.module.body),
        ).operation
        # What users call arguments by.
        named = [loc if value is None else value.location for value, _ in arguments]
        out.block = function.regions[0].blocks.append(*types, arg_locs=named)
        for (value, stage), argument in zip(arguments, out.block.arguments, strict=True):
            if value is not None:
                out.define(value, self._mesh(stage), argument)
        return function, out

    def _finish(self, function: ir.Operation, out: Outliner, results: Sequence[ir.Value]) -> None:
        func_dialect.ReturnOp(results, loc=function.location, ip=ir.InsertionPoint(out.block))
        inputs = [argument.type for argument in out.block.arguments]
        type_ = ir.FunctionType.get(inputs, [value.type for value in results])
        function.attributes["function_type"] = ir.TypeAttr.get(type_)


def _layer(attributes: object) -> int:
    return ir.IntegerAttr(attributes[LAYER]).value if LAYER in attributes else SHARED  # type: ignore[index, operator]


def _index_type() -> ir.Type:
    return ir.RankedTensorType.get([], ir.IntegerType.get_unsigned(32))


def _copy_attributes(source: ir.Operation, target: ir.Operation) -> None:
    """Discardable attributes and those of arguments and results, without the layers, which are now
    in the meshes.

    Donated buffers name their result from here on: whose they are must not depend on how meshes
    sort the types."""
    for name in source.attributes:
        if name not in ("sym_name", "function_type", "sym_visibility", "arg_attrs", STAGES):
            target.attributes[name] = source.attributes[name]
    donated = read_donation(source)
    arguments = []
    for index, attributes in enumerate(argument_attributes(source)):
        kept = {
            name: value
            for name, value in entries(attributes).items()
            if name not in (LAYER, BUFFER_DONOR)
        }
        if index in donated:
            kept[ALIASING_OUTPUT] = i32(donated[index])
        arguments.append(ir.DictAttr.get(kept))
    target.attributes["arg_attrs"] = ir.ArrayAttr.get(arguments)
