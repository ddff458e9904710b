"""Let every layer sum up its own terms of a gradient.

Needs the clustered form. A weight that several layers read, such as an embedding that is tied to
the head of a model, has a gradient of as many terms. What a microbatch adds to the accumulator is
their sum, and in a pipeline each term would travel to the layer of the sum in every microbatch.
Afterwards every such layer has an accumulator of its own, and the sums are added once, behind the
loop (as Alpa does with gradients across layers: alpa/pipeline_parallel/apply_grad.py).

    %a = mpmd.for (%zero) … {                     %a:2 = mpmd.for (%zero, %zeros) … {
      %t = dot_general … {layer = 1}                %t = dot_general … {layer = 1}
      %u = dot_general … {layer = 0}                %u = dot_general … {layer = 0}
      %s = add %u, %t {layer = 0}           =>      %m = add %acc, %u {layer = 0}
      %m = add %acc, %s {layer = 0}                 %n = add %other, %t {layer = 1}
      return %m }                                   return %m, %n }
                                                  %b = add %a#0, %a#1 {layer = 0}

Conversions and transpositions of one term go with it. It stands before stages are chosen, as what
their borders cost depends on it; `shardopt-join-sums` joins what lands in one stage. A step that
runs on one mesh as a whole stays as it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from jaxlib.mlir import ir

from shardopt.dialect.attributes import i64
from shardopt.dialect.mpmd import LAYER
from shardopt.dialect.program import StepProgram, read_program
from shardopt.graph.op_graph import SHARED
from shardopt.ir.rewriting import defining, terminator
from shardopt.ir.splats import splat_constant
from shardopt.options.names import StagePlanner
from shardopt.passes.base import Pass, PassContext, plan_option
from shardopt.passes.stages.carried_sums import (
    accumulation,
    additions,
    in_layer,
    layer_of,
    leaves,
    read_once,
    return_from_body,
    rewrite_loop,
    total,
)
from shardopt.support.errors import UserError

# What may be done to every term as well as to their sum, and belongs to one term here.
_OF_A_TERM = frozenset({"stablehlo.convert", "stablehlo.reshape", "stablehlo.transpose"})


@dataclass(frozen=True)
class SplitSums(Pass):
    """See the head of the file."""

    name = "shardopt-split-sums"
    summary = "let every layer sum up its own terms of a gradient"

    num_stages: int = plan_option("stages")
    inter_op: StagePlanner = plan_option("inter_op")

    def run(self, module: ir.Module, pm: PassContext) -> None:
        try:
            program = read_program(module)
        except (UserError, ValueError) as error:
            raise pm.error(module.operation, str(error)) from error
        is_cut = self.num_stages != 1 and self.inter_op != "intra-only"
        sums = list(_sums(program)) if is_cut and program.num_microbatches > 1 else []
        pm.statistic("sums split", len(sums))
        if not sums:
            pm.preserve()
            return
        _write(program, sums)


@dataclass(frozen=True)
class _Sum:
    """Carried value `number`, to which the body adds terms: `own` in the layer of the sum, and
    those of other layers."""

    number: int
    layer: int
    own: tuple[ir.Value, ...]
    others: Mapping[int, tuple[ir.Value, ...]]


def _sums(program: StepProgram) -> Iterable[_Sum]:
    for number in range(len(program.carried)):
        added = accumulation(program, number)
        if added is None or layer_of(added[0]) == SHARED:
            continue
        own = layer_of(added[0])
        of_layer: dict[int, list[ir.Value]] = {own: []}
        for leaf in leaves(added[1]):
            of_layer.setdefault(_origin(leaf, own), []).append(leaf)
        others = {layer: tuple(terms) for layer, terms in of_layer.items() if layer != own}
        # A sum that has no term of its own layer stays: nothing would be left to add there.
        if others and of_layer[own]:
            yield _Sum(number, own, tuple(of_layer[own]), others)


def _origin(value: ir.Value, layer: int) -> int:
    """The layer that makes a term, of the sum in `layer`."""
    for conversion in _conversions(value):
        value = conversion.operands[0]
    maker = defining(value)
    known = layer if maker is None else layer_of(maker)
    return layer if known == SHARED else known


def _conversions(value: ir.Value) -> list[ir.Operation]:
    """What is done to a term, and to nothing else, the last first."""
    done: list[ir.Operation] = []
    while (maker := defining(value)) is not None and maker.name in _OF_A_TERM:
        value = maker.operands[0]
        if defining(value) is None or not read_once(value):
            break
        done.append(maker)
    return done


def _write(program: StepProgram, sums: Sequence[_Sum]) -> None:
    """Handles of `program` are used up."""
    parts = [(each, layer) for each in sums for layer in each.others]
    old = program.loop
    with ir.InsertionPoint(old), old.location:
        zeros = []
        for each, layer in parts:
            type_ = each.others[layer][0].type
            zeros.append(in_layer(splat_constant(type_, 0), layer))
        _write_body(program, sums, parts)
        after = rewrite_loop(program, (), zeros)
        for (each, _), zero in zip(parts, zeros, strict=True):
            result = old.results[each.number]
            after[result] = total([after[result], after[zero]], each.layer)
    for before in old.results:
        before.replace_all_uses_with(after[before])
    old.erase()


def _write_body(
    program: StepProgram, sums: Sequence[_Sum], parts: Sequence[tuple[_Sum, int]]
) -> None:
    """Let the body add terms to accumulators of their layers, those of `parts` behind all
    others."""
    block, end = program.body_block, terminator(program.body_block)
    returned, dead = program.body_returned, list[ir.Operation]()
    carried = program.carried
    for each in sums:
        for layer, terms in {each.layer: each.own, **each.others}.items():
            for op in chain.from_iterable(map(_conversions, terms)):
                op.attributes[LAYER] = i64(layer)
        argument, result = carried[each.number]
        root = defining(returned[result])
        assert root is not None, "it is an addition"
        returned[result] = _added(block.arguments[argument], each.own, root, each.layer)
        dead += additions(root)
    for each, layer in parts:
        terms = each.others[layer]
        accumulator = block.add_argument(terms[0].type, end.location)
        returned.append(_added(accumulator, terms, end, layer))
    return_from_body(program, returned, dead)


def _added(
    accumulator: ir.Value, terms: Sequence[ir.Value], before: ir.Operation, layer: int
) -> ir.Value:
    """The sum of terms is added as one."""
    with ir.InsertionPoint(before), before.location:
        return total([accumulator, total(terms, layer)], layer)
