"""Strategies as texts, and whole solutions as a plan file keeps them (`PlannedShardings`).

shardings of the operands, of the results, and what the operation itself makes where that differs:

    dot_general [{x}, {}], [{}, {y}] -> [{x}, {y}]
    dot_general [{}, {x}], [{x}, {}] -> [{x}, {}] from [{}, {}]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from shardopt.graph.op_graph import OpGraph
from shardopt.mesh.mesh import Mesh, Sharding
from shardopt.mesh.sharding_text import parse_sharding, sharding_text
from shardopt.planfile.parts import PlannedCopy, PlannedRemat, PlannedShardings
from shardopt.solve.assignment.problem import Solution
from shardopt.solve.sharding.intra_op.finished import finished
from shardopt.solve.sharding.intra_op.plan import IntraOpPlan
from shardopt.solve.sharding.intra_op.problem import IntraOpProblem, IntraOpTables
from shardopt.solve.sharding.intra_op.rematerialized import Rematerialized
from shardopt.solve.sharding.strategies.strategies import Strategy
from shardopt.support.errors import UserError

# Strategies named in the error about an unknown one.
_MAX_LISTED = 6


def strategy_text(name: str, strategy: Strategy) -> str:
    operands, results, made = (
        ", ".join(map(sharding_text, each))
        for each in (strategy.operands, strategy.results, strategy.unscattered)
    )
    text = f"{name} {operands} -> {results}" if operands else f"{name} -> {results}"
    return text if made == results else f"{text} from {made}"


@dataclass
class StrategyTexts:
    """The texts of the strategies of each operation of some tables; strategies with equal texts are
    numbered."""

    tables: IntraOpTables
    _known: dict[tuple[str, int], dict[str, int]] = field(default_factory=dict)
    _texts: dict[tuple[str, int], dict[Strategy, str]] = field(default_factory=dict)

    def of(self, op: int) -> Mapping[str, int]:
        """Number of the strategy by text."""
        name, strategies = self.tables.graph.ops[op].name, self.tables.ops[op].strategies
        key = name, id(strategies)
        if key not in self._known:
            numbers: dict[str, int] = {}
            for number, strategy in enumerate(strategies):
                text, times = strategy_text(name, strategy), 2
                unique = text
                while unique in numbers:
                    unique, times = f"{text} #{times}", times + 1
                numbers[unique] = number
            self._known[key] = numbers
        return self._known[key]

    def text(self, op: int, strategy: Strategy) -> str:
        """Of a strategy that the tables have made, or an equal one of another process."""
        name, strategies = self.tables.graph.ops[op].name, self.tables.ops[op].strategies
        key = name, id(strategies)
        if key not in self._texts:
            self._texts[key] = {strategies[number]: text for text, number in self.of(op).items()}
        return self._texts[key][strategy]

    def number(self, op: int, text: str, path: str) -> int:
        """Raises UserError that names what the operation can do."""
        known = self.of(op)
        if text not in known:
            some = "; ".join([*known][:_MAX_LISTED]) + ("; …" if len(known) > _MAX_LISTED else "")
            raise UserError(
                f"field '{path}': expected a way to split operation {op}: {some}; "
                f"found {text!r:.200}"
            )
        return known[text]


def input_name(tensor: int, arguments: Mapping[int, int]) -> str:
    """`arguments`: argument number by tensor."""
    return f"arg{arguments[tensor]}" if tensor in arguments else f"tensor{tensor}"


def record(
    plan: IntraOpPlan,
    tables: IntraOpTables,
    numbers: Mapping[int, int],
    arguments: Mapping[int, int],
) -> PlannedShardings:
    """What a plan file keeps of a plan. `tables` are those of its graph, or of one that looks
    alike, in which its operations have other `numbers`."""
    texts = StrategyTexts(tables)
    producers = plan.graph.producers()
    return PlannedShardings(
        {
            input_name(tensor, arguments): sharding_text(sharding)
            for tensor, sharding in sorted(plan.shardings.items())
            if producers[tensor] < 0
        },
        tuple(texts.text(numbers[op], plan.strategies[op]) for op in range(len(plan.graph.ops))),
        tuple(
            PlannedRemat(
                tensor=remat.tensor,
                chain=remat.chain,
                strategies=tuple(
                    texts.text(numbers[op], s)
                    for op, s in zip(remat.chain, remat.strategies, strict=True)
                ),
                readers=remat.readers,
                gap=remat.gap,
                extended=remat.extended,
                scratch_bytes=remat.scratch_bytes,
                seconds=remat.seconds,
            )
            for remat in plan.rematerialized
        ),
        tuple(
            PlannedCopy(t, sharding_text(s), op)
            for t, s, op in sorted(plan.fresh, key=lambda f: (f[2], f[0], str(f[1])))
        ),
    )


def restore(
    problem: IntraOpProblem, planned: PlannedShardings, arguments: Mapping[int, int], path: str
) -> tuple[Solution, IntraOpPlan]:
    """The solution that a plan file tells, without search. `path` is the field of the shardings.

    Raises UserError for shardings that do not exist, or that do not fit together.
    """
    tables, texts = problem.tables, StrategyTexts(problem.tables)
    if len(planned.ops) != len(problem.ops):
        raise UserError(
            f"field '{path}.ops': expected {len(problem.ops)} operations, found {len(planned.ops)}"
        )
    choice = [
        texts.number(op, text, f"{path}.ops[{op}]")
        for op, text in zip(problem.ops, planned.ops, strict=True)
    ]
    for tensor in problem.inputs:
        name = input_name(tensor, arguments)
        choice.append(
            _sharding_number(problem, tensor, planned.inputs.get(name), f"{path}.inputs.{name}")
        )
    objective = problem.seconds(choice)
    if objective == float("inf"):
        raise UserError(
            f"field '{path}': the shardings do not fit together: {_conflict(problem, choice)}"
        )
    solution = Solution(tuple(choice), objective, 0.0, 1.0, "feasible")
    rematerialized = tuple(
        _rematerialized(tables, texts, row, f"{path}.rematerialized[{k}]")
        for k, row in enumerate(planned.rematerialized)
    )
    fresh = {(row.tensor, parse_sharding(row.sharding), row.op) for row in planned.copies}
    plan = problem.decode(solution, rematerialized, frozenset(fresh))
    return solution, finished(problem, plan)


def fixed_inputs(
    planned: PlannedShardings, graph: OpGraph, mesh: Mesh, arguments: Mapping[int, int], path: str
) -> dict[int, Sharding]:
    """Tensor -> sharding, for a file that gives shardings of arguments only.

    Raises UserError for unknown names, and for shardings that do not fit.
    """
    named = {f"arg{number}": tensor for tensor, number in arguments.items()}
    unknown = [name for name in planned.inputs if name not in named]
    if unknown:
        known = ", ".join(named)
        raise UserError(
            f"field '{path}.inputs': expected arguments of the stage ({known}), found "
            f"'{unknown[0]}'"
        )
    shardings = {
        name: _parsed(text, f"{path}.inputs.{name}") for name, text in planned.inputs.items()
    }
    for name, sharding in shardings.items():
        try:
            sharding.check(mesh, graph.tensors[named[name]].shape)
        except ValueError as error:
            raise UserError(f"field '{path}.inputs.{name}': {error}") from None
    return {named[name]: sharding for name, sharding in shardings.items()}


def _parsed(text: str, path: str) -> Sharding:
    try:
        return parse_sharding(text)
    except ValueError as error:
        raise UserError(f"field '{path}': {error}") from None


def _sharding_number(problem: IntraOpProblem, tensor: int, text: str | None, path: str) -> int:
    if text is None:
        raise UserError(f"missing field '{path}'")
    shardings, sharding = problem.columns[tensor].shardings, _parsed(text, path)
    if sharding not in shardings:
        known = "; ".join(map(sharding_text, shardings[:_MAX_LISTED])) + (
            "; …" if len(shardings) > _MAX_LISTED else ""
        )
        shape = "x".join(map(str, problem.tables.graph.tensors[tensor].shape))
        raise UserError(
            f"field '{path}': expected a sharding of shape {shape}: {known}; found {text!r:.80}"
        )
    return shardings.index(sharding)


def _conflict(problem: IntraOpProblem, choice: Sequence[int]) -> str:
    """What no chain of collectives can do."""
    for edge in problem.problem.edges:
        if edge.cost[choice[edge.u], choice[edge.v]] == float("inf"):
            names = (
                f"operation {n}" if n < len(problem.ops) else "an input" for n in (edge.u, edge.v)
            )
            return " and ".join(names)
    return "one is not allowed here"


def _rematerialized(
    tables: IntraOpTables, texts: StrategyTexts, row: PlannedRemat, path: str
) -> Rematerialized:
    count = len(tables.graph.ops)
    if not all(0 <= op < count for op in (*row.chain, *row.readers)) or len(row.chain) != len(
        row.strategies
    ):
        raise UserError(
            f"field '{path}': expected operations below {count}, each of the chain "
            "with its strategy"
        )
    strategies = tuple(
        tables.ops[op].strategies[texts.number(op, text, f"{path}.strategies")]
        for op, text in zip(row.chain, row.strategies, strict=True)
    )
    return Rematerialized(
        tensor=row.tensor,
        chain=row.chain,
        strategies=strategies,
        readers=row.readers,
        gap=row.gap,
        extended=row.extended,
        scratch_bytes=row.scratch_bytes,
        seconds=row.seconds,
    )
