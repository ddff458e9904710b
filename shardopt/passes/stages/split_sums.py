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
their borders cost depends on it. A step that runs on one mesh as a whole stays as it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func as func_dialect
from jaxlib.mlir.dialects import mpmd, stablehlo

from shardopt.dialect.attributes import i64
from shardopt.dialect.mpmd import LAYER
from shardopt.dialect.program import StepProgram, read_program
from shardopt.graph.op_graph import SHARED
from shardopt.ir.rewriting import defining, symbol_name, terminator
from shardopt.ir.splats import splat_constant
from shardopt.options.names import StagePlanner
from shardopt.passes.base import Pass, PassContext, plan_option
from shardopt.support.errors import UserError

_ADD = "stablehlo.add"
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
    arguments, returned = program.body_block.arguments, program.body_returned
    for number, (argument, result) in enumerate(program.carried):
        root, accumulator = defining(returned[result], _ADD), arguments[argument]
        if root is None or not _read_once(accumulator) or not _read_once(returned[result]):
            continue
        terms = [value for value in root.operands if value != accumulator]
        if len(terms) != 1 or _layer(root) == SHARED:
            continue
        of_layer: dict[int, list[ir.Value]] = {_layer(root): []}
        for leaf in _leaves(terms[0]):
            of_layer.setdefault(_origin(leaf, _layer(root)), []).append(leaf)
        own, *others = of_layer
        # A sum that has no term of its own layer stays: nothing would be left to add there.
        if others and of_layer[own]:
            yield _Sum(
                number,
                own,
                tuple(of_layer[own]),
                {layer: tuple(of_layer[layer]) for layer in others},
            )


def _leaves(value: ir.Value) -> list[ir.Value]:
    """The terms of a sum, in the order in which they stand."""
    leaves, stack = [], [value]
    while stack:
        value = stack.pop()
        added = defining(value, _ADD)
        if added is None or not _read_once(value):
            leaves.append(value)
        else:
            stack += reversed(list(added.operands))
    return leaves


def _origin(value: ir.Value, layer: int) -> int:
    """The layer that makes a term, of the sum in `layer`."""
    for conversion in _conversions(value):
        value = conversion.operands[0]
    maker = defining(value)
    known = layer if maker is None else _layer(maker)
    return layer if known == SHARED else known


def _conversions(value: ir.Value) -> list[ir.Operation]:
    """What is done to a term, and to nothing else, the last first."""
    done: list[ir.Operation] = []
    while (maker := defining(value)) is not None and maker.name in _OF_A_TERM:
        value = maker.operands[0]
        if defining(value) is None or not _read_once(value):
            break
        done.append(maker)
    return done


def _read_once(value: ir.Value) -> bool:
    return sum(1 for _ in value.uses) == 1


def _layer(op: ir.Operation) -> int:
    return ir.IntegerAttr(op.attributes[LAYER]).value


def _write(program: StepProgram, sums: Sequence[_Sum]) -> None:
    """Handles of `program` are used up."""
    parts = [(each, layer) for each in sums for layer in each.others]
    made, old = _write_body(program, sums, parts), program.loop
    with ir.InsertionPoint(old), old.location:
        zeros = [
            _in_layer(splat_constant(value.type, 0), layer)
            for value, (_, layer) in zip(made, parts, strict=True)
        ]
        loop = _write_loop(program, zeros)
        results = list[ir.Value](loop.results)[: len(old.results)]
        for (each, _), part in zip(parts, list(loop.results)[len(old.results) :], strict=True):
            total = stablehlo.AddOp(results[each.number], part).result
            results[each.number] = _in_layer(total, each.layer)
    for before, after in zip(old.results, results, strict=True):
        before.replace_all_uses_with(after)
    old.erase()


def _write_body(
    program: StepProgram, sums: Sequence[_Sum], parts: Sequence[tuple[_Sum, int]]
) -> list[ir.Value]:
    """Let the body add terms to accumulators of their layers; returns what it makes of the new
    ones."""
    block, old = program.body_block, terminator(program.body_block)
    returned, dead = program.body_returned, list[ir.Operation]()
    for each in sums:
        for layer, terms in {each.layer: each.own, **each.others}.items():
            for op in chain.from_iterable(map(_conversions, terms)):
                op.attributes[LAYER] = i64(layer)
        number, result = program.carried[each.number]
        root = defining(returned[result])
        assert root is not None, "it is an addition"
        returned[result] = _added(block.arguments[number], each.own, root, each.layer)
        dead += _additions(root)
    made = []
    for each, layer in parts:
        terms = each.others[layer]
        argument = block.add_argument(terms[0].type, old.location)
        made.append(_added(argument, terms, old, layer))
    func_dialect.ReturnOp([*returned, *made], loc=old.location, ip=ir.InsertionPoint(old))
    old.erase()
    for op in dead:
        op.erase()
    types = [value.type for value in block.arguments], [v.type for v in (*returned, *made)]
    program.body.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(*types))
    return made


def _added(
    accumulator: ir.Value, terms: Sequence[ir.Value], before: ir.Operation, layer: int
) -> ir.Value:
    """The sum of terms is added as one."""
    first, *others = terms
    with ir.InsertionPoint(before), before.location:
        for term in others:
            first = _in_layer(stablehlo.AddOp(first, term).result, layer)
        return _in_layer(stablehlo.AddOp(accumulator, first).result, layer)


def _in_layer(value: ir.Value, layer: int) -> ir.Value:
    maker = defining(value)
    assert maker is not None, "just made"
    maker.attributes[LAYER] = i64(layer)
    return value


def _additions(root: ir.Operation) -> list[ir.Operation]:
    """The additions of a sum, readers first."""
    found, stack = [], [root]
    while stack:
        op = stack.pop()
        found.append(op)
        for value in op.operands:
            maker = defining(value, _ADD)
            if maker is not None and _read_once(value):
                stack.append(maker)
    return found


def _write_loop(program: StepProgram, zeros: Sequence[ir.Value]) -> ir.Operation:
    """The loop once more before the old one, with accumulators more."""
    old, call = program.loop, program.call
    start = [*old.operands, *zeros]
    types = [value.type for value in start]
    loop = mpmd.ForOp(types, start, ir.IntegerAttr(old.attributes["iterations"])).operation
    for name in old.attributes:
        loop.attributes[name] = old.attributes[name]
    *carried, index = program.loop_block.arguments
    kinds = [*types, index.type]
    block = loop.regions[0].blocks.append(*kinds, arg_locs=[old.location] * len(kinds))
    *now, now_index = block.arguments
    values: dict[ir.Value, ir.Value] = {index: now_index, **dict(zip(carried, now, strict=False))}
    operands = [values.get(value, value) for value in call.operands] + now[len(carried) :]
    results = [*(value.type for value in call.results), *types[len(carried) :]]
    with ir.InsertionPoint(block), call.location:
        again = mpmd.CallOp(results, operands, symbol_name(program.body)).operation
        for name in call.attributes:
            again.attributes[name] = call.attributes[name]
        made: dict[ir.Value, ir.Value] = dict(zip(call.results, again.results, strict=False))
        yielded = [made[value] for value in terminator(program.loop_block).operands]
        mpmd.ReturnOp([*yielded, *list(again.results)[len(call.results) :]])
    return loop
