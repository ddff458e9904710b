"""Which values a unit keeps for its backward when it recomputes selectively: the cut of its forward
that is worth most.

A value that the backward reads is kept, which costs its bytes, or made again from others, each of
which is there, kept or made again in turn. For any price of a byte in work the cheapest choice is a
minimum cut, as every term is of one of these forms (project selection: Picard, Management Science
22, 1976):

    work of row r        if r runs again
    price · bytes of v   if v is read again and its row does not run again
    forbidden            if r runs again and a value that it reads is not there

    reader ─∞─▶ v ─price · bytes─▶ row of v ─work─▶ sink
                                       └─∞─▶ what it reads ─▶ …

The price is twice what a byte costs that is saved by running all of the forward again, in units of
its own work and bytes: nothing depends on the size of a model. Scores and weights of attention,
norms, activations and masks cost less, products with weights more, and so does attention's product
with values where sequences are long. Korthikanti et al. (arXiv 2205.05198, section 5) select by
hand; Checkmate (arXiv 1910.02653) and the partitioner of PyTorch find cuts for a budget."""

from __future__ import annotations

from collections.abc import Container, Iterable

from shardopt.graph.layered_body import OUTSIDE, LayeredBody
from shardopt.graph.op_graph import SHARED

# FLOPs of the time in which a byte is written: accelerators do 100 to 300 in half precision.
_FLOPS_A_BYTE = 150

# Times the price of a byte under full recomputation. At 1 the cut is the one farthest from the line
# between keeping all and recomputing all; where attention over a long sequence has nearly all of
# the bytes, that is a price in their midst, and some of them would stay.
_PRICE = 2

# Capacities are integers, in these parts of the bytes and of the work at stake.
_PARTS = 2**40
_NEVER = 2**50


def select_kept(
    body: LayeredBody, forward: Container[int], readers: Iterable[int], kept: Container[int]
) -> frozenset[int]:
    """The values that stay for `readers`, backward rows of a unit whose other rows are `forward`;
    all others that they read of these are made again. `kept` are values that stay in any case."""
    network = _Network(body, forward, kept)
    network.add(readers)
    return network.kept()


class _Network:
    def __init__(self, body: LayeredBody, forward: Container[int], kept: Container[int]) -> None:
        self.body, self.forward, self.already = body, forward, kept
        self.wanted: dict[int, None] = {}  # by the readers themselves
        self.values: dict[int, None] = {}  # that may have to be there
        self.rows: dict[int, None] = {}  # that may run again

    def add(self, readers: Iterable[int]) -> None:
        body = self.body
        self.wanted.update(
            (value, None)
            for row in readers
            for value in body.reads[row]
            if body.maker(value) in self.forward and value not in self.already
        )
        stack = list(self.wanted)
        while stack:
            value = stack.pop()
            if value in self.values or self._is_there(value):
                continue
            self.values[value] = None
            row = body.maker(value)
            if row in self.forward and row not in body.random:
                self.rows[row] = None
                stack += body.reads[row]

    def _is_there(self, value: int) -> bool:
        row = self.body.maker(value)
        return row == OUTSIDE or self.body.layers[row] == SHARED or value in self.already

    def kept(self) -> frozenset[int]:
        from ortools.graph.python.max_flow import SimpleMaxFlow

        body = self.body
        entering = [value for value in self.values if body.maker(value) not in self.rows]
        most_bytes = sum(body.sizes[value] for value in self.wanted)
        saved = most_bytes - sum(body.sizes[value] for value in entering)
        work = sum(map(self._work, self.rows))
        if saved <= 0:
            return frozenset(self.wanted)
        node = {value: 2 + k for k, value in enumerate(self.values)}
        node_of_row = {row: 2 + len(node) + k for k, row in enumerate(self.rows)}
        flow, source, sink = SimpleMaxFlow(), 0, 1
        for value in self.wanted:
            flow.add_arc_with_capacity(source, node[value], _NEVER)
        for value in self.values:
            capacity = round(_PRICE * _PARTS * body.sizes[value] / saved)
            row = body.maker(value)
            flow.add_arc_with_capacity(node[value], node_of_row.get(row, sink), capacity)
        for row, at in node_of_row.items():
            flow.add_arc_with_capacity(at, sink, round(_PARTS * self._work(row) / max(work, 1.0)))
            for value in body.reads[row]:
                if value in node:
                    flow.add_arc_with_capacity(at, node[value], _NEVER)
        status = flow.solve(source, sink)
        assert status == flow.OPTIMAL, status
        # The smallest side of all minimum cuts: of equally good choices the one that recomputes
        # least, whatever the order of arcs.
        chosen = set(flow.get_source_side_min_cut())
        return frozenset(
            value
            for value in self.values
            if node[value] in chosen and node_of_row.get(body.maker(value)) not in chosen
        )

    def _work(self, row: int) -> float:
        """FLOPs of as many seconds. Among them is what readers find written; what rows make for
        each other is fused, and so is what only moves data, or names it."""
        flops = self.body.work[row]
        if not flops:
            return 0.0
        written = (self.body.sizes[v] for v in self.body.makes[row] if v in self.wanted)
        return flops + _FLOPS_A_BYTE * sum(written)
