"""A known method (`shardopt.solve.presets`) as the way a candidate stage is sharded.

The stage is looked at alone, as the shard phase will see its mesh: what other layers make arrives as an input, which
carries the batch where the whole step does, and the first product of the stage begins a new pair.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from shardopt.cost.graph import OpGraph
from shardopt.solve.presets.base import Restriction, Roles
from shardopt.solve.presets.flow import batch_dims
from shardopt.solve.presets.presets import restrict
from shardopt.solve.sharding.intra_op import IntraOpTables

# The update is no part of a candidate, so optimizer state cannot tell these methods apart.
_WITHOUT_UPDATE = {"zero1": "data", "expert-zero1": "expert"}


class StageMethods:
    """Restrictions of any part of one step. `roles` are those of the inputs of `graph`."""

    def __init__(self, graph: OpGraph, roles: Roles) -> None:
        self.graph, self.roles = graph, roles
        self.batch = batch_dims(graph, roles)
        self.producers = graph.producers()

    def signature(self, method: str, numbers: Mapping[int, int]) -> tuple[object, ...]:
        """What a restriction depends on besides operations and dataflow; `numbers` are those of the tensors of a part
        by first occurrence."""
        if method == "ilp":
            return ()
        known = self.roles
        rows = ((numbers[t], t in known.state, t in known.batch, self.batch[t]) for t in numbers)
        return (method, *sorted(rows, key=lambda row: row[0]))

    def restriction(self, method: str, tables: IntraOpTables, ops: Sequence[int]) -> Restriction:
        """What `method` leaves of the strategies of the operations `ops`, ascending; `tables` are those of the whole
        step. Raises UserError when the method does not apply to them."""
        if method == "ilp":
            return Restriction()
        part = _part(self.graph, ops)
        linear = [tables.linear[op] for op in ops] if tables.linear else ()
        own = IntraOpTables(part, tables.mesh, tables.strategies.cluster, linear=linear, strategies=tables.strategies)
        found = restrict(_WITHOUT_UPDATE.get(method, method), own, self._roles_of(part))
        return Restriction(found.fixed, {ops[op]: numbers for op, numbers in found.allowed.items()})

    def _roles_of(self, part: OpGraph) -> Roles:
        given = set(part.inputs)
        inside = given.union(*(op.results for op in part.ops))
        arriving = (tensor for tensor in part.inputs if self.producers[tensor] >= 0)
        return replace(
            self.roles,
            state=frozenset(self.roles.state & given),
            batch={tensor: dim for tensor, dim in self.roles.batch.items() if tensor in given},
            received={tensor: dim for tensor in arriving if (dim := self.batch[tensor]) is not None},
            tied=tuple((a, b) for a, b in self.roles.tied if a in inside and b in inside),
        )


def _part(graph: OpGraph, ops: Sequence[int]) -> OpGraph:
    """The operations `ops` alone; tensors keep their numbers. Loops are left out: presets do not look at them."""
    chosen = tuple(graph.ops[op] for op in ops)
    made = {tensor for op in chosen for tensor in op.results}
    read = dict.fromkeys(tensor for op in chosen for tensor in op.operands if tensor not in made)
    inside = set(ops)
    consumers, leaving = graph.consumers(), set(graph.outputs)
    outputs = (t for t in sorted(made) if t in leaving or not inside.issuperset(consumers[t]))
    return OpGraph(graph.tensors, chosen, tuple(read), tuple(outputs))
