"""Strategies and resharding tables as arrays, each distinct one computed once.

Rules and shapes repeat throughout a module: thousands of operations have a few hundred distinct
strategy sets, and their edges a few hundred distinct tables. `StrategyTables` gives out shared
objects, so equal operations have the very same arrays, which the solver uses as cache keys in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np

from shardopt.cost.compute import memory_seconds
from shardopt.cost.host_link import host_seconds
from shardopt.cost.resharding_costs import ArcTable, ReshardingCosts
from shardopt.graph.op_graph import Op, Tensor
from shardopt.hardware.cluster import Cluster
from shardopt.mesh.mesh import Mesh, Sharding
from shardopt.solve.assignment.sharing.arcs import Arcs
from shardopt.solve.assignment.table_store import TableStore
from shardopt.solve.sharding.kernels.kernel_bytes import Accesses
from shardopt.solve.sharding.strategies.costs import (
    CommunicationCosts,
    resharding_arcs,
    resharding_table,
    written_seconds,
)
from shardopt.solve.sharding.strategies.layouts import Column, Layouts
from shardopt.solve.sharding.strategies.linear import REDUCED, Linear
from shardopt.solve.sharding.strategies.strategies import (
    Strategy,
    all_shardings,
    layout_strategies,
    marker_strategy,
)
from shardopt.support.kept_hash import keeps_hash

_T = TypeVar("_T")
_UNKNOWN = object()  # None is an answer


@dataclass(frozen=True, eq=False)
class OpStrategies:
    """All strategies of an operation: seconds of all its executions `[k]`, and the columns of its
    tensors."""

    strategies: tuple[Strategy, ...]
    seconds: np.ndarray
    operands: tuple[Column, ...]
    results: tuple[Column, ...]


@keeps_hash
@dataclass(frozen=True)
class Demand:
    """An operation whose strategies are asked for, on `operands` and `results`; `content` is all
    that they depend on."""

    content: Hashable
    op: Op = field(compare=False)
    operands: tuple[Tensor, ...] = field(compare=False)
    results: tuple[Tensor, ...] = field(compare=False)
    linear: Linear = field(compare=False)
    accesses: Accesses | None = field(compare=False)


def demand_of(
    op: Op, tensors: Sequence[Tensor], linear: Linear = REDUCED, accesses: Accesses | None = None
) -> Demand:
    """For the strategies of `op` on any mesh; `tensors` are those of its graph. `accesses`: in how
    many kernels it touches each of its own; by default, as if it ran alone."""
    operands = tuple([tensors[t] for t in op.operands])
    results = tuple([tensors[t] for t in op.results])
    content = (
        op.name,
        op.rule,
        op.windows,
        op.reducer,
        op.island,
        op.attention,
        op.weighted_flops,
        op.repeat,
        operands,
        results,
        linear,
        accesses,
    )
    return Demand(content, op, operands, results, linear, accesses)


class _Distinct(NamedTuple):
    """The shardings of some columns, each once, and where those of each column (by its id) stand
    among them: int64 `[distinct]`."""

    shardings: tuple[Sharding, ...]
    places: Mapping[int, np.ndarray]


class StrategyTables:
    """The tables of one placed mesh on one cluster. Arrays given out are shared: never write to
    them."""

    def __init__(self, mesh: Mesh, cluster: Cluster, layouts: Layouts | None = None) -> None:
        """`layouts` may be shared by tables of several meshes."""
        self.mesh = mesh
        self.cluster = cluster
        self.device = cluster.group_of(mesh).device
        self._resharding_costs = ReshardingCosts(cluster, mesh)
        self._layouts = Layouts() if layouts is None else layouts
        self._links = CommunicationCosts(cluster, mesh)
        self._memo: dict[Hashable, object] = {}
        # What presolve learns of these tables, which many problems of one mesh share.
        self.store = TableStore()

    def of(
        self,
        op: Op,
        tensors: Sequence[Tensor],
        linear: Linear = REDUCED,
        accesses: Accesses | None = None,
    ) -> OpStrategies:
        """The strategies of `op` (`demand_of`)."""
        return self.meeting(demand_of(op, tensors, linear, accesses))

    def meeting(self, demand: Demand) -> OpStrategies:
        """The strategies of an operation, the replicated one first."""
        return self._remember(demand, lambda: self._build(demand))

    def marker(self, allowed: tuple[Sharding, ...]) -> OpStrategies:
        """Those of an operation that hands its operand on in one of some shardings."""

        def build() -> OpStrategies:
            column = self.column(allowed)
            strategies = tuple(map(marker_strategy, allowed))
            return OpStrategies(strategies, np.zeros(len(allowed)), (column,), (column,))

        return self._remember(("marker", allowed), build)

    def choices(self, shape: tuple[int, ...]) -> Column:
        """Every sharding of a tensor that no operation defines, replicated first."""
        return self._remember(
            ("choices", shape), lambda: self.column(all_shardings(self.mesh, shape))
        )

    def input_seconds(self, tensor: Tensor, column: Column) -> np.ndarray:
        """Seconds to write each device's share of an input, under each of its shardings: `[k]`.

        Without this cost an input could as well be whole on every device, from where every slice is
        free."""

        def build() -> np.ndarray:
            distinct, index = np.unique(self.local_bytes(tensor, column), return_inverse=True)
            seconds = [memory_seconds(self.device, float(size), tensor.dtype) for size in distinct]
            return np.array(seconds)[index]

        return self._remember(
            ("input", tensor.shape, tensor.dtype, tensor.itemsize, id(column)), build
        )

    def host_seconds(self, tensor: Tensor, column: Column) -> np.ndarray:
        """Seconds to bring each device's share of a tensor from its host, or there, under each of
        its shardings: `[k]`; 0 where the link is not known."""
        link = self.cluster.group_of(self.mesh).host_link
        return np.array(
            [host_seconds(link, int(size)) for size in self.local_bytes(tensor, column)]
        )

    def column(self, shardings: tuple[Sharding, ...]) -> Column:
        """The one column with these entries."""
        return self._layouts.column(shardings)

    def resharding(
        self, tensor: Tensor, source: Column, target: Column, repeat: int, fused: bool = False
    ) -> np.ndarray | None:
        """Seconds of `repeat` reshardings from each strategy of the producer to each of the
        consumer: `[k, m]`.

        A `fused` value has to be written and read where it is exchanged. None when no pair costs
        anything."""
        key = _key_of_reshardings(tensor, (source,), (target,), fused)
        return self._remember(
            ("resharding", key, repeat),
            lambda: self._resharding(tensor, source, target, repeat, fused),
        )

    def shared_reshardings(
        self,
        tensor: Tensor,
        sources: tuple[Column, ...],
        readers: tuple[Column, ...],
        repeat: int,
        fused: bool,
    ) -> Arcs:
        """The reshardings of `resharding` of one value to several readers, with the steps that they
        share. `sources` are the columns from which each reader gets it. A `fused` value is written
        once for all readers, and read in each sharding."""
        key = _key_of_reshardings(tensor, sources, readers, fused)

        def build() -> Arcs:
            once = partial(self._arcs, tensor, sources, readers, fused)
            return self._remember(("arcs", key), once).times(repeat)

        return self._remember(("arcs", key, repeat), build)

    def equality(self, first: Column, second: Column) -> np.ndarray:
        """`[k, m]`: 0 where the two shardings are equal, inf elsewhere."""
        return self._remember(("equality", id(first), id(second)), lambda: _equality(first, second))

    def local_bytes(self, tensor: Tensor, column: Column) -> np.ndarray:
        """Bytes a device holds of the tensor under each strategy: int64 `[k]`."""

        def build() -> np.ndarray:
            elements = [
                sharding.local_elements(self.mesh, tensor.shape) for sharding in column.distinct
            ]
            return (np.array(elements, dtype=np.int64) * tensor.itemsize)[column.index]

        return self._remember(("bytes", tensor.shape, tensor.itemsize, id(column)), build)

    def _resharding(
        self, tensor: Tensor, source: Column, target: Column, repeat: int, fused: bool
    ) -> np.ndarray | None:
        seconds = (
            resharding_table(self._resharding_costs, source.distinct, target.distinct, tensor)
            * repeat
        )
        if fused:
            written, read = (self._written(tensor, side.distinct) for side in (source, target))
            seconds += np.where(seconds > 0, (written[:, None] + read[None, :]) * repeat, 0.0)
        if not seconds.any():
            return None
        # One axis after the other: a third of the time of both at once.
        return seconds.take(target.index, axis=1).take(source.index, axis=0)

    def _written(self, tensor: Tensor, shardings: Sequence[Sharding]) -> np.ndarray:
        """Seconds to write, or to read, a device's share in each sharding."""
        return np.array(
            [written_seconds(self.device, tensor, sharding, self.mesh) for sharding in shardings]
        )

    def _arcs(
        self,
        tensor: Tensor,
        sources: tuple[Column, ...],
        readers: tuple[Column, ...],
        fused: bool,
    ) -> Arcs:
        froms, tos = self._distinct(sources), self._distinct(readers)
        table = resharding_arcs(self._resharding_costs, froms.shardings, tos.shardings, tensor)
        paths, seconds = table.paths, table.seconds
        if fused and len(seconds):
            paths, seconds = self._with_memory(tensor, froms.shardings, tos.shardings, table)
        # Equal columns have one object each, by which who looks at the arcs sees that they are.
        ways = {of: (paths[:, place], table.missing[:, place]) for of, place in tos.places.items()}
        rows = {id(each): froms.places[id(each)][each.index] for each in sources}
        return Arcs(
            seconds,
            tuple(ways[id(each)][0] for each in readers),
            tuple(ways[id(each)][1] for each in readers),
            tuple(rows[id(each)] for each in sources),
            tuple(each.index for each in readers),
        )

    def _distinct(self, columns: tuple[Column, ...]) -> _Distinct:
        """What several columns have between them."""

        def build() -> _Distinct:
            shardings = dict.fromkeys(s for each in columns for s in each.distinct)
            number = {sharding: n for n, sharding in enumerate(shardings)}
            places = {
                id(each): np.array([number[sharding] for sharding in each.distinct])
                for each in columns
            }
            return _Distinct(tuple(number), places)

        return self._remember(("distinct", tuple(map(id, columns))), build)

    def _with_memory(
        self,
        tensor: Tensor,
        sources: Sequence[Sharding],
        targets: Sequence[Sharding],
        table: ArcTable,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Paths and seconds of a value that is written for what is exchanged: with its first arc,
        and with an arc of its own for each sharding in which it is read."""
        paths, count = table.paths, len(table.seconds)
        moves = paths[:, :, 0] < count
        first = np.full(count + 1, -1)
        first[paths[:, :, 0]] = np.arange(len(sources))[:, None]
        begins = table.is_first & (first[:-1] >= 0)
        seconds = table.seconds.copy()
        seconds[begins] += self._written(tensor, sources)[first[:-1][begins]]
        reads = count + np.cumsum(moves).reshape(moves.shape) - 1
        total = count + int(moves.sum())
        ends = np.where(moves, reads, total)
        paths = np.concatenate([np.where(paths == count, total, paths), ends[:, :, None]], axis=2)
        read = np.broadcast_to(self._written(tensor, targets), moves.shape)[moves]
        return paths, np.append(seconds, read)

    def _build(self, demand: Demand) -> OpStrategies:
        op, operands, results = demand.op, demand.operands, demand.results
        layout = self._layouts.of(op, operands, results, self.mesh, demand.linear)
        strategies = layout_strategies(layout, op, operands, results, self._links, demand.accesses)
        seconds = np.array([strategy.seconds * op.repeat for strategy in strategies])
        return OpStrategies(strategies, seconds, layout.operands, layout.results)

    def _remember(self, key: Hashable, build: Callable[[], _T]) -> _T:
        # The layouts keep every column alive, so an id in a key names one column for the life of
        # the tables.
        known = self._memo.get(key, _UNKNOWN)
        if known is _UNKNOWN:
            known = self._memo[key] = build()
        return known  # type: ignore[return-value]


def _key_of_reshardings(
    tensor: Tensor, sources: Sequence[Column], readers: Sequence[Column], fused: bool
) -> Hashable:
    """What the prices of a value's reshardings depend on; layouts keep the columns alive."""
    return tensor, tuple(map(id, sources)), tuple(map(id, readers)), fused


def _equality(first: Column, second: Column) -> np.ndarray:
    number = {
        sharding: n for n, sharding in enumerate(dict.fromkeys(first.distinct + second.distinct))
    }
    rows, columns = (
        np.array([number[sharding] for sharding in column.shardings]) for column in (first, second)
    )
    return np.where(rows[:, None] == columns[None, :], 0.0, np.inf)
