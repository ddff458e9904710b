"""Let a stage sum up all its terms of a gradient in one accumulator.

Needs the placed form. `shardopt-split-sums` gives every layer that reads a weight an accumulator
of its own. Where several of these layers are one stage, nothing is gained by that: the stage would
hold the gradient twice, and sum it over its devices twice. Afterwards two results of the loop that
are only added are one result, if one stage accumulates both.

    %a:2 = mpmd.for (%zero, %zeros) … {           %a = mpmd.for (%zero) … {
      %m = add %acc, %u {layer = 0}                 %s = add %u, %t {layer = 0}
      %n = add %other, %t {layer = 1}      =>       %m = add %acc, %s {layer = 0}
      return %m, %n }                               return %m }
    %b = add %a#0, %a#1 {layer = 0}

It stands behind the choice of stages, which says what is together, and before all passes that copy
or outline what a stage does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir

from shardopt.dialect.program import StepProgram, read_program
from shardopt.dialect.stages import read_stages, stage_of_layers
from shardopt.ir.rewriting import defining
from shardopt.ir.splats import read_splat
from shardopt.passes.base import Pass, PassContext
from shardopt.passes.stages.carried_sums import (
    ADD,
    accumulation,
    additions,
    layer_of,
    leaves,
    read_once,
    return_from_body,
    rewrite_loop,
    total,
)
from shardopt.support.errors import UserError


@dataclass(frozen=True)
class JoinSums(Pass):
    """See the head of the file."""

    name = "shardopt-join-sums"
    summary = "let a stage sum up all its terms of a gradient in one accumulator"

    def run(self, module: ir.Module, pm: PassContext) -> None:
        try:
            program = read_program(module)
            stage_of = stage_of_layers(read_stages(program.main))
        except (UserError, ValueError) as error:
            raise pm.error(module.operation, str(error)) from error
        sums = list(_sums(program, stage_of))
        joined = [number for each in sums for group in each.groups for number in group[1:]]
        pm.statistic("sums joined", len(joined))
        if not joined:
            pm.preserve()
            return
        _write(program, sums, frozenset(joined))


@dataclass(frozen=True)
class _Sum:
    """An addition of results of the loop, and the carried values that become one each: the first of
    a group stays."""

    root: ir.Operation
    groups: tuple[tuple[int, ...], ...]


def _sums(program: StepProgram, stage_of: Mapping[int, int]) -> Iterator[_Sum]:
    number_of: dict[ir.Value, int] = {r: k for k, r in enumerate(program.loop.results)}
    inner = set[ir.Value]()
    for op in reversed(program.epilogue):
        if op.name != ADD or op.results[0] in inner:
            continue
        inner.update(added.results[0] for added in additions(op))
        by_stage: dict[int, list[int]] = {}
        for leaf in _terms(op):
            number = number_of.get(leaf)
            added = None if number is None else accumulation(program, number)
            stage = None if added is None else stage_of.get(layer_of(added[0]))
            if number is not None and stage is not None and read_once(leaf):
                by_stage.setdefault(stage, []).append(number)
        groups = [_joinable(program, numbers) for numbers in by_stage.values()]
        groups = [group for group in groups if len(group) > 1]
        if groups:
            yield _Sum(op, tuple(groups))


def _terms(root: ir.Operation) -> list[ir.Value]:
    return [leaf for operand in root.operands for leaf in leaves(operand)]


def _joinable(program: StepProgram, numbers: Sequence[int]) -> tuple[int, ...]:
    """The first, and those whose start adds nothing."""
    first, *others = numbers
    return (first, *(number for number in others if _starts_at_zero(program, number)))


def _starts_at_zero(program: StepProgram, number: int) -> bool:
    constant = defining(program.loop.operands[number], "stablehlo.constant")
    return constant is not None and read_splat(constant) == 0


def _write(program: StepProgram, sums: Sequence[_Sum], joined: frozenset[int]) -> None:
    """Handles of `program` are used up."""
    old, results = program.loop, list(program.loop.results)
    _write_body(program, [group for each in sums for group in each.groups], joined)
    with ir.InsertionPoint(old), old.location:
        after = rewrite_loop(program, joined, ())
    gone = {results[number] for number in joined}
    for each in sums:
        kept = [term for term in _terms(each.root) if term not in gone]
        with ir.InsertionPoint(each.root), each.root.location:
            left = total(kept, layer_of(each.root))
        dead = additions(each.root)
        each.root.results[0].replace_all_uses_with(left)
        for op in dead:
            op.erase()
    for before, value in after.items():
        before.replace_all_uses_with(value)
    zeros = {old.operands[number] for number in joined}
    old.erase()
    for zero in zeros:
        constant = defining(zero)
        if constant is not None and not any(True for _ in zero.uses):
            constant.erase()


def _write_body(
    program: StepProgram, groups: Sequence[tuple[int, ...]], joined: frozenset[int]
) -> None:
    """Let the body add the terms of a group to the accumulator of its first."""
    block, returned, dead = program.body_block, program.body_returned, list[ir.Operation]()
    carried = program.carried
    for first, *others in groups:
        found = [accumulation(program, number) for number in (first, *others)]
        added = [each for each in found if each is not None]
        argument, result = carried[first]
        layer, root = layer_of(added[0][0]), added[0][0]
        terms = [term for _, term in added]
        with ir.InsertionPoint.after(_last(program, [*terms, root.results[0]])), root.location:
            sum_of_terms = total(terms, layer)
            returned[result] = total([block.arguments[argument], sum_of_terms], layer)
        dead += [op for op, _ in added]
    gone = {carried[number][1] for number in joined}
    left = [value for k, value in enumerate(returned) if k not in gone]
    return_from_body(program, left, dead, {carried[number][0] for number in joined})


def _last(program: StepProgram, values: Sequence[ir.Value]) -> ir.Operation:
    """The last operation of the body that makes one of `values`."""
    wanted = set(values)
    return [op for op in program.body_ops if not wanted.isdisjoint(op.results)][-1]
