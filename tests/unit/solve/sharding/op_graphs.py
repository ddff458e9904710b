"""Small op graphs, built by hand, for the tests of strategies and of the intra-operator problem."""

from __future__ import annotations

from shardopt.graph.op_graph import FactorRule, Op, OpGraph, Tensor
from shardopt.hardware.cluster import Cluster, Device, Link
from shardopt.mesh.mesh import Mesh

# No latencies and slow devices: splitting always pays, so the choice is between ways to split.
CLUSTER = Cluster.uniform(
    "test", 1, 8, Device("d", {"f32": 1e9}, 1 << 30, 1e9), Link(0.0, 1e9), Link(0.0, 1e9), 0.0
)
MESH = Mesh("m", (("x", 2), ("y", 2)), (0, 1, 2, 3))
LINE = Mesh("m", (("x", 4),), (0, 1, 2, 3))


def f32(*shape: int) -> Tensor:
    return Tensor(shape, "f32", 4)


def rule(text: str, sizes: dict[str, int], **kinds: str) -> FactorRule:
    """`rule("ik,kj->ij", {...}, reduction="k")`: one letter a factor; `(ab)` is a dimension of two
    factors."""
    letters = sorted(sizes)
    number = {letter: n for n, letter in enumerate(letters)}

    def tensors(side: str) -> tuple[tuple[tuple[int, ...], ...], ...]:
        return tuple(tuple(_dims(part, number)) for part in side.split(",")) if side else ()

    left, right = text.split("->")
    special = {
        kind: frozenset(number[letter] for letter in marked) for kind, marked in kinds.items()
    }
    return FactorRule(
        tuple(sizes[letter] for letter in letters), tensors(left), tensors(right), **special
    )


def _dims(text: str, number: dict[str, int]) -> list[tuple[int, ...]]:
    dims, inside = [], False
    for letter in text:
        if letter == "(":
            dims.append(())
        if letter in "()":
            inside = letter == "("
        elif inside:
            dims[-1] += (number[letter],)
        else:
            dims.append((number[letter],))
    return dims


def matmul(
    rows: int, inner: int, columns: int, operands: tuple[int, int], result: int, repeat: int = 1
) -> Op:
    sizes = {"i": rows, "k": inner, "j": columns}
    flops = 2.0 * rows * inner * columns
    return Op(
        "dot_general",
        operands,
        (result,),
        rule("ik,kj->ij", sizes, reduction="k"),
        reducer="add",
        flops=flops,
        repeat=repeat,
    )


def elementwise(name: str, shape: tuple[int, ...], operands: tuple[int, ...], result: int) -> Op:
    letters = "abcdef"[: len(shape)]
    text = ",".join([letters] * len(operands)) + "->" + letters
    size = float(f32(*shape).size_bytes // 4)
    return Op(
        name, operands, (result,), rule(text, dict(zip(letters, shape, strict=True))), flops=size
    )


def mlp(batch: int, hidden: int, layers: int) -> OpGraph:
    """x -> relu(x w0) -> relu(… w1) …; tensor 0 is x, tensor 1 + 3k the weight, 2 + 3k and 3 + 3k
    the values."""
    tensors, ops = [f32(batch, hidden)], []
    for layer in range(layers):
        weight = 1 + 3 * layer
        tensors += [f32(hidden, hidden), f32(batch, hidden), f32(batch, hidden)]
        ops.append(matmul(batch, hidden, hidden, (weight - 1, weight), weight + 1))
        ops.append(elementwise("maximum", (batch, hidden), (weight + 1,), weight + 2))
    inputs = (0, *(1 + 3 * layer for layer in range(layers)))
    return OpGraph(tuple(tensors), tuple(ops), inputs, (len(tensors) - 1,))
