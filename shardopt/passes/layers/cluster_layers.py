"""Give every operation of the step the layer it belongs to.

Needs the microbatched form. Afterwards every operation of `@microbatch` and of the prologue and
epilogue carries `shardopt.layer = k : i64`; -1 marks operations that every layer that reads them
computes for itself. Arguments of `@main` carry their layer too. A backward operation has the layer
of its forward, an update that of its parameter.

    %3 = stablehlo.dot_general %x, %w1       %3 = stablehlo.dot_general %x, %w1 {shardopt.layer = 0}
    %4 = stablehlo.dot_general %3, %w2   =>  %4 = stablehlo.dot_general %3, %w2 {shardopt.layer = 1}
    %9 = stablehlo.dot_general %8, %3        %9 = stablehlo.dot_general %8, %3 {shardopt.layer = 1}

1. Find which loop results are gradients of which arguments
   (`shardopt.passes.layers.gradients`).
2. Solve the layer DP on the body (`shardopt.solve.stages.layers.layering`, Alpa §5.1), as it would
   be without `jax.checkpoint`: what is computed again belongs to the layer of its original. Layers
   have about equal FLOPs, or equal seconds on the devices of a cluster. The forward operations at
   which layers begin, or the layers of all operations, may come from a plan file.
3. Let the operations outside the loop follow (`shardopt.solve.stages.layers.ownership`), and
   barriers the last layer that reads them (`shardopt.passes.layers.barriers`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from jaxlib.mlir import ir

from shardopt.dialect.attributes import entries, i64
from shardopt.dialect.batch import erase_step_loop, with_step_loop
from shardopt.dialect.donation import argument_attributes
from shardopt.dialect.mpmd import LAYER
from shardopt.dialect.program import StepProgram, read_program
from shardopt.extract.op_graph import GraphReader
from shardopt.extract.repeated_ops import behind_barriers, repeated_ops
from shardopt.graph.op_graph import SHARED
from shardopt.graph.recomputed_units import check_mode, split_mode
from shardopt.hardware.cluster import Cluster
from shardopt.hardware.profile_file import with_profile
from shardopt.options.names import LayerBalance
from shardopt.passes.base import Pass, PassContext, option, plan_option
from shardopt.passes.from_plan.cluster import cluster_for
from shardopt.passes.from_plan.layers import first_ops, write_layers
from shardopt.passes.layers.barriers import free_shared, place_barriers
from shardopt.passes.layers.gradients import gradients_of
from shardopt.planfile.parts import VERSION, PlanFile
from shardopt.planfile.plan_file import load_plan_file
from shardopt.solve.stages.layers.dependences import is_dear
from shardopt.solve.stages.layers.layering import Layering, LayerProblem, assign_layers
from shardopt.solve.stages.layers.operation_seconds import operation_seconds
from shardopt.solve.stages.layers.ownership import Ownership, OwnershipProblem, assign_owners
from shardopt.support.errors import UserError


@dataclass
class _BodyReader(GraphReader):
    """A graph without recomputation: who reads a value of `repeated` operations reads the
    original."""

    repeated: Mapping[ir.Operation, ir.Operation] = field(default_factory=dict)

    def add_ops(self, ops: Iterable[ir.Operation], *, group: int = -1, repeat: int = 1) -> None:
        for op in ops:
            if op not in self.repeated:
                super().add_ops([op], group=group, repeat=repeat)
                continue
            for result, original in zip(op.results, self.repeated[op].results, strict=True):
                self.bind(result, self.tensor(original))


def _extract_body(program: StepProgram, options: ClusterLayers) -> tuple[_BodyReader, LayerProblem]:
    reader = _BodyReader(repeated=repeated_ops(program.body_ops))
    for argument in program.body_block.arguments:
        reader.tensor(argument)
    reader.add_ops(program.body_ops)
    arguments, returned = program.body_block.arguments, program.body_returned
    carried = {
        k: (reader.tensor(arguments[a]), reader.tensor(returned[r]))
        for k, (a, r) in enumerate(program.carried)
    }
    gradients = {
        carried[k][1]: tuple(reader.tensor(arguments[w]) for w in weights)
        for k, weights in gradients_of(program).items()
        if k in carried
    }
    index = program.index_argument
    # Every mesh knows the index of its microbatch, so a cut that it crosses costs nothing.
    free = frozenset() if index is None else frozenset({reader.tensor(arguments[index])})
    accumulators = {result: argument for argument, result in carried.values()}
    graph = reader.graph(reader.tensor(value) for value in returned)
    planned = load_plan_file(options.plan).layers if options.plan else None
    count, least = options.layers or (planned.count if planned else None), options.least_layers
    starts = first_ops(reader.handles, planned.starts) if planned else ()
    behind = behind_barriers(program.body_ops)
    is_timed = options.layer_balance == "seconds" and not starts
    return reader, LayerProblem(
        graph=graph,
        weight_of=gradients,
        accumulators=accumulators,
        free_inputs=free,
        num_layers=count,
        least_layers=least,
        delta=options.delta,
        method=options.method,
        starts=starts,
        behind=frozenset(number for number, op in enumerate(reader.handles) if op in behind),
        seconds=operation_seconds(graph, options.devices()) if is_timed else None,
        computed_again=_computed_again(reader, options.recompute) if is_timed else frozenset(),
    )


def _computed_again(reader: _BodyReader, recompute: str) -> frozenset[int]:
    """The operations that run twice if they are forward ones: what the model computes again, and
    what stages may, which is what is cheap where nobody says how much that is."""
    kind, _ = split_mode(recompute)
    in_model = set(reader.repeated.values())
    return frozenset(
        number
        for number, (op, handle) in enumerate(zip(reader.ops, reader.handles, strict=True))
        if handle in in_model or kind in ("layer", "full") or (kind != "none" and not is_dear(op))
    )


def _extract_main(
    program: StepProgram, body: GraphReader, layers: Layering
) -> tuple[GraphReader, OwnershipProblem]:
    reader = GraphReader()
    for argument in program.main_block.arguments:
        reader.tensor(argument)
    reader.add_ops(program.prologue)
    num_prologue = len(reader.ops)
    for result in program.loop.results:
        reader.tensor(result)
    reader.add_ops(program.epilogue)
    body_layer = _tensor_layers(body, layers)
    demand: dict[int, tuple[int, ...]] = {}
    owned: dict[int, int] = {}
    for k, value in program.captured.items():
        tensor = reader.tensor(value)
        readers = body_layer.get(body.tensor(program.body_block.arguments[k]), ())
        demand[tensor] = (*demand.get(tensor, ()), *readers)
        if isinstance(value, ir.BlockArgument) and demand[tensor]:
            owned[tensor] = min(demand[tensor])
    made_in = {
        result: layer
        for op, layer in zip(body.ops, layers.layer, strict=True)
        for result in op.results
    }
    for k, (number, returned) in enumerate(program.carried):
        # An accumulator that no operation with a layer reads goes with layer 0.
        readers = body_layer.get(body.tensor(program.body_block.arguments[number]), (0,))
        layer = made_in.get(body.tensor(program.body_result(returned)), SHARED)
        # What every reader copies has no layer: then the last that reads the accumulator has it.
        layer = readers[-1] if layer == SHARED else layer
        owned[reader.tensor(program.loop.results[k])] = layer
        init = reader.tensor(program.loop.operands[k])
        demand[init] = (*demand.get(init, ()), layer)
    graph = reader.graph(reader.tensor(value) for value in program.returned)
    return reader, OwnershipProblem(graph, num_prologue, owned, demand)


def _tensor_layers(reader: GraphReader, layers: Layering) -> Mapping[int, tuple[int, ...]]:
    """For each tensor of the body the layers that read it, ascending."""
    readers_of: dict[int, set[int]] = {}
    for op, layer in zip(reader.ops, layers.layer, strict=True):
        for operand in op.operands:
            if layer >= 0:
                readers_of.setdefault(operand, set()).add(layer)
    return {tensor: tuple(sorted(readers)) for tensor, readers in readers_of.items()}


def _annotate(reader: GraphReader, layers: tuple[int, ...]) -> None:
    for op, layer in zip(reader.handles, layers, strict=True):
        op.attributes[LAYER] = i64(layer)


def _annotate_arguments(program: StepProgram, reader: GraphReader, owners: Ownership) -> None:
    written = [
        ir.DictAttr.get({**entries(old), LAYER: i64(owners.input_layer[reader.tensor(argument)])})
        for old, argument in zip(
            argument_attributes(program.main), program.main_block.arguments, strict=True
        )
    ]
    program.main.attributes["arg_attrs"] = ir.ArrayAttr.get(written)


@dataclass(frozen=True)
class ClusterLayers(Pass):
    """See the head of the file."""

    name = "shardopt-cluster-layers"
    summary = "assign every operation, forward and backward alike, to a layer"

    layers: int = plan_option("layers")
    least_layers: int = option(
        1, help="when the number is found: at least this many (the number of stages, say)"
    )
    delta: float = plan_option("delta")
    layer_balance: LayerBalance = plan_option("layer_balance")
    cluster: str = plan_option(
        "cluster", help="cluster file or preset: on its devices seconds are predicted"
    )
    profile: str = plan_option("profile")
    recompute: str = plan_option("recompute", help="what stages compute again")
    method: Literal["dp", "equal-op", "equal-layer"] = plan_option(
        "inter_op", help="the layer DP, or a baseline"
    )
    plan: str = plan_option("plan")

    def __post_init__(self) -> None:
        check_mode(self.recompute)

    def check_options(self) -> None:
        if self.layer_balance == "seconds":
            self.devices()

    def devices(self) -> Cluster:
        """Those on which seconds are predicted. Raises UserError where nobody names any."""
        plan_file = load_plan_file(self.plan) if self.plan else PlanFile(VERSION)
        return with_profile(cluster_for(self.cluster, plan_file), self.profile)

    def run(self, module: ir.Module, pm: PassContext) -> None:
        try:
            program = read_program(module)
        except (UserError, ValueError) as error:
            raise pm.error(module.operation, str(error)) from error
        try:
            planned = load_plan_file(self.plan).layers if self.plan else None
            # The file has the layers of barriers, too: none of them is placed.
            if planned is not None and planned.body is not None:
                erase_step_loop(program.main)
                repeated = repeated_ops(program.body_ops)
                pm.statistic("layers", write_layers(program, planned))
                free_shared(program.body_ops, repeated)
                return
            body, problem = _extract_body(program, self)
            layering = assign_layers(problem)
            erase_step_loop(program.main)
        except (UserError, ValueError) as error:
            message = with_step_loop(program.main, str(error))
            raise pm.error(module.operation, message) from error
        main, ownership = _extract_main(program, body, layering)
        owners = assign_owners(ownership)
        _annotate(body, layering.layer)
        for op, original in body.repeated.items():
            op.attributes[LAYER] = original.attributes[LAYER]
        _annotate(main, owners.op_layer)
        for ops in (program.body_ops, program.prologue, program.epilogue):
            free_shared(ops, body.repeated)
            place_barriers(ops)
        _annotate_arguments(program, main, owners)
        pm.statistic("layers", layering.num_layers)
        pm.statistic("ops clustered", len(body.ops) + len(main.ops))
        pm.statistic("forward ops", sum(layering.is_forward))
