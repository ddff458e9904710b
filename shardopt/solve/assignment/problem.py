"""The assignment problem behind intra-operator sharding, as plain arrays.

Each *node* (an operation, or a value) picks one *strategy*. A node pays `costs[v][s]`, an edge pays
`cost[s_u, s_v]`, and at every time the bytes of the live nodes must stay within a limit. A cost of
`inf` forbids the strategy or pair. The unit of cost is the caller's (seconds in the planner); only
relative tolerances are used anywhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import fsum, inf
from typing import Literal, NamedTuple

import numpy as np

Status = Literal["optimal", "feasible", "infeasible", "timeout"]
Statistic = int | float | str

_SMALL = 1 << 14  # entries of arrays that are checked together


@dataclass(frozen=True, eq=False)
class Edge:
    """The cost of a pair of strategies: float64 `[k_u, k_v]`. Parallel edges add up; `u == v`
    counts the diagonal."""

    u: int
    v: int
    cost: np.ndarray

    def __post_init__(self) -> None:
        object.__setattr__(self, "cost", np.asarray(self.cost, dtype=np.float64))


@dataclass(frozen=True, eq=False)
class Usage:
    """Memory of a node over the times `[lo, hi)`: int64 bytes `[k]`, one entry for each
    strategy."""

    lo: int
    hi: int
    bytes: np.ndarray

    def __post_init__(self) -> None:
        object.__setattr__(self, "bytes", np.asarray(self.bytes, dtype=np.int64))


@dataclass(frozen=True, eq=False)
class Problem:
    """Node costs, edges and, optionally, memory: `usages[v]` are the segments of node v, which may
    overlap.

    Raises ValueError on shapes that do not fit, unknown nodes, NaN or -inf costs, negative bytes,
    or intervals outside `[0, num_times)`. A node without strategies is accepted: it makes the
    problem infeasible, not malformed."""

    costs: tuple[np.ndarray, ...]
    edges: tuple[Edge, ...] = ()
    usages: tuple[tuple[Usage, ...], ...] | None = None
    memory_limit: int | None = None
    num_times: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "costs", tuple(np.asarray(cost, dtype=np.float64) for cost in self.costs)
        )
        object.__setattr__(self, "edges", tuple(self.edges))
        if self.usages is not None:
            object.__setattr__(self, "usages", tuple(tuple(segments) for segments in self.usages))
        self._check_costs()
        self._check_edges()
        self._check_usages()

    @property
    def num_nodes(self) -> int:
        return len(self.costs)

    @cached_property
    def ends(self) -> np.ndarray:
        """The nodes u and v of each edge: int64 `[edges, 2]`."""
        ends = [(edge.u, edge.v) for edge in self.edges]
        return np.array(ends, dtype=np.int64).reshape(-1, 2)

    @property
    def has_memory(self) -> bool:
        """Whether a limit and at least one usage exist, so that memory can matter at all."""
        return self.memory_limit is not None and self.usages is not None and any(self.usages)

    def without_memory(self) -> Problem:
        return Problem(self.costs, self.edges)

    def _check_costs(self) -> None:
        for node, cost in enumerate(self.costs):
            if cost.ndim != 1:
                raise ValueError(f"node {node}: expected costs of rank 1, found shape {cost.shape}")
        if (bad := _first_bad(self.costs)) is not None:
            raise ValueError(f"node {bad}: costs must be finite or inf, found NaN or -inf")

    def _check_edges(self) -> None:
        for edge in self.edges:
            if not (0 <= edge.u < self.num_nodes and 0 <= edge.v < self.num_nodes):
                raise ValueError(
                    f"edge ({edge.u}, {edge.v}): the problem has nodes 0..{self.num_nodes - 1}"
                )
            expected = (len(self.costs[edge.u]), len(self.costs[edge.v]))
            if edge.cost.shape != expected:
                raise ValueError(
                    f"edge ({edge.u}, {edge.v}): expected a table of shape {expected}, found "
                    f"{edge.cost.shape}"
                )
        if (bad := _first_bad([edge.cost for edge in self.edges])) is not None:
            edge = self.edges[bad]
            raise ValueError(
                f"edge ({edge.u}, {edge.v}): costs must be finite or inf, found NaN or -inf"
            )

    def _check_usages(self) -> None:
        if self.memory_limit is not None and self.memory_limit < 0:
            raise ValueError(f"the memory limit must not be negative, found {self.memory_limit}")
        if self.usages is None:
            return
        if len(self.usages) != self.num_nodes:
            raise ValueError(f"expected usages of {self.num_nodes} nodes, found {len(self.usages)}")
        for node, segments in enumerate(self.usages):
            for usage in segments:
                self._check_usage(node, usage)

    def _check_usage(self, node: int, usage: Usage) -> None:
        if not 0 <= usage.lo <= usage.hi <= self.num_times:
            raise ValueError(
                f"node {node}: interval [{usage.lo}, {usage.hi}) is not within [0, "
                f"{self.num_times})"
            )
        if usage.bytes.shape != self.costs[node].shape:
            expected = self.costs[node].shape
            raise ValueError(
                f"node {node}: expected bytes of shape {expected}, found {usage.bytes.shape}"
            )
        if usage.bytes.size and int(usage.bytes.min()) < 0:
            raise ValueError(
                f"node {node}: bytes must not be negative, found {int(usage.bytes.min())}"
            )


@dataclass(frozen=True)
class Solution:
    """An assignment with its proof.

    `choice[v]` is a strategy of node v, empty when there is no assignment; `objective` is inf then.
    `bound` is a proven lower bound on the objective and `gap` is (objective - bound) / |objective|.
    `statistics` say what the solver did; with status "infeasible" or "timeout",
    `statistics["reason"]` is one sentence for the user.
    """

    choice: tuple[int, ...]
    objective: float
    bound: float
    gap: float
    status: Status
    statistics: Mapping[str, Statistic] = field(default_factory=dict)


class Evaluation(NamedTuple):
    """What an assignment costs (inf if it uses a forbidden entry), its peak bytes, and whether it
    is allowed."""

    objective: float
    peak_usage: int
    feasible: bool


def evaluate(problem: Problem, choice: Sequence[int]) -> Evaluation:
    """Cost and memory of an assignment, computed from the problem alone.

    Raises ValueError unless `choice` names one existing strategy for each node.
    """
    if len(choice) != problem.num_nodes:
        raise ValueError(f"expected a choice for {problem.num_nodes} nodes, found {len(choice)}")
    for node, (cost, strategy) in enumerate(zip(problem.costs, choice, strict=True)):
        if not 0 <= strategy < len(cost):
            raise ValueError(f"node {node}: strategy {strategy} does not exist, it has {len(cost)}")
    terms = [float(cost[strategy]) for cost, strategy in zip(problem.costs, choice, strict=True)]
    terms += [float(edge.cost[choice[edge.u], choice[edge.v]]) for edge in problem.edges]
    objective = inf if inf in terms else fsum(terms)
    peak = _peak_bytes(problem, choice)
    fits = problem.memory_limit is None or peak <= problem.memory_limit
    return Evaluation(objective, peak, fits and objective < inf)


def relative_gap(objective: float, bound: float) -> float:
    """(objective - bound) / |objective|, never negative; inf without an assignment."""
    if objective == inf:
        return inf
    return max(0.0, objective - bound) / max(abs(objective), np.finfo(float).tiny)


def trivial_bound(problem: Problem) -> float:
    """Every node and every edge at its cheapest; for problems whose nodes all have strategies."""
    return fsum(float(cost.min()) for cost in problem.costs) + fsum(
        float(edge.cost.min()) for edge in problem.edges
    )


def _peak_bytes(problem: Problem, choice: Sequence[int]) -> int:
    """Sweep over interval ends; Python ints, so that no sum overflows."""
    change: dict[int, int] = {}
    for segments, strategy in zip(problem.usages or (), choice, strict=False):
        for usage in segments:
            size = int(usage.bytes[strategy])
            if usage.lo < usage.hi:
                change[usage.lo] = change.get(usage.lo, 0) + size
                change[usage.hi] = change.get(usage.hi, 0) - size
    live = peak = 0
    for time in sorted(change):
        live += change[time]
        peak = max(peak, live)
    return peak


def _first_bad(arrays: Iterable[np.ndarray]) -> int | None:
    """Index of the first array with NaN or -inf. Shared arrays are looked at once, and small ones
    in one pass, as a check of each would take longer."""
    arrays = list(arrays)
    distinct = {id(array): array for array in arrays}.values()
    small = [array.ravel() for array in distinct if array.size <= _SMALL]
    large = [array for array in distinct if array.size > _SMALL]
    if not any(map(_is_bad, [np.concatenate(small), *large] if small else large)):
        return None
    return next(index for index, array in enumerate(arrays) if _is_bad(array))


def _is_bad(array: np.ndarray) -> bool:
    # The least entry is NaN where any is, and NaN fails the comparison as well.
    return bool(array.size) and not array.min() > -inf
