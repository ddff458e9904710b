"""Two layers with an Adam-like update, a global norm and a step count: who owns the operations
around the loop."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from shardopt.graph.op_graph import SHARED, Op, OpGraph, Tensor
from shardopt.solve.stages.layers.ownership import (
    SMALL_BYTES,
    Ownership,
    OwnershipProblem,
    assign_owners,
)

BIG, SCALAR = (64, 64), ()


@dataclass
class MainBuilder:
    """`@main` without its loop: operations are added in order, `start_epilogue` separates its two
    halves."""

    tensors: list[Tensor] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    owned: dict[int, int] = field(default_factory=dict)
    demand: dict[int, tuple[int, ...]] = field(default_factory=dict)
    num_prologue: int = 0

    def tensor(self, shape: tuple[int, ...] = BIG, owner: int | None = None) -> int:
        self.tensors.append(Tensor(shape, "f32", 4))
        if owner is not None:
            self.owned[len(self.tensors) - 1] = owner
        return len(self.tensors) - 1

    def op(
        self, label: str, *operands: int, name: str = "multiply", shape: tuple[int, ...] = BIG
    ) -> int:
        result = self.tensor(shape)
        self.ops.append(Op(name, operands, (result,), None))
        self.names.append(label)
        return result

    def start_epilogue(self) -> None:
        self.num_prologue = len(self.ops)

    def solve(self) -> tuple[dict[str, int], Ownership]:
        defined = {result for op in self.ops for result in op.results}
        inputs = tuple(t for t in range(len(self.tensors)) if t not in defined)
        graph = OpGraph(tuple(self.tensors), tuple(self.ops), inputs, ())
        ownership = assign_owners(
            OwnershipProblem(graph, self.num_prologue, self.owned, self.demand)
        )
        return dict(zip(self.names, ownership.op_layer, strict=True)), ownership


def test_update_follows_parameter_and_gradient() -> None:
    main = MainBuilder()
    weights, moments = [main.tensor(owner=k) for k in (0, 1)], [main.tensor() for _ in (0, 1)]
    main.start_epilogue()
    gradients = [main.tensor(owner=k) for k in (0, 1)]
    for k in (0, 1):
        moment = main.op(f"moment{k}", moments[k], gradients[k])
        main.op(f"update{k}", weights[k], moment)
    layers, ownership = main.solve()
    assert layers == {"moment0": 0, "update0": 0, "moment1": 1, "update1": 1}
    assert [ownership.input_layer[t] for t in moments] == [0, 1], (
        "optimizer state lives with its parameter"
    )


def test_global_norm_travels_as_scalars() -> None:
    main = MainBuilder()
    main.start_epilogue()
    gradients = [main.tensor(owner=k) for k in (0, 1)]
    squares = [main.op(f"square{k}", gradients[k], name="reduce", shape=SCALAR) for k in (0, 1)]
    norm = main.op("norm", *squares, shape=SCALAR)
    for k in (0, 1):
        spread = main.op(f"spread{k}", norm, name="broadcast_in_dim")
        main.op(f"scaled{k}", gradients[k], spread)
    layers, _ = main.solve()
    assert [layers["square0"], layers["square1"], layers["scaled0"], layers["scaled1"]] == [
        0,
        1,
        0,
        1,
    ]
    assert [layers["spread0"], layers["spread1"]] == [0, 1], (
        "a broadcast belongs to its reader, so the scalar is sent"
    )
    assert layers["norm"] in (0, 1)


def test_scalars_of_several_layers_are_copied() -> None:
    main = MainBuilder()
    count = main.tensor(SCALAR)
    main.start_epilogue()
    one = main.op("one", name="constant", shape=SCALAR)
    rate = main.op("rate", main.op("next", count, one, shape=SCALAR), shape=SCALAR)
    spread = main.op("spread", rate, name="broadcast_in_dim")
    for k in (0, 1):
        main.op(f"update{k}", main.tensor(owner=k), spread)
    layers, ownership = main.solve()
    assert {layers[name] for name in ("one", "next", "rate", "spread")} == {SHARED}
    assert ownership.input_layer[count] == 0


def test_scalar_of_one_layer_stays_with_it() -> None:
    main = MainBuilder()
    count = main.tensor(SCALAR)
    main.start_epilogue()
    rate = main.op("rate", count, shape=SCALAR)
    main.op("update", main.tensor(owner=1), rate)
    layers, ownership = main.solve()
    assert layers["rate"] == 1
    assert ownership.input_layer[count] == 1


def test_constants_are_always_copied() -> None:
    main = MainBuilder()
    zeros = main.op("zeros", name="constant")
    main.demand[zeros] = (1,)
    assert main.solve()[0]["zeros"] == SHARED


def test_prologue_follows_its_readers_in_the_loop() -> None:
    main = MainBuilder()
    batch = main.tensor()
    cast = main.op("cast", batch, name="reshape")
    labels = main.op("labels", main.tensor(), name="reshape")
    main.demand |= {cast: (0,), labels: (1,)}
    layers, ownership = main.solve()
    assert (layers["cast"], layers["labels"]) == (0, 1)
    assert ownership.input_layer[batch] == 0


def test_large_value_of_several_layers_has_one_owner() -> None:
    main = MainBuilder()
    table = main.op("table", main.tensor())
    main.demand[table] = (2, 1)
    assert main.solve()[0]["table"] == 1


@pytest.mark.parametrize(
    ("extent", "expected"), [(SMALL_BYTES // 4, SHARED), (SMALL_BYTES // 4 + 1, 0)]
)
def test_small_has_a_limit(extent: int, expected: int) -> None:
    main = MainBuilder()
    key = main.op("key", main.tensor((extent,)), shape=(extent,))
    main.demand[key] = (0, 1)
    assert main.solve()[0]["key"] == expected


def test_what_nobody_reads_belongs_to_the_first_layer() -> None:
    main = MainBuilder()
    main.op("unused", main.tensor())
    layers, ownership = main.solve()
    assert layers == {"unused": 0}
    assert set(ownership.input_layer.values()) == {0}
