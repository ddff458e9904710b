"""What XLA's backend for hosts writes to memory, in which order, and how often."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from shardopt.graph.op_graph import FactorRule, Op, OpGraph, Tensor
from shardopt.graph.residency import Residency
from shardopt.solve.sharding.compilers.host.execution import host_execution
from shardopt.solve.sharding.intra_op.lifetimes import Lifetimes
from shardopt.solve.sharding.kernels.execution_order import ExecutionOrder, SecondBuffer

# Enough elements for a call of the library.
N = 64
MATRIX, VECTOR = Tensor((N, N), "f32", 4), Tensor((N,), "f32", 4)
SAME = FactorRule((N, N), (((0,), (1,)),), (((0,), (1,)),))
BOTH = FactorRule((N, N), (((0,), (1,)), ((0,), (1,))), (((0,), (1,)),))
ROWS = FactorRule((N, N), (((0,), (1,)),), (((0,),),), frozenset({1}))
SPREAD = FactorRule((N, N), (((0,),),), (((0,), (1,)),))


def unary(name: str, operand: int, result: int, waits: tuple[int, ...] = ()) -> Op:
    return Op(name, (operand,), (result,), SAME, waits=waits)


def binary(name: str, first: int, second: int, result: int) -> Op:
    return Op(name, (first, second), (result,), BOTH)


def row_sums(operand: int, result: int, reducer: str = "add") -> Op:
    return Op("reduce", (operand,), (result,), ROWS, reducer)


def graph_of(*ops: Op, inputs: int = 1, outputs: tuple[int, ...] = ()) -> OpGraph:
    """Results of reductions and operands of broadcasts are vectors, all others matrices."""
    vectors = {op.results[0] for op in ops if op.name == "reduce"}
    number = inputs + len(ops)
    tensors = tuple(VECTOR if t in vectors else MATRIX for t in range(number))
    return OpGraph(tensors, ops, tuple(range(inputs)), outputs or (number - 1,))


def written(graph: OpGraph) -> set[int]:
    fused = host_execution(graph).fused
    return {t for op in graph.ops for t in op.results} - fused


def held(graph: OpGraph, execution: ExecutionOrder) -> list[tuple[int, int, int]]:
    lives = Lifetimes(graph, execution, execution.order, graph.inputs, {}, Residency()).all()
    return [(live.tensor, live.start, live.stop) for live in lives]


def softmax() -> OpGraph:
    """max 1, its rows 2, %0 - 2 3, exp 4, sums 5, their rows 6, 4 / 6 7."""
    return graph_of(
        row_sums(0, 1, "maximum"),
        Op("broadcast_in_dim", (1,), (2,), SPREAD),
        binary("subtract", 0, 2, 3),
        unary("exponential", 3, 4),
        row_sums(4, 5),
        Op("broadcast_in_dim", (5,), (6,), SPREAD),
        binary("divide", 4, 6, 7),
    )


def test_a_call_computes_maxima_and_exponentials_and_writes_only_these() -> None:
    assert written(softmax()) == {4, 5, 7}


def test_what_a_call_reads_is_written_even_if_it_is_a_broadcast() -> None:
    """As of the backward pass of a softmax: the rows of the sums are read again by what a sum of its
    own takes in. Where nothing else reads the sums, the softmax is a product with their inverses,
    and only that reader is left, with the rows within it."""
    forward = softmax()
    backward = binary("divide", 8, 6, 9), row_sums(9, 10)
    tensors = (*forward.tensors, MATRIX, MATRIX, VECTOR)
    alone = OpGraph(tensors, (*forward.ops, *backward), (0, 8), (7, 10))
    assert written(alone) == {4, 5, 7, 10}
    of_sums = Op("sort", (5,), (11,), None)
    shared = OpGraph((*tensors, VECTOR), (*alone.ops, of_sums), (0, 8), (7, 10, 11))
    assert written(shared) == {4, 5, 6, 7, 10, 11}


def test_an_expensive_operation_with_two_readers_is_written_and_a_cheap_one_is_not() -> None:
    for name, is_written in (("tanh", True), ("negate", False)):
        graph = graph_of(
            unary(name, 0, 1), unary("abs", 1, 2), unary("floor", 1, 3), outputs=(2, 3)
        )
        assert (1 in written(graph)) == is_written


def test_a_sum_of_two_is_written_for_a_reader_that_cannot_take_it_in() -> None:
    readers = unary("abs", 2, 3), unary("sort", 2, 4)
    graph = graph_of(binary("add", 0, 1, 2), *readers, inputs=2, outputs=(3, 4))
    execution = host_execution(graph)
    assert 2 not in execution.fused
    assert execution.readers[2] == (1, 2), "nobody adds again"


def test_a_barrier_is_not_fused_through() -> None:
    graph = graph_of(unary("negate", 0, 1), unary("abs", 1, 2, waits=(1,)))
    assert written(graph) == {1, 2}
    assert host_execution(graph).order == (0, 1)


def test_equal_operations_are_one() -> None:
    graph = graph_of(
        unary("tanh", 0, 1), unary("tanh", 0, 2), unary("sort", 1, 3), unary("sort", 2, 4),
        outputs=(3, 4),
    )  # fmt: skip
    assert written(graph) == {1, 3, 4}


PRODUCT = FactorRule((8, 4, N, N), (((0,), (1,), (2,)), ((0,), (1,), (3,))), (((2,), (3,)),),
                     frozenset({0, 1}))  # fmt: skip
BATCH, WEIGHT = Tensor((8, 4, N), "f32", 4), Tensor((N, N), "f32", 4)


def test_what_leaves_a_fragment_is_a_copy_of_what_it_is_given() -> None:
    """A change of shape is another name of its operand inside of a fragment alone."""

    def renamed(reader: int) -> OpGraph:
        return graph_of(
            Op("reshape", (0,), (1,), SAME, group=1),
            Op("convolution", (1,), (2,), SAME, group=reader),
        )

    assert written(renamed(1)) == {2}
    assert written(renamed(2)) == {1, 2}


def test_the_gradient_of_a_weight_reads_a_transposed_copy() -> None:
    """Rows and columns of the batch are contracted: the left operand is written in another order."""
    op = Op("dot_general", (0, 1), (2,), PRODUCT)
    graph = OpGraph((BATCH, BATCH, WEIGHT), (op,), (0, 1), (2,))
    execution = host_execution(graph)
    assert execution.second_buffers == (SecondBuffer(0, 0, (0,)),)
    assert (0, 0, 1) in held(graph, execution)


def test_a_value_that_only_such_a_product_reads_is_made_in_that_order() -> None:
    rule = FactorRule((8, 4, N), (((0,), (1,), (2,)),), (((0,), (1,), (2,)),))
    ops = Op("tanh", (0,), (1,), rule), Op("dot_general", (1, 2), (3,), PRODUCT)
    graph = OpGraph((BATCH, BATCH, BATCH, WEIGHT), ops, (0, 2), (3,))
    execution = host_execution(graph)
    assert execution.second_buffers == () and 1 not in execution.fused


def test_kernels_run_breadth_first() -> None:
    """Two chains of sorts: one after the other in the program, in turns on hosts."""
    chains = [("sort", 0, 2), ("sort", 2, 3), ("sort", 1, 4), ("sort", 4, 5)]
    graph = graph_of(*(unary(*row) for row in chains), inputs=2, outputs=(3, 5))
    assert host_execution(graph).order == (0, 2, 1, 3)


def test_a_loop_writes_over_an_operand_that_dies() -> None:
    """Where a change of shape lies between them, elements lie elsewhere."""
    graph = graph_of(unary("sort", 0, 1), unary("tanh", 1, 2), unary("sort", 2, 3))
    assert (2, 2, 3) in held(graph, host_execution(graph))
    reshape = Op("reshape", (1,), (2,), SAME)
    ops = unary("sort", 0, 1), reshape, unary("tanh", 2, 3), unary("sort", 3, 4)
    graph = graph_of(*ops)
    assert (3, 2, 4) in held(graph, host_execution(graph))


@settings(deadline=None)
@given(st.data())
def test_every_order_is_one_that_can_run(data: st.DataObject) -> None:
    """Whatever is fused: an operation stands behind those that make its operands, and what is
    written is written before it is read."""
    names = st.sampled_from(["add", "multiply", "divide", "sort", "tanh", "negate", "reshape"])
    ops: list[Op] = []
    for result in range(2, 2 + data.draw(st.integers(1, 12))):
        name = data.draw(names)
        operands = [data.draw(st.integers(0, result - 1)) for _ in range(2)]
        is_binary = name in ("add", "multiply", "divide")
        waits = (operands[0],) * data.draw(st.booleans())
        ops.append(
            Op(name, tuple(operands), (result,), BOTH)
            if is_binary
            else unary(name, operands[0], result, waits)
        )
    graph = graph_of(*ops, inputs=2)
    execution = host_execution(graph)
    position = {op: place for place, op in enumerate(execution.order)}
    assert sorted(position) == list(range(len(ops)))
    for index, op in enumerate(ops):
        makers = [operand - 2 for operand in (*op.operands, *op.waits) if operand >= 2]
        assert all(position[maker] < position[index] for maker in makers)
    for tensor in written(graph):
        places = [position[tensor - 2], *(position[op] for op in execution.readers[tensor])]
        assert all(places[0] <= place for place in places)
