"""The op graph as integers: what planners see of a piece of StableHLO.

`shardopt.extract.op_graph` reads it out of the IR.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod

from shardopt.graph.attention_use import AttentionUse
from shardopt.graph.microbatching import Splat
from shardopt.graph.op_flops import Work
from shardopt.graph.windows import Window
from shardopt.support.kept_hash import keeps_hash

# The layer of an operation that belongs to none: whoever reads its result recomputes it.
SHARED = -1

# The name of operations that hand their operand on and say how it is to be sharded.
MARKER = "sharding"


@keeps_hash
@dataclass(frozen=True)
class FactorRule:
    """A Shardy sharding rule: every tensor dimension is a product of factors, shared between
    operands and results.

    `operands[k][d]` are the factors of dimension d of operand k, major to minor; `sizes[f]` is the
    extent of factor f. A factor is one of: pass-through, `reduction` (contracted: sharding it
    leaves a partial result), `need_replication` (may not be sharded), `permutation` (data moves
    along it, e.g. a convolution's space), `blocked` (may be sharded here but is not propagated).
    """

    sizes: tuple[int, ...]
    operands: tuple[tuple[tuple[int, ...], ...], ...]
    results: tuple[tuple[tuple[int, ...], ...], ...]
    reduction: frozenset[int] = frozenset()
    need_replication: frozenset[int] = frozenset()
    permutation: frozenset[int] = frozenset()
    blocked: frozenset[int] = frozenset()


@keeps_hash
@dataclass(frozen=True)
class Tensor:
    """One value: global shape and element type (MLIR's spelling, `f32`, `ui32`, `i1`)."""

    shape: tuple[int, ...]
    dtype: str
    itemsize: int

    @cached_property
    def elements(self) -> int:
        return prod(self.shape)

    @cached_property
    def size_bytes(self) -> int:
        return self.elements * self.itemsize

    @property
    def is_float(self) -> bool:
        return self.dtype.startswith(("f", "bf"))


Dims = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Island:
    """A region that is written for one device of a mesh with these axes (name, size): its operands
    and results lie in one way only, by the axes that split each dimension. Inside of one, a
    collective.

    `steps` are its collectives: (kind, axes, bytes, executions)."""

    axes: tuple[tuple[str, int], ...]
    operands: tuple[Dims, ...]
    results: tuple[Dims, ...]
    steps: tuple[tuple[str, tuple[str, ...], int, int], ...]


@dataclass(frozen=True)
class Op:
    """One operation on tensors, given by their indices in `OpGraph.tensors`.

    `reducer` says how contracted factors combine: "add", "maximum", "minimum", … ; None where
    nothing contracts or the combination is not a single op. `group` is free for the reader's caller
    (layer, stage or -1). `repeat` counts all executions in a step, `trips` those in one execution
    of the group: more than one inside a loop. `zero` is set for a constant of zeros. `windows` say
    what moves along the permutation factors of the rule, where that is known. `flops` and
    `transcendentals` are the work of one execution (`shardopt.graph.op_flops`). `waits` are the
    values that came through a barrier together with an operand: the operation runs behind those
    that make them, and is not fused with any. `regions` are those of a loop (condition, body) or
    branch, for readers that look into them. An `island` has but one way to be split; its work is
    that of one device. `attention` is set for a call of a kernel that attends."""

    name: str
    operands: tuple[int, ...]
    results: tuple[int, ...]
    rule: FactorRule | None
    reducer: str | None = None
    flops: float = 0.0
    group: int = -1
    repeat: int = 1
    block: int = 0
    trips: int = 1
    zero: bool = False
    windows: tuple[Window, ...] = ()
    transcendentals: float = 0.0
    waits: tuple[int, ...] = ()
    regions: tuple[Region, ...] = ()
    island: Island | None = None
    attention: AttentionUse | None = None

    @property
    def weighted_flops(self) -> float:
        """FLOPs that take as long as its FLOPs and transcendentals."""
        return Work(self.flops, self.transcendentals).weighted_flops

    def renamed(self, names: Mapping[int, int]) -> Op:
        """The operation on other tensors."""
        operands, waits = (
            tuple(names.get(tensor, tensor) for tensor in each)
            for each in (self.operands, self.waits)
        )
        return replace(self, operands=operands, waits=waits)

    def at(
        self,
        *,
        operands: tuple[int, ...],
        results: tuple[int, ...],
        waits: tuple[int, ...],
        group: int,
        repeat: int,
        block: int,
        trips: int,
    ) -> Op:
        """The same operation at another place: what it computes is that of this one."""
        # As `replace` does, in a third of its time: graphs have tens of thousands of operations.
        op = object.__new__(Op)
        op.__dict__.update(
            self.__dict__,
            operands=operands,
            results=results,
            waits=waits,
            group=group,
            repeat=repeat,
            block=block,
            trips=trips,
        )
        return op

    @property
    def scope(self) -> tuple[int, int]:
        """Operations of one scope can share what is made in it; `block` tells regions of loops and
        branches apart."""
        return self.group, self.block


@dataclass(frozen=True)
class OpGraph:
    """Ops in program order; `inputs` are tensors no op defines, `outputs` those that leave the
    graph.

    `loops` are ranges [start, stop) of ops that run again and again: what comes from before and is
    read in one lives until its end. `carried` are tensors from before a loop that it replaces in
    every iteration."""

    tensors: tuple[Tensor, ...]
    ops: tuple[Op, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    loops: tuple[tuple[int, int], ...] = ()
    carried: frozenset[int] = frozenset()

    def trips_of(self, op: int, tensor: int, producer: int) -> int:
        """How often what `op` does to an operand has to run in one execution of its group: as often
        as the value changes, for XLA moves out of a loop what is the same in every iteration.
        `producer` is -1 for an input."""
        trips = self.ops[op].trips
        if trips == 1:
            return 1
        enclosing = sorted(
            (loop for loop in self.loops if loop[0] <= op < loop[1]),
            key=lambda loop: (loop[0], -loop[1]),
        )
        inside = [loop for loop in enclosing if loop[0] <= producer < loop[1]]
        entered = enclosing[len(inside) :]
        changing = entered[: tensor in self.carried] or inside[-1:]
        # What stands in a loop, and in none within it, runs once an iteration; the rest of it more
        # often.
        return (
            min((each.trips for each in self.ops[slice(*changing[0])]), default=trips)
            if changing
            else 1
        )

    def producers(self) -> tuple[int, ...]:
        """For each tensor, the op that defines it, or -1."""
        return self._producers

    def consumers(self) -> tuple[tuple[int, ...], ...]:
        """For each tensor, the ops that read it, in program order, each once."""
        return self._consumers

    @cached_property
    def fenced(self) -> frozenset[int]:
        """Tensors that go through a barrier."""
        return frozenset(tensor for op in self.ops for tensor in op.waits)

    @cached_property
    def handed_on(self) -> Mapping[int, int]:
        """For the result of each marker its operand: one value and one memory, as long as the two
        have one sharding.

        Not so where a value enters the buffer of a loop or branch, which it shares with others, or
        waits at a barrier."""
        handed: dict[int, int] = {}
        for op in self.ops:
            if op.name != MARKER or op.waits or op.results[0] in self.carried:
                continue
            blocks = {self.ops[reader].block for reader in self._consumers[op.results[0]]}
            # What a region yields is read outside of it, or by nobody.
            if not op.block or blocks == {op.block}:
                handed[op.results[0]] = op.operands[0]
        return handed

    @cached_property
    def without_markers(self) -> OpGraph:
        """The graph in which nobody reads what a marker hands on: its readers have the operand.
        Tensors and operations keep their numbers."""
        if not self.handed_on:
            return self
        names: dict[int, int] = {}
        ops = []
        for op in self.ops:
            if op.name == MARKER and op.results[0] in self.handed_on:
                names[op.results[0]] = names.get(op.operands[0], op.operands[0])
                ops.append(replace(op, operands=(), rule=None))
            else:
                ops.append(op.renamed(names) if names else op)
        outputs = tuple(names.get(tensor, tensor) for tensor in self.outputs)
        return replace(self, ops=tuple(ops), outputs=outputs)

    @cached_property
    def _producers(self) -> tuple[int, ...]:
        producer_of = [-1] * len(self.tensors)
        for index, op in enumerate(self.ops):
            for result in op.results:
                producer_of[result] = index
        return tuple(producer_of)

    @cached_property
    def _consumers(self) -> tuple[tuple[int, ...], ...]:
        consumers_of: list[list[int]] = [[] for _ in self.tensors]
        for index, op in enumerate(self.ops):
            for operand in dict.fromkeys(op.operands):
                consumers_of[operand].append(index)
        return tuple(map(tuple, consumers_of))


@dataclass(frozen=True)
class Region:
    """A region of a loop, branch or island, as a graph with tensors of its own that returns its
    outputs.

    Tensors 0, 1, … are the `arguments` of its block; behind them stand the values that the
    operation captures, in the order in which they follow its `direct` operands. `splats` are
    constants whose elements are all equal; `counts` gives for iotas the dimension along which they
    count; `numbers`, in an island, are made of the number of the device, each with the axes along
    which it differs. `by_rows` is set for the condition of a loop in which each row ends by itself:
    it holds as long as some row goes on."""

    graph: OpGraph
    arguments: int
    direct: int
    splats: Mapping[int, Splat] = field(default_factory=dict, compare=False)
    counts: Mapping[int, int] = field(default_factory=dict, compare=False)
    numbers: Mapping[int, frozenset[str]] = field(default_factory=dict, compare=False)
    by_rows: bool = False

    def operand(self, tensor: int) -> int:
        """Which operand of the operation a tensor that comes from outside is: of a loop, an
        argument of its body is what enters it."""
        return tensor if tensor < self.arguments else self.direct + tensor - self.arguments
