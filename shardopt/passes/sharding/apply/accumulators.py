"""What the microbatch loop accumulates, written so that it can be sharded and summed up on its own.

    %0 = mpmd.fragment … {                       %0:2 = mpmd.fragment … {
      %z = constant 0                              %z = constant 0 ; %y = constant 0
      return %z }                                  return %z, %y }
    %1:2 = mpmd.for (%0, %0) …              =>   %1:2 = mpmd.for (%0#0, %0#1) …
    mpmd.fragment … (%1#0, %1#1) (%a, %b) {      mpmd.fragment … (%1#0, %1#1) (%a, %b) {
      %m = multiply %a, %a                         %s = custom_call @Sharding(%a)  (a sum point)
                                                   %m = multiply %s, %s

Accumulators that start from one value would have to end with one sharding, so each gets a constant
of its own. Behind the loop stand *sum points*, identities in which a value that left the loop as an
unfinished sum is summed, once for all its readers. `drop_idle_sum_points` takes out those where
nothing happens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from jaxlib.mlir import ir

from shardopt.dialect.mpmd import SUM_POINT, TOPOLOGY, mesh_tensor_type, parse_mesh_tensor
from shardopt.extract.op_graph import GraphReader
from shardopt.ir.rewriting import defining, functions, identity, operations, terminator
from shardopt.mesh.mesh import Sharding

_FRAGMENT = "mpmd.fragment"


def separate_accumulators(module: ir.Module) -> int:
    """Give every value that a loop carries and that starts as a constant a constant of its own; how
    many got one."""
    starts_of: dict[ir.Operation, list[_Start]] = {}
    for loop in _loops(module):
        seen: set[ir.Value] = set()
        for position, value in enumerate(loop.operands):
            fragment = defining(value, _FRAGMENT)
            constant = (
                None
                if fragment is None
                else _returned_constant(fragment, ir.OpResult(value).result_number)
            )
            if (
                fragment is not None
                and constant is not None
                and (value in seen or _has_other_readers(constant))
            ):
                starts_of.setdefault(fragment, []).append(_Start(loop, position, constant))
            seen.add(value)
    for fragment, starts in starts_of.items():
        results = _return_copies(fragment, [start.constant for start in starts])
        for start, result in zip(starts, results, strict=True):
            start.loop.operands[start.position] = result
    return sum(map(len, starts_of.values()))


def add_sum_points(module: ir.Module) -> int:
    """Put a sum point on every result of a loop, in each fragment that reads it; how many there
    are."""
    count = 0
    for loop in _loops(module):
        for use in [use for result in loop.results for use in result.uses]:
            fragment = use.owner.operation
            if fragment.name == _FRAGMENT:
                argument = fragment.regions[0].blocks[0].arguments[use.operand_number]
                if any(True for _ in argument.uses):
                    _add_sum_point(argument, fragment.location)
                    count += 1
    return count


def drop_idle_sum_points(reader: GraphReader, shardings: Mapping[ir.Value, Sharding]) -> int:
    """Remove the sum points that end in the sharding that they start from; how many."""
    removed = 0
    for handle in reader.handles:
        if SUM_POINT not in handle.attributes:
            continue
        del handle.attributes[SUM_POINT]
        if shardings[handle.operands[0]] == shardings[handle.results[0]]:
            handle.results[0].replace_all_uses_with(handle.operands[0])
            handle.erase()
            removed += 1
    return removed


class _Start(NamedTuple):
    """A value that `loop` carries, by its position, and the constant that it starts as."""

    loop: ir.Operation
    position: int
    constant: ir.Operation


def _loops(module: ir.Module) -> list[ir.Operation]:
    if not any(TOPOLOGY in function.attributes for function in functions(module)):
        return []  # a plain module, of which all operations would be looked at
    return operations(module.operation, ("mpmd.for",))


def _returned_constant(fragment: ir.Operation, number: int) -> ir.Operation | None:
    """The constant that a fragment returns as its result of this number."""
    return defining(
        terminator(fragment.regions[0].blocks[0]).operands[number], "stablehlo.constant"
    )


def _has_other_readers(constant: ir.Operation) -> bool:
    return sum(1 for _ in constant.results[0].uses) > 1


def _return_copies(fragment: ir.Operation, constants: Sequence[ir.Operation]) -> Sequence[ir.Value]:
    """Let the fragment return a copy of each constant as well; the new results."""
    end = terminator(fragment.regions[0].blocks[0])
    mesh = parse_mesh_tensor(fragment.results[0].type).mesh
    copies = [constant.clone(ip=ir.InsertionPoint(end)).results[0] for constant in constants]
    returned = [*end.operands, *copies]
    ir.Operation.create(end.name, [], returned, loc=end.location, ip=ir.InsertionPoint(end))
    end.erase()
    # An operation cannot grow results: the fragment is made anew around its block.
    types = [
        *(r.type for r in fragment.results),
        *(mesh_tensor_type(mesh, copy.type) for copy in copies),
    ]
    attributes = {name: fragment.attributes[name] for name in fragment.attributes}
    new = ir.Operation.create(
        _FRAGMENT,
        types,
        list(fragment.operands),
        attributes,
        regions=1,
        loc=fragment.location,
        ip=ir.InsertionPoint(fragment),
    )
    fragment.regions[0].blocks[0].append_to(new.regions[0])
    kept = len(fragment.results)
    for old, result in zip(fragment.results, list(new.results)[:kept], strict=True):
        old.replace_all_uses_with(result)
    fragment.erase()
    return list(new.results)[kept:]


def _add_sum_point(argument: ir.Value, location: ir.Location) -> None:
    block = ir.BlockArgument(argument).owner
    point = identity(argument, location, ir.InsertionPoint.at_block_begin(block))
    point.attributes[SUM_POINT] = ir.UnitAttr.get()
    argument.replace_all_uses_except(point.results[0], point)
