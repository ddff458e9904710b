"""Stage costs and bounds of stages, each computed once: within a run, and between runs where there
is a store on disk.

An entry depends on the content of the stage's graph, on the mesh and its cluster, and on how stages
are sharded; all of these are in its key, so that equal stages on equal meshes share a cost
wherever they stand, and a cost from the store is the one that would be computed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import astuple, dataclass, field
from typing import TypeVar

from shardopt.caching.store import active_store, key_of
from shardopt.hardware.cluster import Cluster
from shardopt.hardware.cluster_file import content_of
from shardopt.mesh.mesh import Mesh
from shardopt.solve.sharding.intra_op.overlap import least_share
from shardopt.solve.sharding.strategies.layouts import Layouts
from shardopt.solve.sharding.strategies.tables import StrategyTables
from shardopt.solve.stages.costs.bounds import RelaxedLayer
from shardopt.solve.stages.costs.fitted import Fitted, fitted
from shardopt.solve.stages.costs.part_facts import PartFacts
from shardopt.solve.stages.costs.sharders import Memory, Method, PartSharding, Sharder, memory_of
from shardopt.solve.stages.costs.stage_part import StagePart
from shardopt.support.errors import UserError
from shardopt.support.spans import timed

_T = TypeVar("_T")
_KIND = "costs"
# What a problem takes beside what grows with its operations, in operations.
_WORK_OF_ONE = 1000


@dataclass
class CostCounts:
    """Problems of layers and stages that were solved, small ones of parts of layers, plans whose
    memory was counted, and what the store knew already.

    `work` is that of all these, from the store or not, in operations: a budget of it ends a search
    at the same plan whatever the store knows."""

    solves: int = 0
    parts: int = 0
    accounts: int = 0
    from_store: int = 0
    work: int = 0


@dataclass
class CostCache:
    """Stage costs on the meshes of one cluster."""

    cluster: Cluster
    counts: CostCounts = field(default_factory=CostCounts)
    _layouts: Layouts = field(default_factory=Layouts)
    _tables: dict[Mesh, StrategyTables] = field(default_factory=dict)
    _facts: dict[str, PartFacts] = field(default_factory=dict)
    _known: dict[tuple[str, str, Mesh], object] = field(default_factory=dict)

    @timed("stage costs: bounds")
    def bound(self, layer: RelaxedLayer, mesh: Mesh, byte_seconds: float = 0.0) -> float:
        """What the layer adds at least to the seconds of a step on a stage with this mesh; with
        `byte_seconds` more for every byte that it holds all step."""

        def compute() -> float:
            if layer.is_whole:
                self.counts.solves += 1
            else:
                self.counts.parts += 1
            share = self.least_share(mesh)
            return layer.seconds(self._tables_of(mesh), byte_seconds / share) * share

        what = "bound" + f" with {byte_seconds!r} seconds a byte" * bool(byte_seconds)
        return self._remember(what, layer.part, layer.key, mesh, compute, _number)

    def least_share(self, mesh: Mesh) -> float:
        """What a program takes at least of its computing and communication one behind the
        other."""
        return least_share(self.cluster.group_of(mesh))

    @timed("stage costs: shardings")
    def sharding(self, part: StagePart, mesh: Mesh, sharder: Sharder) -> PartSharding:
        def compute() -> PartSharding:
            self.counts.solves += 1
            try:
                return sharder.shard(part, self._facts_of(part), self._tables_of(mesh))
            except UserError as error:
                return PartSharding((), (), str(error))

        return self._remember(sharder.content(part), part, part.key, mesh, compute, _sharding)

    @timed("stage costs: memory")
    def memory(self, part: StagePart, mesh: Mesh, sharder: Sharder) -> Memory:
        def compute() -> Memory:
            self.counts.accounts += 1
            return memory_of(
                self._facts_of(part), self._tables_of(mesh), self.sharding(part, mesh, sharder)
            )

        return self._remember(
            f"memory {sharder.content(part)}",
            part,
            part.key,
            mesh,
            compute,
            lambda row: Memory(*row),
        )

    @timed("stage costs: within memory")
    def fitted(
        self, part: StagePart, mesh: Mesh, method: Method, limit: int, in_flight: int
    ) -> Fitted:
        """A stage within a limit of memory; one that no method applies to does not fit."""

        def compute() -> Fitted:
            self.counts.solves += 1
            facts, tables = self._facts_of(part), self._tables_of(mesh)
            try:
                return fitted(part, facts, tables, method, limit, in_flight)
            except UserError:
                return Fitted((), Memory(0, 0, 0))

        what = f"{method.content(part)} within {limit} bytes, {in_flight} in flight"
        return self._remember(
            what, part, part.key, mesh, compute, lambda row: Fitted(tuple(row[0]), Memory(*row[1]))
        )

    def _facts_of(self, part: StagePart) -> PartFacts:
        return self._facts.setdefault(part.key, PartFacts(part))

    def _tables_of(self, mesh: Mesh) -> StrategyTables:
        if mesh not in self._tables:
            self._tables[mesh] = StrategyTables(mesh, self.cluster, self._layouts)
        return self._tables[mesh]

    def _remember(
        self,
        what: str,
        part: StagePart,
        content: str,
        mesh: Mesh,
        compute: Callable[[], _T],
        read: Callable[[list], _T],
    ) -> _T:
        known = (what, content, mesh)
        if known not in self._known:
            self.counts.work += _WORK_OF_ONE + len(part.graph.ops)
            self._known[known] = self._from_store(known, compute, read)
        return self._known[known]  # type: ignore[return-value]

    def _from_store(
        self, known: tuple[str, str, Mesh], compute: Callable[[], _T], read: Callable[[list], _T]
    ) -> _T:
        store = active_store()
        if store is None:
            return compute()
        what, content, mesh = known
        key = key_of(
            "stage cost", what, content, repr((mesh.axes, mesh.devices)), content_of(self.cluster)
        )
        data = store.get(_KIND, key)
        if data is not None:
            try:
                value = read(json.loads(data))
            except (ValueError, TypeError) as error:
                store.drop(
                    _KIND, key, f"a cached cost does not read back and is made again: {error}"
                )
            else:
                self.counts.from_store += 1
                return value
        made = compute()
        store.put(_KIND, key, json.dumps(_plain(made)).encode())
        return made


def _plain(value: object) -> object:
    if isinstance(value, PartSharding):
        return [
            value.fragment_seconds,
            value.choice,
            value.refusal,
            [*map(sorted, value.transient)],
        ]
    if isinstance(value, Fitted):
        return [value.fragment_seconds, _plain(value.memory)]
    return list(astuple(value)) if isinstance(value, Memory) else value


def _number(value: list) -> float:
    return float(value)  # type: ignore[arg-type]


def _sharding(row: list) -> PartSharding:
    seconds, choice, refusal, transient = row
    return PartSharding(
        tuple(map(float, seconds)),
        tuple(map(int, choice)),
        str(refusal),
        tuple(frozenset(map(int, tensors)) for tensors in transient),
    )
