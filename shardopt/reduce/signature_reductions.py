"""Fewer arguments and results of functions, and fewer values that loops carry."""

from __future__ import annotations

from dataclasses import dataclass

from jaxlib.mlir import ir

from shardopt.ir.rewriting import op_name, operations
from shardopt.reduce.candidate import Subject
from shardopt.reduce.edits import (
    FUNCTION,
    Preference,
    StandIns,
    bodies,
    callers,
    end_of,
    entry,
    erase_unread,
    is_read,
    rebuilt,
    sync_signature,
    without,
)

_VALUES: tuple[Preference, ...] = ("constant", "argument")


@dataclass(frozen=True)
class DropResults:
    """Results of functions, with what only they read; with `keeps_unread` that stays, and may go
    from below. A caller that reads one gets a constant."""

    keeps_unread: bool = False

    @property
    def name(self) -> str:
        return "results alone" if self.keeps_unread else "results"

    def places(self, subject: Subject) -> int:
        return sum(len(end_of(entry(each)).operands) for each in bodies(subject.module))

    def apply(self, subject: Subject, chosen: range) -> None:
        first, stand_ins = 0, StandIns(_VALUES)
        for function in list(bodies(subject.module)):
            end = end_of(entry(function))
            count = len(end.operands)
            dropped = [k for k in range(count) if first + k in chosen]
            first += count
            if not dropped:
                continue
            kept = [k for k in range(count) if k not in dropped]
            for call in callers(function):
                _drop_call_results(call, dropped, kept, stand_ins)
            rebuilt(end, without(end.operands, dropped))
            sync_signature(function, kept=kept)
        stand_ins.finish()
        if not self.keeps_unread:
            erase_unread(subject.module.operation)


class DropArguments:
    """Arguments of functions; in the place of those that are read comes a constant."""

    name = "arguments"

    def places(self, subject: Subject) -> int:
        return sum(len(entry(each).arguments) for each in bodies(subject.module))

    def apply(self, subject: Subject, chosen: range) -> None:
        first = 0
        for function in list(bodies(subject.module)):
            arguments = list(entry(function).arguments)
            dropped = [k for k in range(len(arguments)) if first + k in chosen]
            first += len(arguments)
            left = [k for k in dropped if not _freed(arguments[k], function)]
            dropped = [k for k in dropped if k not in left]
            if not dropped:
                continue
            for call in callers(function):
                rebuilt(call, without(call.operands, dropped))
            for k in reversed(dropped):
                entry(function).erase_argument(k)
            kept = [k for k in range(len(arguments)) if k not in dropped]
            sync_signature(function, arguments=kept)


class DropCarried:
    """Values that a loop carries: inside and behind it, what goes in takes their place."""

    name = "carried values"

    def places(self, subject: Subject) -> int:
        return sum(len(op.results) for op in _loops(subject.module))

    def apply(self, subject: Subject, chosen: range) -> None:
        first = 0
        for op in _loops(subject.module):
            count = len(op.results)
            dropped = [k for k in range(count) if first + k in chosen]
            first += count
            if not dropped:
                continue
            for k in dropped:
                op.results[k].replace_all_uses_with(op.operands[k])
            for region in op.regions:
                _drop_carried(region.blocks[0], list(op.operands), dropped, count)
            kept = [k for k in range(count) if k not in dropped]
            rebuilt(op, without(op.operands, dropped), kept)


def _drop_call_results(
    call: ir.Operation, dropped: list[int], kept: list[int], stand_ins: StandIns
) -> None:
    for k in dropped:
        if is_read(call.results[k]):
            value = stand_ins.value(call.results[k], call)
            if value is None:
                raise ValueError("a result that is read has no stand-in")
            call.results[k].replace_all_uses_with(value)
    rebuilt(call, call.operands, kept)


def _freed(argument: ir.Value, function: ir.Operation) -> bool:
    """Whether nobody reads an argument any more: a constant takes its place where there is one."""
    if not is_read(argument):
        return True
    first = next(iter(entry(function).operations)).operation
    value = StandIns(("constant",)).value(argument, first)
    if value is None:
        return False
    argument.replace_all_uses_with(value)
    return True


def _drop_carried(
    block: ir.Block, operands: list[ir.Value], dropped: list[int], count: int
) -> None:
    for k in reversed(dropped):
        block.arguments[k].replace_all_uses_with(operands[k])
        block.erase_argument(k)
    end = end_of(block)
    if len(end.operands) == count:  # the condition of a loop returns something else
        rebuilt(end, without(end.operands, dropped))


def _loops(module: ir.Module) -> list[ir.Operation]:
    """Operations whose regions take and give what goes in and comes out, one by one."""
    return [op for op in operations(module.operation) if _is_loop(op)]


def _is_loop(op: ir.Operation) -> bool:
    types = [result.type for result in op.results]
    if not types or op_name(op) == FUNCTION or not len(op.regions):
        return False
    if [value.type for value in op.operands] != types:
        return False
    return all(
        len(region.blocks) == 1
        and [each.type for each in region.blocks[0].arguments][: len(types)] == types
        for region in op.regions
    )
