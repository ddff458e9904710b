"""The loop in which a step accumulates gradients over parts of its batch, as many people write it.

    %g:4 = while(%i = 0, %x = %xs, %w = %w0, %a = %zeros) do {
      %p = dynamic_slice %x, %i, …      a part of the batch: iteration k reads block k
      %d = gradient of %p and %w        whatever the step computes of it
      %n = add %a, %d                   a sum: nothing else reads %a
      return %i + 1, %x, %w, %n }

Such a loop is a loop over microbatches. `find_accumulation` tells what each of its carried values
is, or why the loop is none: it may be one over layers or over time, or hand something on from one
part to the next."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from jaxlib.mlir import ir

from shardopt.extract.op_graph import reads, upstream
from shardopt.extract.op_work import read_work
from shardopt.extract.step_state import replaced_arguments
from shardopt.graph.microbatching import Split
from shardopt.ir.loops import MAX_COUNTED, WHILE, scalar_values, trip_count
from shardopt.ir.rewriting import defining, operations, shape_of, terminator
from shardopt.ir.scalars import evaluate

PRODUCTS = ("stablehlo.convolution", "stablehlo.dot", "stablehlo.dot_general")
# Associative: the order of terms does not matter.
COMBINERS = frozenset(
    f"stablehlo.{name}" for name in ("add", "and", "maximum", "minimum", "multiply", "or", "xor")
)
# Parts over which a chain of values, such as random keys, is written out.
_MAX_CHAIN = 128
# Share of the work of the step that is in a loop over microbatches.
_MOST = 0.5


@dataclass(frozen=True)
class Sum:
    """A carried value that each iteration combines with a term by `reducer`."""

    reducer: str
    term: ir.Value


@dataclass(frozen=True)
class Stack:
    """A carried value of which iteration k writes block k along `split`."""

    update: ir.Value
    split: Split


@dataclass(frozen=True)
class Accumulation:
    """The loop and how often it runs. `slices` are values of its body that are block k of a value
    that does not change; `kept`, `sums`, `stacks`, `scalars` and `chains` the carried values by
    position: what does not change, what is accumulated, what integer scalars are in each iteration,
    and what is made, without products, of itself and what does not change: random keys."""

    loop: ir.Operation
    count: int
    slices: Mapping[ir.Value, tuple[int, Split]]
    kept: frozenset[int]
    sums: Mapping[int, Sum]
    stacks: Mapping[int, Stack]
    scalars: Mapping[int, tuple[int, ...]]
    chains: frozenset[int]


class NoAccumulation(Exception):
    """A loop that sums up gradients and is none, for a reason that stands at `at`."""

    def __init__(self, at: ir.Operation, reason: str) -> None:
        super().__init__(f"a loop that sums gradients is not the microbatch loop: {reason}")
        self.at = at


def find_accumulation(main: ir.Operation) -> Accumulation | None:
    """The loop over parts of the batch in `main`; None if no loop sums up what has the shape of
    state. Raises NoAccumulation where one does that and is no loop over microbatches."""
    ops = [view.operation for view in main.regions[0].blocks[0].operations]
    loops = [op for op in ops if op.name == WHILE and operations(op, PRODUCTS)]
    state = state_shapes(main)
    refusals = []
    for loop in loops:
        count = trip_count(loop, MAX_COUNTED)
        if count is None or not 1 < count <= MAX_COUNTED:
            continue
        reader = _Reader(loop, count)
        sums = reader.sums()
        summed = {shape_of(loop.operands[k]) for k, each in sums.items() if each.reducer == "add"}
        slices = reader.slices()
        if not summed & state or not _reads_batch(main, loop, slices):
            continue
        try:
            found = reader.accumulation(sums, slices)
            _check_surroundings(ops, found)
            return found
        except NoAccumulation as refusal:
            refusals.append(refusal)
    if refusals:
        raise refusals[0]
    return None


def state_numbers(main: ir.Operation) -> set[int]:
    """The tensors among the arguments that are state. Where nothing tells, those of which a result
    has the shape: an array that is all of the state, or what could be taken for it."""
    block = main.regions[0].blocks[0]
    tensors = {
        k: shape_of(argument)
        for k, argument in enumerate(block.arguments)
        if isinstance(argument.type, ir.RankedTensorType)
    }
    replaced = replaced_arguments(main)
    if replaced:
        return replaced.keys() & tensors
    results = {
        shape_of(value)
        for value in terminator(block).operands
        if isinstance(value.type, ir.RankedTensorType)
    }
    return {k for k, shape in tensors.items() if shape in results}


def state_shapes(main: ir.Operation) -> set[tuple[int, ...]]:
    arguments = main.regions[0].blocks[0].arguments
    return {shape_of(arguments[number]) for number in state_numbers(main)}


def has_most_work(inside: Iterable[ir.Operation], ops: Iterable[ir.Operation]) -> bool:
    """Whether most of the work of `ops` is that of some of them."""
    flops = {op: read_work(op).flops for op in ops}
    return sum(flops[op] for op in inside) >= _MOST * sum(flops.values())


def _reads_batch(
    main: ir.Operation, loop: ir.Operation, slices: Mapping[ir.Value, tuple[int, Split]]
) -> bool:
    """Whether it takes parts of what is made of no state, and of nothing else but random keys: one
    over weights of experts, or over what an earlier loop has kept of each time, does not."""
    state = state_numbers(main)
    sliced = [loop.operands[position] for position, _ in slices.values()]
    floats = [value for value in sliced if not is_integer(value.type)]
    return bool(sliced) and all(state.isdisjoint(origins(value)) for value in floats or sliced)


def is_integer(type_: ir.Type) -> bool:
    return isinstance(ir.RankedTensorType(type_).element_type, ir.IntegerType)


def origins(value: ir.Value) -> set[int]:
    """The arguments that a value is made of."""
    sources = (source for source in upstream(value) if defining(source) is None)
    return {ir.BlockArgument(source).arg_number for source in sources}


def _check_surroundings(ops: Sequence[ir.Operation], found: Accumulation) -> None:
    """What is before the loop runs on the whole batch, what is behind it once a step."""
    before = ancestors(ops, reads(found.loop))
    product = next((op for op in before if operations(op, PRODUCTS)), None)
    if product is not None:
        raise NoAccumulation(product, "what it reads is made by products of the whole batch")
    if not has_most_work([found.loop], ops):
        raise NoAccumulation(found.loop, "most of the work is outside of it")


def ancestors(
    ops: Sequence[ir.Operation], values: Iterable[ir.Value], known: Collection[ir.Value] = ()
) -> list[ir.Operation]:
    """Those of `ops`, in their order, that `values` are computed by from what is `known`."""
    needed, found = {value for value in values if value not in known}, list[ir.Operation]()
    for op in reversed(ops):
        if not needed.isdisjoint(op.results):
            found.append(op)
            needed.update(value for value in reads(op) if value not in known)
    return found[::-1]


class _Reader:
    """What the carried values of one loop are."""

    def __init__(self, loop: ir.Operation, count: int) -> None:
        self.loop, self.count = loop, count
        self.block = loop.regions[1].blocks[0]
        self.yielded = list(terminator(self.block).operands)
        self.scalars = scalar_values(loop, count)
        numbered = list(enumerate(zip(self.block.arguments, self.yielded, strict=True)))
        self.kept = frozenset(k for k, (before, after) in numbered if before == after)

    def accumulation(
        self, sums: Mapping[int, Sum], slices: Mapping[ir.Value, tuple[int, Split]]
    ) -> Accumulation:
        stacks = {k: stack for k in self._changing() if (stack := self._stack(k)) is not None}
        others = {k for k in self._changing() if k not in (sums.keys() | stacks.keys())}
        chains = frozenset(self._chains(others))
        if chains != others:
            after = defining(self.yielded[min(others - chains)]) or self.loop
            raise NoAccumulation(
                after, "it hands a value on from one part to the next that is no sum of terms"
            )
        if chains and self.count > _MAX_CHAIN:
            raise NoAccumulation(
                self.loop, f"it hands a value on over more than {_MAX_CHAIN} parts"
            )
        terms = [*(each.term for each in sums.values()), *(s.update for s in stacks.values())]
        for number in (*sums, *stacks):
            if self._reaches(terms, self.block.arguments[number]):
                raise NoAccumulation(
                    self.loop, "a part reads what the parts before it have summed up"
                )
        uneven = [k for k, numbers in self.scalars.items() if len(set(_steps(numbers))) > 1]
        if uneven:
            raise NoAccumulation(self.loop, "it counts in steps of several sizes")
        return Accumulation(
            self.loop, self.count, slices, self.kept, sums, stacks, self.scalars, chains
        )

    def _changing(self) -> Iterator[int]:
        return (k for k in range(len(self.yielded)) if k not in self.kept | self.scalars.keys())

    def _chains(self, positions: set[int]) -> set[int]:
        """Those of `positions` that are made of themselves and of what does not change."""
        body = [view.operation for view in self.block.operations]
        chains = set(positions)
        while True:
            known = chains | self.kept | self.scalars.keys()
            free = [a for k, a in enumerate(self.block.arguments) if k not in known]
            apart = {
                k
                for k in chains
                if any(
                    operations(op, PRODUCTS) or not set(free).isdisjoint(reads(op))
                    for op in ancestors(body, [self.yielded[k]])
                )
            }
            if not apart:
                return chains
            chains -= apart

    def sums(self) -> dict[int, Sum]:
        return {k: each for k in self._changing() if (each := self._sum(k)) is not None}

    def _sum(self, position: int) -> Sum | None:
        op = defining(self.yielded[position])
        if op is None or op.name not in COMBINERS:
            return None
        first, second = (unconverted(operand) for operand in op.operands)
        carried = self.block.arguments[position]
        if (first == carried) == (second == carried):
            return None
        term = op.operands[1] if first == carried else op.operands[0]
        return Sum(op.name.removeprefix("stablehlo."), term)

    def _stack(self, position: int) -> Stack | None:
        op = defining(self.yielded[position], "stablehlo.dynamic_update_slice")
        if op is None or op.operands[0] != self.block.arguments[position]:
            return None
        split = self._split(shape_of(op.operands[0]), shape_of(op.operands[1]), op.operands[2:])
        return None if split is None else Stack(op.operands[1], split)

    def slices(self) -> dict[ir.Value, tuple[int, Split]]:
        found = {}
        for op in (view.operation for view in self.block.operations):
            if op.name != "stablehlo.dynamic_slice" or defining(op.operands[0]) is not None:
                continue
            argument: ir.BlockArgument = ir.BlockArgument(op.operands[0])
            if argument.owner != self.block or argument.arg_number not in self.kept:
                continue
            sizes = shape_of(op.results[0])
            split = self._split(shape_of(op.operands[0]), sizes, op.operands[1:])
            if split is not None:
                found[op.results[0]] = argument.arg_number, split
        return found

    def _split(
        self, whole: Sequence[int], part: Sequence[int], starts: Sequence[ir.Value]
    ) -> Split | None:
        """Along which dimension iteration k takes block k of all."""
        dims = [dim for dim, sizes in enumerate(zip(whole, part, strict=True)) if len({*sizes}) > 1]
        if len(dims) != 1 or part[dims[0]] * self.count != whole[dims[0]]:
            return None
        for dim, start in enumerate(starts):
            size = part[dim] if dim == dims[0] else 0
            # Other starts are clamped to zero, as all of the dimension is taken.
            expected = [number * size for number in range(self.count)]
            if dim == dims[0] and self._numbers(start) != expected:
                return None
        return Split(dims[0], 1, whole[dims[0]])

    def _numbers(self, value: ir.Value) -> list[int | None]:
        """What an integer scalar of the body is in each iteration."""
        return [
            evaluate(value, {self.block.arguments[k]: each[n] for k, each in self.scalars.items()})
            for n in range(self.count)
        ]

    def _reaches(self, values: Sequence[ir.Value], argument: ir.Value) -> bool:
        body = [view.operation for view in self.block.operations]
        return argument in values or any(argument in reads(op) for op in ancestors(body, values))


def unconverted(value: ir.Value) -> ir.Value:
    """What goes through conversions to its own type, which jax leaves in loops."""
    while (op := defining(value, "stablehlo.convert")) is not None:
        if op.operands[0].type != value.type:
            break
        value = op.operands[0]
    return value


def _steps(numbers: Sequence[int]) -> list[int]:
    return [after - before for before, after in pairwise(numbers)]
