"""A whole training step as one op graph: what runs before the microbatches, one microbatch, and
what runs behind them.

    zeros ─▶ before ─▶ add(before, gradient) ─▶ after ─▶ sum point ─▶ the update
    once              every microbatch                   once

Operations of the body have `repeat` = the number of microbatches. An accumulator may stay an
unfinished sum over the whole loop, so that the collective of a gradient runs once a step and not in
every microbatch; the sum points behind the loop are where it is summed at the latest. The shard
phase reads the same from the staged form (`shardopt.passes.sharding.apply.accumulators`), stage by
stage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from shardopt.graph.layered_body import LayeredBody
from shardopt.graph.op_graph import MARKER, SHARED, FactorRule, Op, OpGraph
from shardopt.hardware.cluster import UNFUSED, Fusing
from shardopt.solve.sharding.strategies.linear import Linear, find_linear

_RNG = "rng"  # its results differ from run to run


def unread(ops: Sequence[Op], candidates: Iterable[int], kept: Iterable[int]) -> Iterator[int]:
    """The operations of `candidates`, last first, whose results nobody reads; `kept` are tensors
    that are read elsewhere."""
    read = Counter(tensor for op in ops for tensor in op.operands)
    read.update(kept)
    # From the last on: one that is dropped may have been the only reader of one before it.
    for op in sorted(candidates, reverse=True):
        if not any(read[result] for result in ops[op].results):
            read.subtract(ops[op].operands)
            yield op


@dataclass(frozen=True, eq=False)
class StepGraph:
    """`op_layer[i]` is the layer of operation i, SHARED for those that every reader copies.
    Operations [`loop[0]`, `loop[1]`) are the body of a microbatch.

    `carried` are (before, after) of every accumulator; `tied` pairs, those of `carried` among them,
    end with equal shardings and lie in one buffer: also arguments and the results that replace
    them. `owner` is the layer whose stage holds an input; `literals` are constants whose elements
    differ. `repeated[t]` is the tensor of the forward pass that tensor t, computed again behind a
    barrier, equals. `fusing` says what the devices' compiler makes one kernel of. `on_host` are
    inputs that lie in the memory of the hosts, where with `activations_on_host` that lies as well
    which forwards make for backwards (`shardopt.solve.stages.costs.offload`)."""

    graph: OpGraph
    op_layer: tuple[int, ...]
    loop: tuple[int, int]
    carried: tuple[tuple[int, int], ...] = ()
    tied: tuple[tuple[int, int], ...] = ()
    owner: Mapping[int, int] = field(default_factory=dict)
    literals: frozenset[int] = frozenset()
    repeated: Mapping[int, int] = field(default_factory=dict)
    fusing: Fusing = UNFUSED
    on_host: frozenset[int] = frozenset()
    activations_on_host: bool = False

    def __post_init__(self) -> None:
        if len(self.op_layer) != len(self.graph.ops):
            raise ValueError(
                f"expected a layer for {len(self.graph.ops)} operations, found {len(self.op_layer)}"
            )
        if not 0 <= self.loop[0] <= self.loop[1] <= len(self.graph.ops):
            raise ValueError(f"expected a loop within 0 … {len(self.graph.ops)}, found {self.loop}")

    @cached_property
    def num_layers(self) -> int:
        return max(self.op_layer, default=0) + 1

    @cached_property
    def ops_of_layer(self) -> Mapping[int, tuple[int, ...]]:
        """In program order."""
        ops_of: dict[int, list[int]] = {}
        for op, layer in enumerate(self.op_layer):
            ops_of.setdefault(layer, []).append(op)
        return {layer: tuple(ops) for layer, ops in ops_of.items()}

    @cached_property
    def producers(self) -> tuple[int, ...]:
        return self.graph.producers()

    @cached_property
    def consumers(self) -> tuple[tuple[int, ...], ...]:
        return self.graph.consumers()

    @cached_property
    def linear(self) -> tuple[Linear, ...]:
        """For each operation which values may be unreduced when all of the step lies on one
        mesh."""
        return find_linear(self.graph, self.tied)

    def cut_at(self, *cuts: int) -> StepGraph:
        """The step as it runs when stages begin at the layers `cuts`. What an earlier stage
        recomputes is not sent to a later one: the later stage got the same value in the forward
        pass.

        Operations that nobody needs any more belong to no layer. Numbers of operations and tensors
        stay as they are."""
        crossing = [
            (op, tensor)
            for op, tensor in self._rising
            if any(self._home(tensor) < cut <= self.op_layer[op] for cut in cuts)
        ]
        if not crossing:
            return self
        ops, layers = list(self.graph.ops), list(self.op_layer)
        for op, tensor in crossing:
            ops[op] = ops[op].renamed({tensor: self.repeated[tensor]})
        for op in unread(ops, {self.producers[t] for t in self.repeated}, self.graph.outputs):
            layers[op] = SHARED
        graph = replace(self.graph, ops=tuple(ops))
        return replace(self, graph=graph, op_layer=tuple(layers))

    @cached_property
    def apart(self) -> StepGraph:
        """The step in which each layer is a stage of its own. What a layer runs there is what it
        runs where stages begin with it and behind it, whichever else there are."""
        return self.cut_at(*range(1, self.num_layers))

    @property
    def is_cut_alike(self) -> bool:
        """Whether what a stage runs does not depend on where other stages begin: nothing that is
        computed again goes on to a later layer."""
        return not self._rising

    @cached_property
    def _rising(self) -> tuple[tuple[int, int], ...]:
        """(operation, operand) where something computed again goes on to a later layer."""
        return tuple(
            (reader, tensor)
            for tensor in self.repeated
            for reader in self.consumers[tensor]
            if 0 <= self._home(tensor) < self.op_layer[reader]
        )

    def _home(self, tensor: int) -> int:
        return self.op_layer[self.producers[tensor]]

    def is_shared(self, tensor: int) -> bool:
        """Whether every reader of the tensor makes a copy of it."""
        return tensor in self.shared

    @cached_property
    def shared(self) -> frozenset[int]:
        """The tensors of which every reader makes a copy."""
        pairs = zip(self.graph.ops, self.op_layer, strict=True)
        return frozenset(result for op, layer in pairs if layer == SHARED for result in op.results)

    def awaited(self, tensors: Iterable[int]) -> frozenset[int]:
        """The operations of layers that have to run before somebody can read these tensors: their
        makers, and for copies of shared operations the makers of what those read."""
        made: set[int] = set()
        for tensor in tensors:
            if (producer := self.producers[tensor]) >= 0:
                made |= self._behind_shared.get(producer, {producer})
        return frozenset(made)

    @cached_property
    def _behind_shared(self) -> Mapping[int, frozenset[int]]:
        """shared operation -> the operations of layers that it and shared ones before it read."""
        behind: dict[int, frozenset[int]] = {}
        for op in self.ops_of_layer.get(SHARED, ()):  # in program order: makers first
            made: set[int] = set()
            for tensor in self.graph.ops[op].operands:
                if (producer := self.producers[tensor]) >= 0:
                    made |= behind.get(producer, {producer})
            behind[op] = frozenset(made)
        return behind

    @cached_property
    def resident(self) -> Mapping[int, int]:
        """What devices hold all step, and with which layer: accumulators that begin within the
        step, and inputs that something reads."""
        layers: dict[int, int] = {}
        for before, after in self.carried:
            maker = self.producers[after]
            # An accumulator that is an argument of the step is among what layers own.
            if self.producers[before] >= 0 and maker >= 0 and self.op_layer[maker] >= 0:
                layers[before] = self.op_layer[maker]
        read = {tensor for op in self.graph.ops for tensor in op.operands}
        owned = {t: layer for t, layer in self.owner.items() if layer >= 0 and t in read}
        return layers | owned

    def in_body(self, op: int) -> bool:
        return self.loop[0] <= op < self.loop[1]

    def is_sum_point(self, op: int) -> bool:
        """Whether an operation only says where a sum of the loop is to be finished (`sum_point`):
        nothing else reads what the loop returns."""
        operands = self.graph.ops[op].operands
        return self.graph.ops[op].name == MARKER and self.in_body(self.producers[operands[0]])

    @cached_property
    def units(self) -> tuple[range, ...]:
        """Operations of the body that run as a whole, in program order: single ones, and the
        insides of loops and branches."""
        ops, units = self.graph.ops, []
        start = self.loop[0]
        for op in range(self.loop[0], self.loop[1]):
            last = op + 1 == self.loop[1]
            if last or not (
                ops[op].block and ops[op + 1].block and self.op_layer[op] == self.op_layer[op + 1]
            ):
                units.append(range(start, op + 1))
                start = op + 1
        return tuple(units)

    @cached_property
    def body(self) -> LayeredBody:
        """The body by rows: row i is unit i, and its values are tensors."""
        ops, rows = self.graph.ops, [self._read_and_made(unit) for unit in self.units]
        return LayeredBody(
            layers=tuple(self.op_layer[unit[0]] for unit in self.units),
            reads=tuple(read for read, _ in rows),
            makes=tuple(made for _, made in rows),
            returned=frozenset(after for _, after in self.carried),
            waits=tuple(
                tuple(dict.fromkeys(t for op in unit for t in ops[op].waits if t not in made))
                for unit, (_, made) in zip(self.units, rows, strict=True)
            ),
            random=frozenset(
                row
                for row, unit in enumerate(self.units)
                if any(ops[op].name == _RNG for op in unit)
            ),
            work=tuple(sum(ops[op].weighted_flops for op in unit) for unit in self.units),
            sizes={
                tensor: self.graph.tensors[tensor].size_bytes for _, made in rows for tensor in made
            },
        )

    def _read_and_made(self, unit: range) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """What a unit reads from outside, and what it makes."""
        ops = [self.graph.ops[op] for op in unit]
        made = dict.fromkeys(tensor for op in ops for tensor in op.results)
        read = dict.fromkeys(tensor for op in ops for tensor in op.operands if tensor not in made)
        return tuple(read), tuple(made)


def sum_point(tensor: int, total: int, shape: tuple[int, ...]) -> Op:
    """An operation in which a value that left the loop as an unfinished sum is summed at the
    latest."""
    dims = tuple((dim,) for dim in range(len(shape)))
    return Op(MARKER, (tensor,), (total,), FactorRule(shape, (dims,), (dims,)))
