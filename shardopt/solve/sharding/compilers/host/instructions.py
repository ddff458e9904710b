"""A graph's operations as XLA's backend for hosts has them before it fuses.

* Equal operations on equal operands are one (xla/hlo/transforms/simplifiers/hlo_cse.cc).
* A matrix product takes its operands as [batch, rows, contracted] and [batch, contracted, columns],
  and each of these as one dimension (xla/hlo/transforms/expanders/dot_decomposer.cc): an operand
  whose dimensions lie otherwise is written once more, in that order, and the result gets its shape
  back. What only swaps the last two is folded into the product
  (xla/service/transpose_folding.cc).
* A division by something smaller that is broadcast, and that nothing else reads, is a product with
  its inverse (xla/hlo/transforms/simplifiers/algebraic_simplifier.cc). Of several such divisions by
  the same the first alone is one: then the inverse reads it, too.
* The gradient of a maximum over windows is a search for the places of the maxima, and a scatter
  (xla/service/select_and_scatter_expander.cc).

    %y = dot_general %x, %g contracting [0, 1] x [0, 1]     // both f32[16,64,256]
    ->
    %t = transpose %x                                       // f32[256,1024]
    %r = reshape %g                                         // f32[1024,256]
    %y = dot %t, %r
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from math import prod

from shardopt.graph.op_graph import MARKER, Op, OpGraph

# What nothing but name, operands and sharding rule tells apart.
_ATTRIBUTELESS = frozenset({
    "abs", "add", "and", "broadcast_in_dim", "convert", "cosine", "divide", "exponential", "log",
    "log_plus_one", "logistic", "maximum", "minimum", "multiply", "negate", "not", "or", "power",
    "reshape", "rsqrt", "select", "sign", "sine", "sqrt", "subtract", "tanh", "transpose",
})  # fmt: skip
_FLOATS = frozenset({"bf16", "f16", "f32", "f64"})
_BATCH, _ROWS, _CONTRACTED = "batch", "rows", "contracted"
_ORDERS = ((_BATCH, _ROWS, _CONTRACTED), (_BATCH, _CONTRACTED, _ROWS))


@dataclass(frozen=True)
class Instruction:
    """Reads and writes *buffers*; `op` is the operation of the graph, None for what the compiler
    adds. `scope` are those that can share what is made in it, `waits` the buffers that came through
    a barrier together with an operand."""

    name: str
    operands: tuple[int, ...]
    results: tuple[int, ...]
    op: int | None
    scope: tuple[int, int]
    waits: tuple[int, ...] = ()
    reducer: str | None = None

    @property
    def fragment(self) -> int:
        return self.scope[0]


@dataclass
class Program:
    """`instructions` in an order in which they can run. Buffer b holds what tensor `tensors[b]`
    does; those before the first added one are the tensors themselves. `equal[t]` is the tensor
    whose buffer has the elements of tensor t. `kept` are buffers that somebody reads who is no
    instruction of one program: outputs and barriers."""

    graph: OpGraph
    equal: list[int]
    instructions: list[Instruction] = field(default_factory=list)
    tensors: list[int] = field(default_factory=list)
    shapes: list[tuple[int, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tensors = list(range(len(self.graph.tensors)))
        self.shapes = [tensor.shape for tensor in self.graph.tensors]
        self.kept = {self.equal[t] for t in (*self.graph.outputs, *self.graph.fenced)}

    def finish(self) -> Program:
        self.makers = {
            buffer: index
            for index, instruction in enumerate(self.instructions)
            for buffer in instruction.results
        }
        self.readers: list[dict[int, None]] = [{} for _ in self.tensors]
        for index, instruction in enumerate(self.instructions):
            for buffer in instruction.operands:
                self.readers[buffer][index] = None
        return self

    def add_buffer(self, tensor: int, shape: tuple[int, ...]) -> int:
        self.tensors.append(tensor)
        self.shapes.append(shape)
        return len(self.tensors) - 1

    def dtype(self, buffer: int) -> str:
        return self.graph.tensors[self.tensors[buffer]].dtype

    def elements(self, buffer: int) -> int:
        return prod(self.shapes[buffer])

    def users(self, buffer: int) -> int:
        return len(self.readers[buffer]) + (buffer in self.kept)

    def is_made_by(self, buffer: int, fragment: int) -> bool:
        maker = self.makers.get(buffer)
        return maker is not None and self.instructions[maker].fragment == fragment

    def leaves(self, buffer: int) -> bool:
        """Whether it is an output of the program, or of a fragment for another one."""
        return buffer in self.graph.outputs or any(
            not self.is_made_by(buffer, self.instructions[reader].fragment)
            for reader in self.readers[buffer]
        )

    def changes_only_shape(self, instruction: Instruction) -> bool:
        """Whether the result is the operand's buffer, read with other dimensions."""
        if instruction.name == "reshape":
            return True
        if instruction.name not in ("broadcast_in_dim", "transpose") or instruction.op is None:
            return False
        source, target = instruction.operands[0], instruction.results[0]
        rule = self.graph.ops[instruction.op].rule
        if rule is None or self.elements(source) != self.elements(target):
            return False
        sides = ((rule.operands[0], source), (rule.results[0], target))
        before, after = (
            [dim for dim, size in zip(dims, self.shapes[buffer], strict=True) if size != 1]
            for dims, buffer in sides
        )
        return before == after


def instructions_of(graph: OpGraph) -> Program:
    return _Reader(graph).run()


def _equal_tensors(graph: OpGraph) -> list[int]:
    equal, known = list(range(len(graph.tensors))), dict[object, int]()
    outputs = set(graph.outputs)
    for op in graph.ops:
        if op.name not in _ATTRIBUTELESS or op.rule is None or op.results[0] in outputs:
            continue
        result, tensor = op.results[0], graph.tensors[op.results[0]]
        operands = tuple(equal[t] for t in op.operands)
        key = (op.name, operands, tensor.shape, tensor.dtype, op.rule, op.scope, op.waits)
        equal[result] = known.setdefault(key, result)
    return equal


class _Reader:
    def __init__(self, graph: OpGraph) -> None:
        self.graph = graph
        self.makers = graph.producers()
        self.outputs = set(graph.outputs)
        self.program = Program(graph, _equal_tensors(graph))
        # What was added for one product serves others too.
        self.added: dict[object, int] = {}

    def run(self) -> Program:
        equal = self.program.equal
        for index, op in enumerate(self.graph.ops):
            duplicate = len(op.results) == 1 and equal[op.results[0]] != op.results[0]
            if duplicate or op.name == "constant" or (op.name == MARKER and not op.operands):
                continue
            if op.name == "dot_general" and op.rule is not None:
                self._add_product(index, op)
            elif op.name == "select_and_scatter":
                self._add_selection(index, op)
            else:
                self._add(index, op, tuple(equal[t] for t in op.operands), op.results)
        self._invert_divisors()
        return self.program.finish()

    def _add(self, index: int, op: Op, operands: tuple[int, ...], results: tuple[int, ...]) -> None:
        waits = tuple(dict.fromkeys(self.program.equal[t] for t in op.waits))
        self.program.instructions.append(
            Instruction(op.name, operands, results, index, op.scope, waits, op.reducer)
        )

    def _add_product(self, index: int, op: Op) -> None:
        kinds = _kinds_of_dims(op)
        is_canonical = all(map(_is_canonical, kinds))
        operands = tuple(self._operand(op, side, kinds[side], is_canonical) for side in range(2))
        [result] = op.results
        shape = self.graph.tensors[result].shape
        if is_canonical or len(shape) < 3:
            self._add(index, op, operands, op.results)
            return
        flat = self.program.add_buffer(result, _collapsed(shape))
        self._add(index, op, operands, (flat,))
        self.program.instructions.append(Instruction("reshape", (flat,), (result,), None, op.scope))

    def _add_selection(self, index: int, op: Op) -> None:
        """The gradient of a maximum over windows: where in the operand the maximum of each window
        is, a number a dimension, and a scatter to there."""
        program = self.program
        operand, source, *rest = (program.equal[t] for t in op.operands)
        places, maxima = (
            [
                program.add_buffer(program.tensors[buffer], program.shapes[buffer])
                for _ in program.shapes[operand]
            ]
            for buffer in (operand, source)
        )
        for place in places:
            program.instructions.append(Instruction("places", (), (place,), None, op.scope))
        program.instructions.append(
            Instruction("reduce_window", (operand, *places), tuple(maxima), None, op.scope)
        )
        self._add(index, op, (source, *rest, *maxima), op.results)

    def _invert_divisors(self) -> None:
        program = self.program
        reads = Counter(chain.from_iterable(each.operands for each in program.instructions))
        reads.update(program.kept)
        broadcasts = {
            each.results[0]: each for each in program.instructions
            if each.name == "broadcast_in_dim" and self._is_divisor(each.operands[0])
        }  # fmt: skip
        before, program.instructions = program.instructions, []
        for each in before:
            spread = broadcasts.get(each.operands[1]) if each.name == "divide" else None
            if spread is None or reads[spread.operands[0]] > 1:
                program.instructions.append(each)
                continue
            [divisor], [spread_divisor] = spread.operands, spread.results
            reads[divisor] += 1
            inverse, factor = (
                program.add_buffer(program.tensors[buffer], program.shapes[buffer])
                for buffer in (divisor, spread_divisor)
            )
            program.instructions += [
                Instruction("divide", (divisor,), (inverse,), None, each.scope),
                Instruction("broadcast_in_dim", (inverse,), (factor,), None, each.scope),
                replace(each, name="multiply", operands=(each.operands[0], factor)),
            ]

    def _is_divisor(self, buffer: int) -> bool:
        """Inverses of constants are constants."""
        tensor = self.program.tensors[buffer]
        maker = self.makers[tensor]
        is_constant = maker >= 0 and self.graph.ops[maker].name == "constant"
        return not is_constant and self.graph.tensors[tensor].dtype in _FLOATS

    def _operand(self, op: Op, side: int, kinds: Sequence[str], is_canonical: bool) -> int:
        """The buffer that the product reads."""
        tensor, permutation = self._behind_transposes(op, op.operands[side])
        kinds = [kinds[dim] for dim in permutation]
        shape = self.graph.tensors[tensor].shape
        buffer = self.program.equal[tensor]
        wanted = [dim for kind in _ORDERS[side] for dim, each in enumerate(kinds) if each == kind]
        moved = [dim for dim in wanted if shape[dim] != 1]
        if moved != sorted(moved) and not _is_canonical(kinds):
            return self._added("transpose", op, buffer, tuple(wanted))
        if not is_canonical and len(shape) > 2:
            return self._added("reshape", op, buffer, ())
        return buffer

    def _behind_transposes(self, op: Op, tensor: int) -> tuple[int, list[int]]:
        """The tensor that becomes an operand by transposes alone, and which dimension of the
        operand each of its own is."""
        permutation = list(range(len(self.graph.tensors[tensor].shape)))
        while (
            (maker := self.makers[tensor]) >= 0
            and tensor not in self.outputs
            and tensor not in op.waits
            and (step := _transpose_of(self.graph.ops[maker], op)) is not None
        ):
            tensor = self.graph.ops[maker].operands[0]
            permutation = [permutation[dim] for dim in step]
        return tensor, permutation

    def _added(self, name: str, op: Op, buffer: int, order: tuple[int, ...]) -> int:
        key = (name, buffer, order, op.scope, op.waits)
        if key not in self.added:
            shape = _collapsed(self.program.shapes[buffer])
            self.added[key] = self.program.add_buffer(self.program.tensors[buffer], shape)
            waits = tuple(dict.fromkeys(self.program.equal[t] for t in op.waits))
            self.program.instructions.append(
                Instruction(name, (buffer,), (self.added[key],), None, op.scope, waits)
            )
        return self.added[key]


def _collapsed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Some shape of as many elements that is not the same: which one, nobody asks."""
    return (prod(shape), 1)


def _transpose_of(op: Op, reader: Op) -> list[int] | None:
    """For each dimension of the operand of a transpose, which of its result's it is; None for other
    operations, and where it cannot be folded into a reader."""
    if op.name != "transpose" or op.rule is None or op.waits or op.scope != reader.scope:
        return None
    if len(set(op.rule.results[0])) < len(op.rule.results[0]):  # several dimensions of one element
        return None
    place = {dim: position for position, dim in enumerate(op.rule.results[0])}
    return [place[dim] for dim in op.rule.operands[0]]


def _kinds_of_dims(op: Op) -> list[list[str]]:
    """What the dimensions of both operands of a product are to it; `rows` stands for columns
    too."""
    rule = op.rule
    assert rule is not None, "the caller looks"
    left, right = rule.operands
    shared = {factor for dim in left for factor in dim} & {f for dim in right for f in dim}

    def kind(dim: tuple[int, ...]) -> str:
        if shared.isdisjoint(dim):
            return _ROWS
        return _BATCH if rule.reduction.isdisjoint(dim) else _CONTRACTED

    return [[kind(dim) for dim in dims] for dims in (left, right)]


def _is_canonical(kinds: Sequence[str]) -> bool:
    """Whether the product takes an operand of such dimensions as it is."""
    batch = kinds.count(_BATCH)
    rest = kinds[batch:]
    return _BATCH not in rest and rest.count(_ROWS) <= 1 and rest.count(_CONTRACTED) <= 1
