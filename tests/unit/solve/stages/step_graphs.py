"""Hand-made training steps as op graphs: a network of matrix products and its backward pass, as
autodiff writes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from shardopt.graph.op_graph import FactorRule, Op, OpGraph, Tensor
from shardopt.solve.stages.layers.layering import LayerProblem, assign_layers
from shardopt.solve.stages.step_graph import StepGraph, sum_point

WIDTH = 8
_SQUARE, _DIMS = (WIDTH, WIDTH), ((0,), (1,))
_PRODUCT = FactorRule(
    (WIDTH,) * 3, (((0,), (2,)), ((2,), (1,))), (_DIMS,), reduction=frozenset({2})
)


@dataclass
class StepBuilder:
    """Nodes `h_k = tanh(h_i @ w) + …`, then `backward` from the last; everything is WIDTH x
    WIDTH."""

    tensors: list[Tensor] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    nodes: list[tuple[int, int, int]] = field(default_factory=list)  # (input, weight, output)
    weights: list[int] = field(default_factory=list)
    weight_of: dict[int, tuple[int, ...]] = field(default_factory=dict)
    accumulators: dict[int, int] = field(default_factory=dict)
    free: set[int] = field(default_factory=set)

    def tensor(self, shape: tuple[int, ...] = (WIDTH, WIDTH)) -> int:
        self.tensors.append(Tensor(shape, "f32", 4))
        return len(self.tensors) - 1

    def weight(self) -> int:
        self.weights.append(self.tensor())
        return self.weights[-1]

    def op(self, label: str, name: str, *operands: int) -> int:
        """Append an operation; its result."""
        result = self.tensor()
        rule = (
            _PRODUCT
            if name == "dot_general"
            else FactorRule(_SQUARE, (_DIMS,) * len(operands), (_DIMS,))
        )
        flops = {"dot_general": 2.0 * WIDTH**3, "constant": 0.0, "transpose": 0.0}.get(
            name, float(WIDTH**2)
        )
        self.ops.append(
            Op(name, operands, (result,), rule, "add" if rule is _PRODUCT else None, flops)
        )
        self.names.append(label)
        return result

    def node(self, source: int, weight: int) -> int:
        """`tanh(source @ weight)`, with the labels `f<k>` and `f<k>.tanh`."""
        label = f"f{len(self.nodes)}"
        output = self.op(f"{label}.tanh", "tanh", self.op(label, "dot_general", source, weight))
        self.nodes.append((source, weight, output))
        return output

    def accumulate(self, label: str, value: int) -> int:
        accumulator = self.tensor()
        output = self.op(label, "add", accumulator, value)
        self.accumulators[output] = accumulator
        return output

    def backward(
        self, seed: int, trained: Sequence[int], sums: dict[int, tuple[int, int]] | None = None
    ) -> None:
        """Gradients of `trained`, from the gradient `seed` of the last node; sums[a] = (b, c):
        value a is b + c."""
        gradient = {self.nodes[-1][2]: seed}
        terms: dict[int, list[int]] = {}
        for k in reversed(range(len(self.nodes))):
            source, weight, output = self.nodes[k]
            if output not in gradient:
                continue
            inner = self.op(f"b{k}.tanh", "multiply", gradient[output], output)
            terms.setdefault(weight, []).append(self.op(f"b{k}.dw", "dot_general", source, inner))
            passed = self.op(f"b{k}.dx", "dot_general", inner, weight)
            for part in (sums or {}).get(source, (source,)):
                gradient[part] = (
                    passed
                    if part not in gradient
                    else self.op(f"b{k}.sum", "add", gradient[part], passed)
                )
        for weight in trained:
            total = terms[weight][0]
            for term in terms[weight][1:]:
                total = self.op(f"w{weight}.sum", "add", total, term)
            self.weight_of[self.accumulate(f"w{weight}.acc", total)] = (weight,)

    def problem(self, num_layers: int | None, **options: object) -> LayerProblem:
        defined = {result for op in self.ops for result in op.results}
        inputs = tuple(t for t in range(len(self.tensors)) if t not in defined)
        graph = OpGraph(tuple(self.tensors), tuple(self.ops), inputs, tuple(self.accumulators))
        problem = LayerProblem(
            graph, self.weight_of, self.accumulators, frozenset(self.free), num_layers
        )
        return problem if not options else type(problem)(**{**vars(problem), **options})

    def step(self, num_layers: int, microbatches: int) -> StepGraph:
        """The whole step: accumulators begin as zeros, and the sum of each gradient is taken off
        its weight."""
        body = self.problem(num_layers)
        layers = assign_layers(body).layer
        producer = body.graph.producers()
        tensors = list(self.tensors)

        def fresh(like: int) -> int:
            tensors.append(tensors[like])
            return len(tensors) - 1

        zero = FactorRule(_SQUARE, (), (_DIMS,))
        starts = [
            Op("constant", (), (before,), zero, zero=True) for before in self.accumulators.values()
        ]
        inner = [replace(op, repeat=microbatches) for op in self.ops]
        behind: list[Op] = []
        behind_layers: list[int] = []
        returned, donated = [], []
        for after in self.accumulators:
            total, weights = fresh(after), self.weight_of.get(after, ())
            behind.append(sum_point(after, total, _SQUARE))
            for weight in weights:
                updated = fresh(weight)
                behind.append(
                    Op(
                        "subtract",
                        (weight, total),
                        (updated,),
                        FactorRule(_SQUARE, (_DIMS,) * 2, (_DIMS,)),
                    )
                )
                donated.append((weight, updated))
                returned.append(updated)
            returned += [] if weights else [total]
            behind_layers += [layers[producer[after]]] * (1 + len(weights))
        carried_layers = [layers[producer[after]] for after in self.accumulators]
        from_outside = set(body.graph.inputs) - set(self.accumulators.values())
        graph = OpGraph(
            tuple(tensors), (*starts, *inner, *behind), tuple(sorted(from_outside)), tuple(returned)
        )
        readers = body.graph.consumers()
        owner = {
            tensor: min((layers[op] for op in readers[tensor]), default=0)
            for tensor in sorted(from_outside)
        }
        carried = tuple((before, after) for after, before in self.accumulators.items())
        loop = len(starts), len(starts) + len(inner)
        return StepGraph(
            graph,
            (*carried_layers, *layers, *behind_layers),
            loop,
            carried,
            (*carried, *donated),
            owner,
        )
