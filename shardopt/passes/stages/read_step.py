"""Read the clustered form as one op graph of the whole step, with the layer of every operation.

Values are followed through the loop and into the body of a microbatch: what the loop captures,
carries and returns is one tensor on both sides, as in `shardopt.extract.mesh_graphs`, which reads
the same of the staged form mesh by mesh."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from jaxlib.mlir import ir

from shardopt.dialect.batch import read_batch, read_no_batch
from shardopt.dialect.donation import argument_attributes, read_donation
from shardopt.dialect.mpmd import LAYER
from shardopt.dialect.program import StepProgram
from shardopt.extract.batch_arguments import argument_name, batch_numbers
from shardopt.extract.control_flow import RegionReader
from shardopt.extract.op_graph import sharding_rules
from shardopt.extract.repeated_ops import repeated_ops
from shardopt.graph.op_graph import SHARED
from shardopt.ir.rewriting import defining, shape_of
from shardopt.ir.splats import is_splat
from shardopt.solve.presets.base import InputKinds
from shardopt.solve.stages.step_graph import StepGraph, sum_point
from shardopt.support.errors import UserError


def read_step(
    program: StepProgram, batch_args: Sequence[str] = ("auto",)
) -> tuple[StepGraph, InputKinds]:
    """The step, and the roles of its inputs. Raises UserError where an operation or an argument has
    no layer, and ValueError for malformed `batch_args`."""
    check_clustered(program)
    with sharding_rules(program.module):
        reader = _StepReader(program)
        step = reader.run()
    arguments = dict(enumerate(program.main_block.arguments))
    donated = read_donation(program.main).keys()
    shapes = {k: shape_of(argument) for k, argument in arguments.items()}
    names = {k: argument_name(argument) for k, argument in arguments.items()}
    batch = batch_numbers(shapes, names, read_batch(program.main), batch_args)
    state = frozenset(reader.reader.tensor(arguments[k]) for k in donated)
    batch_of = {reader.reader.tensor(arguments[k]): dim for k, dim in batch.items()}
    return step, InputKinds(state, batch_of, tied=step.tied, no_batch=read_no_batch(program.main))


def check_clustered(program: StepProgram) -> None:
    """Raises UserError where an operation or an argument has no layer."""
    for op in (*program.body_ops, *program.prologue, *program.epilogue):
        if LAYER not in op.attributes:
            raise UserError(
                f"expected '{LAYER}' on every operation (run the cluster phase first), none is "
                f"on '{op.name}'"
            )
    if not all(LAYER in attributes for attributes in argument_attributes(program.main)):
        raise UserError(
            f"expected '{LAYER}' on every argument of '@main' (run the cluster phase first)"
        )


class _StepReader:
    def __init__(self, program: StepProgram) -> None:
        self.program, self.reader = program, RegionReader()
        self.layers: list[int] = []
        self.literals: set[int] = set()

    def run(self) -> StepGraph:
        program, reader = self.program, self.reader
        arguments = [reader.tensor(argument) for argument in program.main_block.arguments]
        self._read(program.prologue)
        self._bind_captures()
        before = self._starts()
        begin = len(reader.ops)
        self._read(program.body_ops, repeat=program.num_microbatches)
        stop = len(reader.ops)
        after = [reader.tensor(program.body_result(result)) for _, result in program.carried]
        for result, tensor in zip(program.loop.results, after, strict=True):
            reader.bind(result, tensor)
        self._sum_points(after)
        self._read(program.epilogue)
        carried = tuple(zip(before, after, strict=True))
        returned = [reader.tensor(value) for value in program.returned]
        donated = tuple((arguments[a], returned[r]) for a, r in read_donation(program.main).items())
        attributes = argument_attributes(program.main)
        owner = {
            t: ir.IntegerAttr(each[LAYER]).value
            for t, each in zip(arguments, attributes, strict=True)
        }
        tied = (*carried, *donated, *reader.take_ties())
        # An argument that comes back as it is needs no tie.
        tied = tuple((a, b) for a, b in tied if a != b)
        return StepGraph(
            graph=reader.graph(returned),
            op_layer=tuple(self.layers),
            loop=(begin, stop),
            carried=carried,
            tied=tied,
            owner=owner,
            literals=frozenset(self.literals),
            repeated=self._repeated(),
        )

    def _repeated(self) -> dict[int, int]:
        """tensor computed again -> the one that it equals."""
        made = {tensor for op in self.reader.ops for tensor in op.results}
        pairs = (
            tuple(map(self.reader.tensor, values))
            for op, original in repeated_ops(self.program.body_ops).items()
            for values in zip(op.results, original.results, strict=True)
        )
        return {repeat: first for repeat, first in pairs if repeat != first and repeat in made}

    def _read(self, ops: Iterable[ir.Operation], repeat: int = 1) -> None:
        for op in ops:
            known = len(self.reader.ops)
            self.reader.add_ops([op], repeat=repeat)
            new = self.reader.ops[known:]
            self.layers += [ir.IntegerAttr(op.attributes[LAYER]).value] * len(new)
            for each, handle in zip(new, self.reader.handles[known:], strict=True):
                if each.name == "constant" and not is_splat(handle):
                    self.literals.update(each.results)

    def _bind_captures(self) -> None:
        arguments = self.program.body_block.arguments
        for number, value in self.program.captured.items():
            self.reader.bind(arguments[number], self.reader.tensor(value))

    def _starts(self) -> list[int]:
        """What accumulators begin with. Each that begins as a constant gets one of its own, as the
        shard phase does it (`shardopt.passes.sharding.apply.accumulators`)."""
        program, reader = self.program, self.reader
        starts = []
        for (argument, result), value in zip(program.carried, program.loop.operands, strict=False):
            tensor = reader.tensor(value)
            start, maker = defining(value), defining(program.body_result(result))
            layer = SHARED if maker is None else ir.IntegerAttr(maker.attributes[LAYER]).value
            if start is not None and start.name == "stablehlo.constant" and layer != SHARED:
                original = next(op for op in reader.ops if tensor in op.results)
                tensor = reader.fresh(reader.tensors[tensor])
                reader.ops.append(replace(original, results=(tensor,)))
                reader.handles.append(start)
                self.layers.append(layer)
            reader.bind(program.body_block.arguments[argument], tensor)
            starts.append(tensor)
        return starts

    def _sum_points(self, after: list[int]) -> None:
        """Behind the loop, what it returned is read through a sum point in the layer that made
        it."""
        program, reader = self.program, self.reader
        for value, tensor, (_, number) in zip(
            program.loop.results, after, program.carried, strict=True
        ):
            maker = defining(program.body_result(number))
            layer = SHARED if maker is None else ir.IntegerAttr(maker.attributes[LAYER]).value
            if layer == SHARED or not any(True for _ in value.uses):
                continue
            total = reader.fresh(reader.tensors[tensor])
            reader.ops.append(sum_point(tensor, total, reader.tensors[tensor].shape))
            reader.handles.append(program.loop)
            self.layers.append(layer)
            reader.bind(value, total)
