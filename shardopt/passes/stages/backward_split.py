"""Split fragments of the backward into what other stages wait for and what only this stage needs.

    %dx, %dw = mpmd.fragment<…> (%g, %x, %w) {kind = "bwd"} {
      %1 = dot_general %g, %w            // other stages wait for it
      %2 = dot_general %x, %g            // nobody does
      return %1, %2 }
 =>
    %dx = mpmd.fragment<…> (%g, %w) {kind = "bwd_input"} { %1 = dot_general %g, %w ; return %1 }
    %dw = mpmd.fragment<…> (%x, %g) {kind = "bwd_weight"} { %2 = dot_general %x, %g ; return %2 }

What the second half reads of the first becomes a result of the first, and is kept between the two.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import mpmd

from shardopt.dialect.mpmd import KIND, FragmentHead, fragment, mesh_tensor_type
from shardopt.dialect.program import StepProgram, body_of
from shardopt.extract.op_graph import CHEAP_TO_CLONE, reads
from shardopt.ir.rewriting import defining, terminator
from shardopt.passes.stages.outlining import clone_into

_FRAGMENT = "mpmd.fragment"
# What another fragment or mesh waits for runs in the first half; the kind of that half, by the kind
# of the whole.
_FIRST_HALF = {"bwd": "bwd_input", "fwd": "fwd"}
_SECOND_HALF = "bwd_weight"


@dataclass(frozen=True)
class SplitCounts:
    """How many fragments became two, and how many values are kept between their halves."""

    fragments: int
    kept_values: int


def split_backwards(program: StepProgram) -> SplitCounts:
    """Split every backward fragment of the body, and the forward fragments that hold the backward
    of their stage.

    A backward that nobody waits for, as that of the first stage, becomes a second half as a whole.
    """
    fragments = [op for op in program.body_ops if op.name == _FRAGMENT]
    backward = {_stage(op) for op in fragments if _kind(op) == "bwd"}
    split = kept = 0
    for op in fragments:
        holds_backward = bool(backward) and _kind(op) == "fwd" and _stage(op) not in backward
        if _kind(op) != "bwd" and not holds_backward:
            continue
        urgent = [number for number, result in enumerate(op.results) if _is_awaited(result)]
        if not urgent and _kind(op) == "bwd":
            op.attributes[KIND] = ir.StringAttr.get(_SECOND_HALF)
        elif urgent and len(urgent) < len(op.results):
            kept += _Halves(op, urgent).write()
            split += 1
    return SplitCounts(split, kept)


def _kind(op: ir.Operation) -> str:
    return ir.StringAttr(op.attributes[KIND]).value


def _stage(op: ir.Operation) -> int:
    return ir.IntegerAttr(op.attributes["stage_id"]).value


def _is_awaited(result: ir.Value) -> bool:
    """Whether anything but the end of the body reads it."""
    return any(use.owner.operation.name != "func.return" for use in result.uses)


class _Halves:
    """One fragment, and which of its operations the urgent results need."""

    def __init__(self, op: ir.Operation, urgent: list[int]) -> None:
        self.op = op
        self.block = op.regions[0].blocks[0]
        self.ops = body_of(self.block)
        self.returned = list(terminator(self.block).operands)
        self.urgent = dict.fromkeys(urgent)
        self.first = self._ancestors(self.returned[number] for number in urgent)
        self.cheap = self._cheap_to_clone()

    def _ancestors(self, values: Iterable[ir.Value]) -> dict[ir.Operation, None]:
        ancestors: dict[ir.Operation, None] = {}
        stack = list(values)
        while stack:
            op = defining(stack.pop())
            if op is not None and op not in ancestors:
                ancestors[op] = None
                stack += reads(op)
        return ancestors

    def _cheap_to_clone(self) -> dict[ir.Operation, None]:
        """Operations on constants alone: both halves make their own."""
        cheap: dict[ir.Operation, None] = {}
        for op in self.ops:
            makers = [defining(value) for value in reads(op)]
            if op.name in CHEAP_TO_CLONE or (makers and all(maker in cheap for maker in makers)):
                cheap[op] = None
        return cheap

    def write(self) -> int:
        """Replace the fragment by its halves; how many values are kept between them."""
        first = [op for op in self.ops if op in self.first]
        rest = [op for op in self.ops if op not in self.first]
        # Cheap operations that both halves read are made twice, instead of kept between them.
        needed = self._ancestors(v for op in rest for v in reads(op) if defining(v) in self.cheap)
        second = [
            op for op in self.ops if op not in self.first or (op in needed and op in self.cheap)
        ]
        made_first = {result for op in first for result in op.results}
        made_second = {result for op in second for result in op.results}
        others = [number for number in range(len(self.returned)) if number not in self.urgent]
        needed_later = dict.fromkeys(v for op in second for v in reads(op))
        needed_later.update(dict.fromkeys(self.returned[number] for number in others))
        urgent_values = [self.returned[number] for number in self.urgent]
        kept = [
            v
            for v in needed_later
            if v in made_first and v not in made_second and v not in urgent_values
        ]
        outside = dict(zip(self.block.arguments, self.op.operands, strict=True))
        results = self._fragment(
            _FIRST_HALF[_kind(self.op)], first, [*urgent_values, *kept], outside
        )
        handed: dict[ir.Value, ir.Value] = {
            **outside,
            **dict(zip([*urgent_values, *kept], results, strict=True)),
        }
        for number, result in zip(self.urgent, results, strict=False):
            self.op.results[number].replace_all_uses_with(result)
        late = self._fragment(
            _SECOND_HALF, second, [self.returned[number] for number in others], handed
        )
        for number, result in zip(others, late, strict=True):
            self.op.results[number].replace_all_uses_with(result)
        self.op.erase()
        return len(kept)

    def _fragment(
        self,
        kind: str,
        ops: list[ir.Operation],
        returned: list[ir.Value],
        outside: dict[ir.Value, ir.Value],
    ) -> list[ir.Value]:
        """A fragment before the old one with copies of `ops`; `outside[v]` is what it is given for
        value v."""
        made = {result for op in ops for result in op.results}
        inputs = [
            v
            for v in dict.fromkeys([*(v for op in ops for v in reads(op)), *returned])
            if v not in made
        ]
        mesh = ir.StringAttr(self.op.attributes["mesh_name"]).value
        origins = ir.ArrayAttr(self.op.attributes["origin"])
        origin = tuple(str(name).split('"')[1] for name in origins)
        new, block = fragment(
            FragmentHead(mesh, origin, _stage(self.op), kind),
            [outside[v] for v in inputs],
            [mesh_tensor_type(mesh, v.type) for v in returned],
            loc=self.op.location,
            ip=ir.InsertionPoint(self.op),
        )
        inner: dict[ir.Value, ir.Value] = dict(zip(inputs, block.arguments, strict=True))
        point = ir.InsertionPoint(block)
        for op in ops:
            clone_into(op, inner, point)
        mpmd.ReturnOp([inner[v] for v in returned], loc=self.op.location, ip=point)
        return list(new.results)
