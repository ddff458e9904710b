"""Small training steps that the known methods are tried on, and their plans: a tied GPT (AdamW), a
mixture of experts (AdamW, and Adafactor for its state), a bottleneck ResNet (momentum)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cache, partial

import jax
from jaxlib.mlir import ir

from benchmarks.cost.xla_agreement_case import strategy_tables
from shardopt.extract.mesh_graphs import MeshGraph, read_plain
from shardopt.extract.op_graph import sharding_rules
from shardopt.hardware.cluster import Cluster, Device, Link
from shardopt.ir.context import make_context
from shardopt.ir.io import load_module
from shardopt.ir.rewriting import functions
from shardopt.mesh.mesh import parse_mesh
from shardopt.models import gpt, moe, wresnet
from shardopt.models.computing import Computing
from shardopt.models.optimizers import adafactor, adamw, momentum
from shardopt.models.specs import GptSpec, MoeSpec, ResnetSpec
from shardopt.models.train_step import Model, abstract_state, make_step
from shardopt.models.transformer import token_batch
from shardopt.passes.microbatches.find_batch import find_batch, mark_batch
from shardopt.passes.sharding.decide.input_kinds import find_input_kinds
from shardopt.pipeline.manager import run_pipeline
from shardopt.solve.assignment.limits import SearchLimits
from shardopt.solve.presets.base import InputKinds
from shardopt.solve.presets.flow import BatchFlow, follow_batch
from shardopt.solve.presets.presets import restrict
from shardopt.solve.sharding.intra_op.plan import IntraOpPlan
from shardopt.solve.sharding.intra_op.problem import IntraOpTables
from shardopt.solve.sharding.strategies.linear import find_linear

LAYERS, HIDDEN, HEADS, LENGTH, WORDS, BATCH, EXPERTS = 2, 32, 8, 16, 64, 16, 8
GPT = GptSpec(HIDDEN, LAYERS, HEADS, LENGTH, WORDS, BATCH, tied=True)
MOE = MoeSpec(HIDDEN, LAYERS, EXPERTS, HEADS, LENGTH, WORDS, BATCH, group=32)
RESNET = ResnetSpec(0, 16, 1, image=32, classes=32, batch=BATCH, blocks=(1, 1))


def _cluster(flops: float, bandwidth: float) -> Cluster:
    link = Link(0.0, bandwidth)
    device = Device("d", {"f32": flops}, 1 << 31, flops)
    return Cluster.uniform("test", 1, 8, device, link, link, 0.0)


# No latencies, and links so slow that nothing else counts: the methods are compared by bytes. Of a
# ResNet the solver would rather keep reversed kernels whole than gather kernels for the backward.
_SLOW_LINKS, BALANCED = _cluster(1e10, 1e4), _cluster(1e8, 1e8)
CLUSTERS = {"gpt": _SLOW_LINKS, "moe": _SLOW_LINKS, "factored": _SLOW_LINKS}
CLUSTERS |= {"one-hot gpt": _SLOW_LINKS, "resnet": BALANCED}
Shape = tuple[int, ...]
# (kind, axes, shape of the tensor with its extents in order, bytes)
Moved = Counter[tuple[str, tuple[str, ...], Shape, int]]


def models() -> dict[str, Model]:
    tokens, loss = token_batch(BATCH, LENGTH), partial(moe.loss, spec=MOE)
    by_product = partial(gpt.loss, how=Computing(looks_up_by_product=True))
    images = wresnet.image_batch(RESNET)
    return {
        "gpt": Model(gpt.weights(GPT), tokens, gpt.loss, adamw(), "f32"),
        "one-hot gpt": Model(gpt.weights(GPT), tokens, by_product, adamw(), "f32"),
        "moe": Model(moe.weights(MOE), tokens, loss, adamw(), "f32"),
        "factored": Model(moe.weights(MOE), tokens, loss, adafactor(), "f32"),
        "resnet": Model(wresnet.weights(RESNET), images, wresnet.loss, momentum(), "f32"),
    }


@cache
def module_of(model: str) -> bytes:
    built = models()[model]
    traced = jax.jit(make_step(built), donate_argnums=0).trace(abstract_state(built), built.batch)
    return str(traced.lower().compiler_ir("stablehlo")).encode()


@cache
def read(
    model: str, mesh: str, cluster: Cluster | None = None
) -> tuple[MeshGraph, IntraOpTables, InputKinds]:
    with make_context() as context, ir.Location.unknown():
        module = load_module(module_of(model), context)
        run_pipeline(module, "builtin.module(shardopt-import)")
        [main] = functions(module)
        mark_batch(main, find_batch(module))
        with sharding_rules(module):
            graph = read_plain(main, parse_mesh(mesh))
        linear = find_linear(graph.graph, graph.tied, graph.sent)
        devices = cluster or CLUSTERS[model]
        prices = strategy_tables(graph.mesh, devices)
        tables = IntraOpTables(graph.graph, graph.mesh, devices, linear=linear, strategies=prices)
        return graph, tables, find_input_kinds("ilp", graph, tables, ("auto",))


@dataclass(frozen=True, eq=False)
class Planned:
    graph: MeshGraph
    flow: BatchFlow
    plan: IntraOpPlan

    def moved(self, among: list[Shape]) -> Moved:
        """All collectives on tensors of the shapes of weights."""
        shapes, tensors = {sorted_shape(shape) for shape in among}, self.graph.graph.tensors
        rows = (
            (
                each.step.kind,
                each.step.axes,
                sorted_shape(tensors[each.tensor].shape),
                each.step.bytes,
            )
            for each in self.plan.communication
        )
        return Counter((*row[:3], int(row[3])) for row in rows if row[2] in shapes)


@cache
def planned(model: str, preset: str, mesh: str, cluster: Cluster | None = None) -> Planned:
    graph, tables, kinds = read(model, mesh, cluster)
    restriction = restrict(preset, tables, kinds)
    problem = tables.problem(
        fixed=restriction.fixed,
        allowed=restriction.allowed,
        tied=kinds.tied,
        transient=restriction.transient,
    )
    plan = problem.decode(problem.solve(SearchLimits(gap_tolerance=1e-3)))
    return Planned(graph, follow_batch(graph.graph, kinds, preset), plan)


def sorted_shape(shape: Shape) -> Shape:
    """Autodiff transposes some gradients."""
    return tuple(sorted(shape))
