"""One mesh axis followed through a graph in program order: how presets that split weights arrive at
all else.

A *weight product* is a matrix product, convolution or gather of an activation and a weight (or what
transposes and casts make of one). The first product of a weight decides how it is split; backward
products find it decided. All other operations take over the split of what they read. Where the axis
gets lost (a slice of a split dimension), the operation is left to the solver and the axis is taken
up again behind it. Subclasses say which factor of a weight is split and what becomes of sums over
the axis."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

from shardopt.graph.op_graph import FactorRule, Op
from shardopt.mesh.mesh import Sharding
from shardopt.solve.presets.base import (
    Axes,
    Dims,
    Split,
    dims_of,
    finished,
    in_full,
    strategies_that_split,
    tiles,
)
from shardopt.solve.presets.data import DataParallel
from shardopt.solve.presets.sums import adding_up, unreduced
from shardopt.solve.presets.weights import WeightUses, dim_of, made_of
from shardopt.solve.sharding.intra_op.sharded_ops import Transient
from shardopt.solve.sharding.strategies.factors import shardable_factors

# Operations whose result has the dimensions of their first operand, and that move or cut what lies
# along some.
_LOCAL_MOVES = frozenset(
    {"concatenate", "dynamic_slice", "dynamic_update_slice", "pad", "reverse", "slice"}
)


@dataclass(eq=False)
class AxisWalk(ABC):
    """`where[t]` is the dimension of a tensor that `axis` splits, `decided[w]` that of a weight;
    `rows` are weights split along a contracted factor, `followers` biases and scales split as the
    activations they are combined with. `arriving` are activations and gradients that other meshes
    send."""

    plan: DataParallel
    axis: str
    where: list[int | None] = field(default_factory=list)
    decided: dict[int, int] = field(default_factory=dict)
    rows: set[int] = field(default_factory=set)
    followers: dict[int, int] = field(default_factory=dict)
    allowed: dict[int, Sequence[int]] = field(default_factory=dict)
    terms: set[int] = field(default_factory=set)
    joined: frozenset[int] = frozenset()
    arriving: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        self.tables = self.plan.tables
        self.graph = self.tables.graph
        self.size = self.tables.mesh.axis_size(self.axis)
        flow = self.plan.flow
        self.uses = WeightUses.of(self.graph, flow)
        self.of_state = made_of(self.graph, flow, flow.weights | flow.slots)

    def run(self) -> None:
        """Walk again as long as more is known of the inputs than at the start: operations before a
        decision see it."""
        known: dict[int, int] | None = None
        while known != self._split_inputs():
            known = self._split_inputs()
            self._visit_all(known)
        self._join_terms()
        if self.joined:
            self._visit_all(known)

    def _visit_all(self, known: dict[int, int] | None) -> None:
        # All else is found anew: an operation before a decision was visited without knowing of it.
        self.where = [(known or {}).get(tensor) for tensor in range(len(self.graph.tensors))]
        self.allowed.clear()
        self.followers.clear()
        for index in range(len(self.graph.ops)):
            self._visit(index)

    def _split_inputs(self) -> dict[int, int]:
        """Weights and their slots, and what arrives split."""
        weights = self.followers | self.decided
        slots = {
            slot.tensor: place
            for weight, dim in weights.items()
            for slot in self.plan.flow.slots_of.get(weight, ())
            if (place := slot.dim_of(dim)) is not None
        }
        return slots | weights | self.split_arrivals()

    # ---- what a method decides ----

    @abstractmethod
    def weight_factor(self, op: Op, position: int, usable: set[int]) -> tuple[int | None, bool]:
        """The factor to split of a weight in its first product, if any, and whether these are its
        rows."""

    def scatter_dim(self, op: Op, factor: int) -> int | None:
        """The result dimension onto which a sum over the axis is scattered; None to leave the sum
        whole."""
        return None

    def split_arrivals(self) -> dict[int, int]:
        """Of values that arrive from other meshes, the dimensions that the axis splits."""
        return {}

    def gathered_for_use(self) -> Transient:
        """Activations that are gathered again for every use, and not kept whole in between."""
        return ()

    def batch_split(self, index: int, factor: int | None) -> Split:
        """How the batch is split in an operation whose `factor` has the axis."""
        return self.plan.split(index)

    def split(self, index: int, factor: int) -> Split:
        """The batch, and behind it the axis on `factor`."""
        batch = self.batch_split(index, factor)
        return {**batch, factor: (*batch.get(factor, ()), self.axis)}

    def strategies(self, index: int, split: Split, factor: int) -> Sequence[int]:
        """What an operation with this split may do: sums of weight products are taken, whole or
        scattered, where they are made, or where they are added up."""
        numbers, op = strategies_that_split(self.tables, index, split), self.graph.ops[index]
        if not numbers or index in self.plan.flow.gradients:
            return numbers
        target = self._scattered(op, split, factor)
        scattered: Sequence[int] = ()
        if target is not None:
            scattered = strategies_that_split(self.tables, index, split, scatter=target)
        terms = unreduced(self.tables, index, numbers)
        whole = finished(self.tables, index, numbers) if self.uses.product(op) is not None else ()
        if terms and (scattered or whole):
            self.terms.add(op.results[0])
        if terms and op.results[0] in self.joined:
            return terms
        return (*scattered, *terms) if scattered else whole or numbers

    def inputs(self) -> dict[int, Sharding]:
        """The shardings of the tensors in which the batch starts."""
        shardings = self.plan.inputs()
        for tensor, place in self.split_arrivals().items():
            dims = shardings[tensor].dims
            shardings[tensor] = Sharding(
                (*dims[:place], (*dims[place], self.axis), *dims[place + 1 :])
            )
        return shardings

    def state(self) -> dict[int, Sharding]:
        """Every weight as decided, or split as the first activation it is combined with, or whole;
        its slots alike."""
        shardings = {}
        for weight in sorted(self.plan.flow.weights):
            place = self.decided.get(weight, self.followers.get(weight))
            sharding = self.sharding(self.graph.tensors[weight].shape, place)
            slots = self.plan.flow.slots_of.get(weight, ())
            shardings[weight] = sharding
            shardings.update((slot.tensor, slot.like(sharding)) for slot in slots)
        return shardings

    def sharding(self, shape: tuple[int, ...], place: int | None) -> Sharding:
        """That of a weight which the axis splits on dimension `place`."""
        return Sharding(tuple((self.axis,) if dim == place else () for dim in range(len(shape))))

    # ---- one operation ----

    def _visit(self, index: int) -> None:
        op = self.graph.ops[index]
        if op.rule is None:
            return
        factors = self.factors(op)
        numbers = [] if factors else self._added_up(index, None)
        for factor in factors:
            numbers += self._added_up(index, factor) or self.strategies(
                index, self.split(index, factor), factor
            )
        chosen = factors[0] if factors and numbers else None
        self._mark_results(op, op.rule, chosen)
        if not self.is_limited(index):
            return
        if numbers:
            self.allowed[index] = tuple(dict.fromkeys(numbers))
            if (
                chosen is not None
                and self.plan.flow.depends[op.results[0]]
                and index not in self.plan.flow.update
            ):
                self._note_followers(op, op.rule, chosen)
        elif not self.is_free(index, factors):
            split = self.batch_split(index, None)
            self.allowed[index] = strategies_that_split(self.tables, index, split) or in_full(
                self.tables, index
            )

    def _added_up(self, index: int, factor: int | None) -> list[int]:
        """The strategies in which an operation that reads `joined` terms leaves their sum to its
        readers, where these add to it further, or takes it: scattered onto a factor, or whole."""
        op, strategies = self.graph.ops[index], self.tables.ops[index].strategies
        if op.rule is None or self.joined.isdisjoint(op.operands):
            return []
        leaves = op.results[0] in self.joined
        if leaves or factor is None:
            split = self.batch_split(index, factor)
        else:
            split = self.split(index, factor)
        [dims] = dims_of(op.rule, op.rule.results, split)
        return [
            number
            for number in adding_up(self.tables, index, (self.axis,))
            if strategies[number].results[0].dims == dims
            and bool(strategies[number].results[0].unreduced) == leaves
        ]

    def _join_terms(self) -> None:
        """Find the sums over the axis that are added up before they are scattered: those of
        products, and of what moves them."""
        linear_ops = [
            (op, frozenset(op.operands))
            for op, linear in zip(self.graph.ops, self.tables.linear, strict=False)
            if tuple(range(len(op.operands))) in linear.modes
        ]
        for op, read in linear_ops:
            if read and read <= self.terms:
                self.terms.update(op.results)
        joined = set[int]()
        for op, read in reversed(linear_ops):
            if read <= self.terms and (len(read) > 1 or not joined.isdisjoint(op.results)):
                joined |= read
        self.joined = frozenset(joined)

    def is_limited(self, index: int) -> bool:
        """Whether an operation follows the method at all: masks and the like are made where they
        are needed."""
        results = self.graph.ops[index].results
        return bool(results) and (self.plan.flow.depends[results[0]] or self.of_state[results[0]])

    def is_free(self, index: int, factors: Sequence[int]) -> bool:
        """Whether an operation that does not take the axis is left to the solver: those that read
        split values."""
        return bool(factors) or any(
            self.where[operand] is not None for operand in self.graph.ops[index].operands
        )

    def factors(self, op: Op) -> list[int]:
        """The factors that the axis may split, alternatives of equal right; empty to leave the axis
        out."""
        usable = set(shardable_factors(op))
        product = self.uses.product(op)
        if product is not None:
            if self.where[op.operands[product]] is None:
                self._decide(op, product, usable)
            factor = self.factor_of(op, product)
            if factor in usable:
                return [factor]
        return self.inherited(op, usable)

    def inherited(self, op: Op, usable: set[int]) -> list[int]:
        """The factors split in the operands: those of activations first, and of these the ones not
        contracted."""
        rule = op.rule
        assert rule is not None
        ranked = [
            (self.plan.flow.depends[tensor], factor not in rule.reduction, factor)
            for position, tensor in enumerate(op.operands[: len(rule.operands)])
            if (factor := self.factor_of(op, position)) is not None and factor in usable
        ]
        best = max((rank[:2] for rank in ranked), default=None)
        return list(dict.fromkeys(rank[2] for rank in ranked if rank[:2] == best))

    def factor_of(self, op: Op, position: int) -> int | None:
        """The factor on which the axis enters by an operand: behind the batch where both split one
        dimension."""
        tensor, rule = op.operands[position], op.rule
        dim = self.where[tensor]
        if dim is None or rule is None or position >= len(rule.operands):
            return None
        before = self._tiles_of_batch(tensor, dim)
        for factor in rule.operands[position][dim]:
            if before < rule.sizes[factor]:
                return factor
            before //= rule.sizes[factor]
        return None

    def _tiles_of_batch(self, tensor: int, dim: int) -> int:
        """Into how many tiles the batch splits a dimension."""
        axes: Axes = tuple(axis for axis in self.plan.axes if axis != self.axis)
        return tiles(self.tables.mesh, axes) if self.plan.flow.dims[tensor] == dim else 1

    def _scattered(self, op: Op, split: Split, factor: int) -> Dims | None:
        """How a sum over the axis lies when it is scattered."""
        dim = self.scatter_dim(op, factor)
        if dim is None or op.rule is None:
            return None
        [dims] = dims_of(op.rule, op.rule.results, split)
        return (*dims[:dim], (*dims[dim], self.axis), *dims[dim + 1 :])

    def divides(self, tensor: int, dim: int) -> bool:
        """Whether the axis divides a dimension behind the batch."""
        return (
            self.graph.tensors[tensor].shape[dim] % (self._tiles_of_batch(tensor, dim) * self.size)
            == 0
        )

    def _mark_results(self, op: Op, rule: FactorRule, factor: int | None) -> None:
        """Where the axis splits the results; behind an operation that it cannot pass, the dimension
        it split before."""
        for position, result in enumerate(op.results):
            if factor is None:
                self.where[result] = self._dim_kept(op, result)
            elif factor in rule.reduction:
                self.where[result] = self.scatter_dim(op, factor)
            else:
                self.where[result] = dim_of(rule.results[position], factor)

    def _dim_kept(self, op: Op, result: int) -> int | None:
        dim = self.where[op.operands[0]] if op.name in _LOCAL_MOVES and op.operands else None
        return dim if dim is not None and self.divides(result, dim) else None

    # ---- weights ----

    def _decide(self, op: Op, position: int, usable: set[int]) -> None:
        """Split the weight of its first product, unless another use of it was first or the axis
        does not divide it."""
        factor, by_rows = self.weight_factor(op, position, usable)
        dim = (
            None
            if factor is None or op.rule is None
            else dim_of(op.rule.operands[position], factor)
        )
        origins = [] if dim is None else list(self.uses.origins(op.operands[position], dim))
        shapes = {weight: self.graph.tensors[weight].shape for weight, _ in origins}
        if not origins or any(
            w in self.decided or shapes[w][place] % self.size for w, place in origins
        ):
            return
        self.decided.update(origins)
        self.rows.update(weight for weight, _ in origins if by_rows)
        for weight, place in origins:
            self.where[weight] = place
        for earlier in sorted(self.uses.chain(op.operands[position])):
            self._visit(earlier)

    def _note_followers(self, op: Op, rule: FactorRule, factor: int) -> None:
        for tensor, mapping in zip(op.operands, rule.operands, strict=False):
            place = dim_of(mapping, factor)
            if place is not None and self.uses.derived[tensor]:
                for weight, dim in self.uses.origins(tensor, place):
                    if self.graph.tensors[weight].shape[dim] % self.size == 0:
                        self.followers.setdefault(weight, dim)
