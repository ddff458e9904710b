"""Read the body of a microbatch for the cut along its tokens (`shardopt.solve.tokens`)."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

import numpy as np
from jaxlib.mlir import ir

from shardopt.dialect.donation import read_replacements
from shardopt.dialect.mpmd import LAYER
from shardopt.dialect.program import StepProgram
from shardopt.dialect.stages import PlacedStage, stage_of_layers
from shardopt.extract.layered_body import read_body
from shardopt.extract.op_graph import GraphReader, sharding_rules
from shardopt.graph.op_graph import SHARED, OpGraph
from shardopt.ir.splats import read_splat
from shardopt.solve.presets.sequence_flow import Sequences, find_sequences
from shardopt.solve.stages.body.backward import backward_rows
from shardopt.solve.tokens.causality import Literals
from shardopt.solve.tokens.token_axis import TokenBody
from shardopt.support.errors import UserError

CANNOT_CUT = "cannot cut the step along its tokens"


@dataclass(frozen=True)
class TokenRows:
    """Operation k of the graph of `body` is handle k of `reader`."""

    reader: GraphReader
    body: TokenBody


def read_token_body(program: StepProgram, stages: Sequence[PlacedStage]) -> TokenRows:
    """Raises UserError where there is no sequence, or where there are sequences of several
    lengths."""
    with sharding_rules(program.module):
        reader = GraphReader()
        for argument in program.body_block.arguments:
            reader.tensor(argument)
        reader.add_ops(program.body_ops)
        graph = reader.graph([reader.tensor(value) for value in program.body_returned])
    batch = _batch(program, reader)
    sequences = _sequences(graph, batch)
    stage_of, backward = stage_of_layers(stages), _backward(program, stages)
    layers = [ir.IntegerAttr(op.attributes[LAYER]).value for op in reader.handles]
    body = TokenBody(
        graph=graph,
        extent=_extent(sequences),
        starts=sequences.seeds,
        attention=sequences.attention,
        batch=batch,
        carried={reader.tensor(program.body_block.arguments[k]) for k, _ in program.carried},
        stages=[stage_of.get(layer, SHARED) for layer in layers],
        backward={k for k, op in enumerate(reader.handles) if op in backward},
        literals=_literals(reader, graph),
    )
    return TokenRows(reader, body)


def _batch(program: StepProgram, reader: GraphReader) -> set[int]:
    """The arguments of which a microbatch takes rows. A loop over one example takes none: there,
    whatever the step does not replace."""
    arguments = program.body_block.arguments
    if program.index_argument is not None:
        index = arguments[program.index_argument]
        found = [argument for argument in arguments if _takes_rows(argument, index)]
        if found:
            return {reader.index[argument] for argument in (index, *found)}
    inputs, state = program.main_block.arguments, read_replacements(program.main)
    others = {value for number, value in enumerate(inputs) if number not in state}
    passed = zip(arguments, program.call.operands, strict=True)
    return {reader.index[argument] for argument, value in passed if value in others}


def _takes_rows(argument: ir.Value, index: ir.Value) -> bool:
    readers = [use.owner.operation for use in argument.uses]
    return bool(readers) and all(
        op.name == "stablehlo.dynamic_slice" and index in list(op.operands)[1:] for op in readers
    )


def _sequences(graph: OpGraph, batch: Set[int]) -> Sequences:
    """A microbatch may be one example, so where it lies is not said."""
    depends = [tensor in batch for tensor in range(len(graph.tensors))]
    for op in graph.ops:
        for result in op.results:
            depends[result] = any(depends[tensor] for tensor in op.operands)
    return find_sequences(graph, depends, [None] * len(graph.tensors))


def _backward(program: StepProgram, stages: Sequence[PlacedStage]) -> set[ir.Operation]:
    """The operations that stages run in their backward pass."""
    rows = read_body(program)
    return {
        rows.ops[row]
        for stage in stages
        for row in backward_rows(rows.body, stage.first, stage.last + 1)
    }


def _extent(sequences: Sequences) -> int:
    extents = sorted(set(sequences.extents))
    if not extents:
        raise UserError(f"{CANNOT_CUT}: expected attention over a sequence, found none")
    if len(extents) > 1:
        found = ", ".join(map(str, extents))
        raise UserError(f"{CANNOT_CUT}: expected sequences of one length, found {found}")
    return extents[0]


def _literals(reader: GraphReader, graph: OpGraph) -> Literals:
    makers = {op.results[0]: handle for op, handle in zip(graph.ops, reader.handles, strict=True)}
    constants = {t: op for t, op in makers.items() if op.name == "stablehlo.constant"}
    splats = {tensor: read_splat(op) for tensor, op in constants.items()}

    def array(tensor: int) -> np.ndarray | None:
        op = constants.get(tensor)
        value = None if op is None else op.attributes["value"]
        return np.array(value) if isinstance(value, ir.DenseElementsAttr) else None

    return Literals(
        splats={tensor: value for tensor, value in splats.items() if value is not None},
        array=array,
        directions={
            k: str(op.attributes["comparison_direction"]).split()[-1].rstrip(">")
            for k, op in enumerate(reader.handles)
            if op.name == "stablehlo.compare"
        },
        iotas={
            k: ir.IntegerAttr(op.attributes["iota_dimension"]).value
            for k, op in enumerate(reader.handles)
            if op.name == "stablehlo.iota"
        },
        starts={
            k: list(ir.DenseI64ArrayAttr(op.attributes["start_indices"]))
            for k, op in enumerate(reader.handles)
            if op.name == "stablehlo.slice"
            and set(ir.DenseI64ArrayAttr(op.attributes["strides"])) == {1}
        },
    )
