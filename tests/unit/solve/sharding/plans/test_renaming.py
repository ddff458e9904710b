"""A plan under other numbers of operations: what is recomputed follows from itself in the order of
the program that it is for."""

from __future__ import annotations

import numpy as np

from shardopt.graph.op_graph import OpGraph
from shardopt.mesh.mesh import Sharding
from shardopt.solve.sharding.intra_op.plan import IntraOpPlan
from shardopt.solve.sharding.intra_op.rematerialized import Rematerialized
from shardopt.solve.sharding.plans.renaming import renamed
from shardopt.solve.sharding.strategies.strategies import marker_strategy
from tests.unit.solve.sharding.op_graphs import LINE, elementwise, f32

SHAPE = (8, 8)
WHOLE, SPLIT = Sharding.replicated(2), Sharding((("x",), ()))


def test_a_chain_is_in_the_order_of_the_program_that_it_is_renamed_for() -> None:
    """Two operations that do not follow from each other stand the other way round there."""
    first = elementwise("tanh", SHAPE, (0,), 1)
    second = elementwise("sine", SHAPE, (0,), 2)
    rest = (elementwise("add", SHAPE, (1, 2), 3), elementwise("multiply", SHAPE, (0, 3), 4))
    graphs = [
        OpGraph((f32(*SHAPE),) * 5, (*pair, *rest), (0,), (4,))
        for pair in ((first, second), (second, first))
    ]
    whole, split = map(marker_strategy, (WHOLE, SPLIT))
    remat = Rematerialized(
        tensor=3,
        chain=(0, 1, 2),
        strategies=(whole, split, whole),
        readers=(3,),
        gap=(2, 3),
        extended=(),
        scratch_bytes=0,
        seconds=0.0,
    )
    plan = IntraOpPlan(
        graph=graphs[0],
        mesh=LINE,
        shardings=dict.fromkeys(range(5), WHOLE),
        strategies={0: whole, 1: split, 2: whole, 3: whole},
        cheap_to_clone=frozenset(),
        fused=frozenset(),
        fresh=frozenset(),
        communication=(),
        order=(0, 1, 2, 3),
        live_bytes=np.zeros(4, dtype=np.int64),
        rematerialized=(remat,),
    )
    other = renamed(plan, graphs[1], LINE, {t: t for t in range(5)}, {0: 1, 1: 0, 2: 2, 3: 3})
    [moved] = other.rematerialized
    assert moved.chain == (0, 1, 2)
    assert moved.strategies == (split, whole, whole)
    assert moved.readers == (3,)
