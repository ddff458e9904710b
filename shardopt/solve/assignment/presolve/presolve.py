"""Presolve: shrink a problem by exact steps until none applies.

1. Arc consistency: a strategy without an allowed partner on some edge goes.
2. A separable edge r(s) + q(t) folds into its nodes; so does every edge of a node with one
   strategy.
3. Functional contraction: when each strategy of u allows exactly one of v, v merges into u, memory
   and all.
4. A node without memory and with at most two neighbours is eliminated by a min-plus product.
5. Memory: usage every assignment shares moves to a base, times that cannot overflow are dropped,
   and a strategy that exceeds what the others must leave goes.
6. Dominance: a strategy goes when another is never dearer and never uses more; this covers
   duplicates.

Steps 1-4 run from work lists, as each can enable the others next to it; 5 and 6 look at all nodes,
between rounds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from shardopt.solve.assignment.presolve.factor_graph import (
    FactorGraph,
    Infeasible,
    RestoreRule,
    project,
    replay,
)
from shardopt.solve.assignment.presolve.memory_profile import UsageProfile
from shardopt.solve.assignment.problem import Edge, Problem
from shardopt.solve.assignment.table_store import TableStore
from shardopt.support.spans import timed

# Work caps, in table entries. Beyond them a step costs more than it can save in the solver that
# follows.
_MAX_PRODUCT_WORK = 1 << 22  # p * s * q of one min-plus product
_MAX_NEW_TABLE = 1 << 16  # entries of an edge that elimination would add
# Entries that a hub's tables may gain when it merges into a larger node.
_MAX_CONTRACTION_GROWTH = 1 << 24
_MAX_DOMINANCE_WORK = 1 << 23  # k * k * (neighbours + segments) of one node
# D * d * e of the tables of one node with d distinct rows and e distinct columns.
_MAX_REGRET_WORK = 1 << 22
# The same of all nodes beyond that, in one pass: meshes of three axes have them.
_MAX_LARGE_REGRET_WORK = 1 << 29

# Rounds of memory and dominance: each pays a full pass, and later ones find almost nothing.
_MAX_ROUNDS = 8


@dataclass(frozen=True, eq=False)
class Presolved:
    """What is left, and the way back.

    `problem` is None when `reason` says why there is no assignment. Otherwise node i of `problem`
    stands for original node `nodes[i]` (a last node beyond them, if any, carries memory that is
    always used), and the objective of the original is that of `problem` plus `constant`.
    `smallest_peak` is a lower bound in bytes on the peak usage."""

    problem: Problem | None
    nodes: tuple[int, ...]
    constant: float
    log: tuple[RestoreRule, ...]
    num_nodes: int
    smallest_peak: int
    reason: str = ""

    def restore(self, choice: Sequence[int]) -> tuple[int, ...]:
        """The assignment of the original problem that belongs to one of the remaining problem."""
        full = replay(self.log, {node: choice[i] for i, node in enumerate(self.nodes)})
        return tuple(full[node] for node in range(self.num_nodes))

    def project(self, choice: Sequence[int]) -> tuple[int, ...] | None:
        """The inverse of `restore`, up to strategies that are never better; None for a choice that
        is not allowed."""
        left = project(self.log, choice)
        if left is None or self.problem is None:
            return None
        return tuple(left.get(node, 0) for node in self.nodes) + (0,) * (
            self.problem.num_nodes - len(self.nodes)
        )


@timed("sharding program: presolve (inside solve)")
def presolve(
    problem: Problem, deadline: float | None = None, store: TableStore | None = None
) -> Presolved:
    """Reduce `problem`; every step preserves an optimum. Infeasibility is reported in the result,
    not raised.

    From `deadline` (seconds of `monotonic`) on no further step is begun; what is left is larger
    then, yet as exact. `store` knows the tables of problems like this one: it saves time and
    changes nothing."""
    smallest_peak = 0
    try:
        graph = FactorGraph(problem, deadline, store)
        _close_arcs(graph)
        if graph.memory is not None:
            # Before the first reduction: strategies that can never fit enlarge no product, and
            # nodes that turn out not to matter for memory can be eliminated.
            graph.memory.raise_base(graph.nodes)
            smallest_peak = graph.memory.smallest_peak
            _tighten_memory(graph, graph.memory)
        _reduce(graph)
        for _ in range(_MAX_ROUNDS):
            removed = len(graph.log)
            if graph.memory is not None:
                _tighten_memory(graph, graph.memory)
                _reduce(graph)
            # Dominance last: it compares all pairs of strategies over all tables of a node, so the
            # fewer and smaller they are, the better.
            _drop_dominated(graph)
            _reduce(graph)
            if len(graph.log) == removed or graph.late:
                break
    except Infeasible as error:
        return Presolved(
            problem=None,
            nodes=(),
            constant=np.inf,
            log=(),
            num_nodes=problem.num_nodes,
            smallest_peak=smallest_peak,
            reason=str(error),
        )
    finally:
        if store is not None:
            store.end()
    return _package(graph, problem.num_nodes, smallest_peak)


def _close_arcs(graph: FactorGraph) -> None:
    """Arc consistency alone, so that `smallest_peak` counts possible strategies only."""
    pending = OrderedDict.fromkeys(graph.changed_edges)
    while pending and not graph.late:
        (u, v), _ = pending.popitem(last=False)
        before = len(graph.costs[u]), len(graph.costs[v])
        if _remove_dead(graph, u, v):
            for node, count in zip((u, v), before, strict=True):
                if len(graph.costs[node]) < count:
                    pending.update(
                        ((min(node, other), max(node, other)), None) for other in graph.tables[node]
                    )


def _reduce(graph: FactorGraph) -> None:
    """Steps 1-4 until both work lists are empty. Edges first: they are cheap, and elimination makes
    new ones."""
    while not graph.late:
        if graph.changed_edges:
            edge, _ = graph.changed_edges.popitem(last=False)
            _simplify_edge(graph, *edge)
        elif graph.changed_nodes:
            node, _ = graph.changed_nodes.popitem(last=False)
            _eliminate(graph, node)
        else:
            return


def _simplify_edge(graph: FactorGraph, u: int, v: int) -> None:
    if _remove_dead(graph, u, v):
        return  # `restrict` queued the edge again
    analysis = graph.store.analyse(graph.tables[u][v])
    # A separable table couples nothing: its two parts are costs of the nodes.
    if analysis.row_part is not None and analysis.column_part is not None:
        graph.add_cost(u, analysis.row_part)
        graph.add_cost(v, analysis.column_part)
        graph.unlink(u, v)
        return
    v_of_u, u_of_v = analysis.column_of_row, analysis.row_of_column
    if v_of_u is not None and u_of_v is not None and len(graph.tables[u]) < len(graph.tables[v]):
        v_of_u = None  # a bijection: the node with more edges stays
    if v_of_u is not None and _contraction_pays(graph, v, u):
        graph.contract(v, u, v_of_u)
    elif u_of_v is not None and _contraction_pays(graph, u, v):
        graph.contract(u, v, u_of_v)


def _remove_dead(graph: FactorGraph, u: int, v: int) -> bool:
    analysis = graph.store.analyse(graph.tables[u][v])
    if analysis.dead_rows is None or analysis.dead_columns is None:
        return False
    for node, other, dead in ((u, v, analysis.dead_rows), (v, u, analysis.dead_columns)):
        if dead.any():
            graph.restrict(
                node, ~dead, f"its strategies are incompatible with those of node {other}"
            )
    return True


def _contraction_pays(graph: FactorGraph, node: int, into: int) -> bool:
    # The tables of `node` get a row for each strategy of `into`.
    growth = len(graph.costs[into]) - len(graph.costs[node])
    return (
        growth <= 0
        or growth * sum(len(graph.costs[w]) for w in graph.tables[node]) <= _MAX_CONTRACTION_GROWTH
    )


def _eliminate(graph: FactorGraph, node: int) -> None:
    """Remove a node of degree 0, 1 or 2 whose choice does not matter for memory."""
    neighbours = sorted(graph.tables[node])
    # Three neighbours would leave a table over three nodes, and edges join two.
    if len(neighbours) > 2 or graph.uses_memory(node):
        return
    if not neighbours:
        graph.constant += float(graph.costs[node].min())
        graph.remove(RestoreRule(node, (), np.array(graph.costs[node].argmin())))
    elif len(neighbours) == 1:
        _eliminate_leaf(graph, node, neighbours[0])
    else:
        _eliminate_between(graph, node, *neighbours)


def _eliminate_leaf(graph: FactorGraph, node: int, other: int) -> None:
    total = graph.tables[other][node] + graph.costs[node]
    graph.unlink(node, other)
    graph.add_cost(other, total.min(axis=1))
    graph.remove(RestoreRule(node, (other,), total.argmin(axis=1)))


def _eliminate_between(graph: FactorGraph, node: int, u: int, v: int) -> None:
    entries = len(graph.costs[u]) * len(graph.costs[v])
    if entries > _MAX_NEW_TABLE or entries * len(graph.costs[node]) > _MAX_PRODUCT_WORK:
        return
    table, best = graph.store.min_plus(
        graph.tables[u][node], graph.costs[node], graph.tables[node][v]
    )
    graph.unlink(node, u)
    graph.unlink(node, v)
    graph.link(u, v, table)
    graph.remove(RestoreRule(node, (u, v), best))


def _tighten_memory(graph: FactorGraph, memory: UsageProfile) -> None:
    """Step 5 until no strategy is too large. Raises Infeasible when the base alone exceeds the
    limit."""
    nodes = graph.nodes
    while nodes:
        memory.raise_base(nodes)
        memory.drop_free_times()
        if memory.smallest_peak > memory.limit:
            raise Infeasible(
                f"memory: every assignment needs at least {memory.smallest_peak} bytes at some "
                f"time, the limit is {memory.limit} bytes"
            )
        memory.prepare_slack()
        nodes = [node for node in graph.nodes if _remove_too_large(graph, memory, node)]
    # Nodes that no longer matter for memory may now be eliminated.
    graph.changed_nodes.update(dict.fromkeys(graph.nodes))


def _remove_too_large(graph: FactorGraph, memory: UsageProfile, node: int) -> bool:
    over = memory.too_large(node)
    if over is None:
        return False
    graph.restrict(
        node, ~over, f"each needs more than the memory limit of {memory.limit} bytes allows"
    )
    return True


def _drop_dominated(graph: FactorGraph) -> None:
    left = _MAX_LARGE_REGRET_WORK
    for node in graph.nodes:
        if graph.late:
            return
        tables = tuple(graph.tables[node].values())
        # Most nodes are as the last round left them.
        if not graph.has_changed(node, tables):
            continue
        segments = graph.memory.segments[node] if graph.memory is not None else {}
        if len(graph.costs[node]) ** 2 * (len(tables) + len(segments) + 1) > _MAX_DOMINANCE_WORK:
            continue
        # Few tables are large enough for their distinct rows to be counted.
        work = sum(table.size * len(table) for table in tables)
        if work > _MAX_REGRET_WORK:
            work = sum(map(graph.store.regret_work, tables))
        if work > _MAX_REGRET_WORK:
            if work > left:
                continue
            left -= work
        graph.store.charge(tables)
        # Nodes with equal costs and tables share the answer, unless memory tells them apart.
        if segments:
            instead = _dominators(graph, node)
        else:
            find = partial(_dominators, graph, node)
            instead = graph.store.dominators(graph.costs[node], tables, find)
        kept = instead == np.arange(len(instead))
        if kept.all():
            graph.remember(node, tables)
        else:
            graph.restrict(node, kept, "unreachable: a dominating strategy always stays", instead)


def _dominators(graph: FactorGraph, node: int) -> np.ndarray:
    """For each strategy s itself, or a kept s2: c(s2) - c(s) + Σ max_t (E(s2, t) - E(s, t)) <= 0
    and less memory."""
    cost = graph.costs[node]
    extra = cost[:, None] - cost[None, :]
    for table in graph.tables[node].values():
        most, row = graph.store.regret(table)
        # Where all rows differ, each is its own.
        extra += most if len(most) == len(row) else most.take(row, axis=1).take(row, axis=0)
    better = extra <= 0
    np.fill_diagonal(better, False)
    if graph.memory is not None:
        for size in graph.memory.segments[node].values():
            better &= size[:, None] <= size[None, :]
    instead, kept = np.arange(len(cost)), np.ones(len(cost), dtype=bool)
    # One at a time, last first: of equal strategies the first stays, and rounding cannot close a
    # circle.
    dominated = np.flatnonzero(better.any(axis=0))[::-1]
    for strategy in dominated.tolist():
        candidates = better[:, strategy] & kept
        first = candidates.argmax()
        if candidates[first]:
            instead[strategy], kept[strategy] = first, False
    # A dominator may have gone after the strategy it replaced; what replaced it then stands for
    # both.
    for strategy in dominated[::-1].tolist():
        instead[strategy] = instead[instead[strategy]]
    return instead


def _package(graph: FactorGraph, num_nodes: int, smallest_peak: int) -> Presolved:
    nodes = graph.nodes
    index = {node: position for position, node in enumerate(nodes)}
    costs = [graph.costs[node] for node in nodes]
    edges = tuple(
        Edge(index[u], index[v], table)
        for u in nodes
        for v, table in sorted(graph.tables[u].items())
        if u < v
    )
    usages, limit, num_times = None, None, 0
    if graph.memory is not None and any(graph.memory.uses(node) for node in nodes):
        usages = graph.memory.usages(nodes)
        limit, num_times = graph.memory.limit, graph.memory.num_times
        # What every assignment holds is the memory of a node more, which has no choice.
        if base := graph.memory.base_usages():
            costs.append(np.zeros(1))
            usages += (base,)
    residual = Problem(tuple(costs), edges, usages, limit, num_times)
    return Presolved(
        problem=residual,
        nodes=tuple(nodes),
        constant=graph.constant,
        log=tuple(graph.log),
        num_nodes=num_nodes,
        smallest_peak=smallest_peak,
    )
