"""How long small models within a memory budget take, and how good their plans are.

    python -m benchmarks.solve.small_budgets [--cases 24] [--first 0] [--shares 0.1,0.4,0.7,0.95]
        [--most-seconds 300] [--json after.json] [--against before.json]

Training steps of random small models (perceptrons, attention, convolutions; sizes that meshes
divide and that they do not) on meshes of 3 to 6 devices. Each is planned within budgets between the
least peak that `find_least_peak` finds and the peak of its fastest plan, a share of the way. Each
case has a process of its own; what takes more than so many CPU seconds is given up. With
`--against` the budgets are those of an earlier run, and each plan is held against that run's. Exit
code 1 if one is slower than it was."""

from __future__ import annotations

import argparse
import io
import json
import multiprocessing
import random
import resource
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from time import process_time
from typing import Any

from rich.console import Console

from shardopt.solve.sharding.intra_op.problem import IntraOpProblem

MESHES = {"3": "1x3", "4": "1x4", "6": "1x6", "2x3": "2x3"}
KINDS = ("perceptron", "perceptron", "attention", "convolution")
# What plans may take: that of the options `gap` and `time-limit` of `shardopt plan`.
GAP, TIME_LIMIT = 0.001, 60.0
# A plan is not slower where both are within the gap that is asked for.
_LONGER = 1 + GAP

Step = Callable[..., Any]


@dataclass(frozen=True)
class Row:
    """One plan; `status` is "gave up" where it took too long, "none" where nothing fits."""

    case: str
    mesh: str
    limit: int
    status: str
    seconds: float = float("inf")
    bound: float = 0.0
    gap: float = float("inf")
    peak_bytes: int = 0
    cpu_seconds: float = 0.0

    @property
    def key(self) -> tuple[str, str, int]:
        return self.case, self.mesh, self.limit


def training_step(seed: int) -> tuple[str, Step, tuple[Any, ...]]:
    """Its name, the step, and shapes of weights, moments and a batch."""
    import jax
    import jax.numpy as jnp

    rng = random.Random(seed)
    kind, moments = KINDS[seed % len(KINDS)], rng.randrange(3)
    activation = rng.choice([jnp.tanh, jax.nn.relu, jax.nn.gelu])
    if kind == "perceptron":
        products = rng.randint(2, 4)
        widths = [rng.choice((24, 50, 64, 96, 250)) for _ in range(products)]
        weights = _shapes(*zip(widths, [*widths[1:], widths[0]], strict=True))
        batch, forward = (rng.choice((24, 32, 50)), widths[0]), _perceptron(activation)
    elif kind == "attention":
        hidden, wide = rng.choice(((24, 96), (32, 100), (48, 192)))
        weights = _shapes(*[(hidden, hidden)] * 4, (hidden, wide), (wide, hidden))
        batch, forward = (rng.choice((6, 8)), 16, hidden), _attention(activation)
    else:
        channels = [rng.choice((6, 16, 20, 24)) for _ in range(rng.randint(2, 3))]
        pairs = zip(channels, [*channels[1:], channels[0]], strict=True)
        weights = _shapes(*((3, 3, before, after) for before, after in pairs))
        batch, forward = (rng.choice((6, 8)), 12, 12, channels[0]), _convolution(activation)

    def step(weights: Any, state: Any, x: Any) -> Any:
        def loss(weights: Any) -> Any:
            return jnp.mean((forward(weights, x) - x) ** 2)

        value, gradients = jax.value_and_grad(loss)(weights)
        state = [jax.tree.map(lambda m, g: 0.9 * m + g * g, moment, gradients) for moment in state]
        changes = gradients
        for moment in state:
            changes = jax.tree.map(lambda g, m: g / (jnp.sqrt(m) + 1e-6), changes, moment)
        return jax.tree.map(lambda w, c: w - 0.01 * c, weights, changes), state, value

    shapes = weights, [weights] * moments, jax.ShapeDtypeStruct(batch, jnp.float32)
    return f"{kind} {seed}", step, shapes


def _shapes(*shapes: tuple[int, ...]) -> list[Any]:
    import jax
    import jax.numpy as jnp

    return [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]


def _perceptron(activation: Step) -> Step:
    def forward(weights: Any, x: Any) -> Any:
        for weight in weights[:-1]:
            x = activation(x @ weight)
        return x @ weights[-1]

    return forward


def _attention(activation: Step) -> Step:
    import jax

    def forward(weights: Any, x: Any) -> Any:
        queries, keys, values, out, up, down = weights
        scores = (x @ queries) @ (x @ keys).swapaxes(1, 2)
        x = x + jax.nn.softmax(scores) @ (x @ values) @ out
        return x + activation(x @ up) @ down

    return forward


def _convolution(activation: Step) -> Step:
    import jax

    def forward(weights: Any, x: Any) -> Any:
        for weight in weights:
            x = activation(
                jax.lax.conv_general_dilated(
                    x, weight, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
                )
            )
        return x

    return forward


@lru_cache(maxsize=1)
def problem_of(seed: int, mesh: str) -> tuple[str, IntraOpProblem]:
    """The problem of a step on a mesh, with sums that may stay open, as in plans with stages."""
    import jax
    from jaxlib.mlir import ir

    from shardopt.dialect.cluster import write_cluster
    from shardopt.extract.control_flow import mark_carried
    from shardopt.extract.mesh_graphs import read_plain
    from shardopt.extract.op_graph import sharding_rules
    from shardopt.hardware.cluster_file import load_cluster
    from shardopt.ir.context import make_context
    from shardopt.ir.rewriting import functions
    from shardopt.mesh.mesh import parse_mesh
    from shardopt.pipeline.manager import run_pipeline
    from shardopt.solve.sharding.intra_op.problem import IntraOpTables
    from shardopt.solve.sharding.strategies.linear import find_linear

    name, step, shapes = training_step(seed)
    lowered = jax.jit(step, donate_argnums=(0, 1)).trace(*shapes).lower(lowering_platforms=("cpu",))
    buffer = io.BytesIO()
    lowered.compiler_ir("stablehlo").operation.write_bytecode(buffer)
    cluster = load_cluster(f"cpu-test:{MESHES[mesh]}")
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(buffer.getvalue(), context)
        run_pipeline(module, "builtin.module(shardopt-import)")
        write_cluster(module, cluster)
        mark_carried(module.operation)
        [main] = functions(module)
        with sharding_rules(module):
            graph = read_plain(main, parse_mesh(mesh))
        linear = find_linear(graph.graph, graph.tied, graph.sent)
        tables = IntraOpTables(graph.graph, graph.mesh, cluster, linear=linear)
        problem = tables.problem(tied=tuple(graph.tied), residency=graph.residency)
    return name, problem


def find_limits(seed: int, mesh: str, shares: Sequence[float]) -> tuple[str, list[int]]:
    """Budgets so far of the way from the least peak to that of the fastest plan."""
    from shardopt.solve.sharding.budget.least_peak import find_least_peak
    from shardopt.solve.sharding.budget.model import BudgetModel
    from shardopt.solve.sharding.budget.rematerialization import find_candidates
    from shardopt.solve.sharding.budget.search import fit

    name, problem = problem_of(seed, mesh)
    relaxed = problem.solve(_limits())
    free = fit(problem, None, relaxed=relaxed).plan
    assert free is not None
    model = BudgetModel(problem, find_candidates(problem))
    least = find_least_peak(model, relaxed.choice, None, _limits()).peak_bytes
    room = free.peak_bytes - least
    limits = dict.fromkeys(least + int(share * room) for share in shares) if room > 0 else {}
    return name, list(limits)


def plan(seed: int, mesh: str, limit: int, most_seconds: int) -> Row:
    """The plan within a budget, in a process that ends when it takes too long."""
    from shardopt.solve.sharding.budget.search import fit

    name, problem = problem_of(seed, mesh)
    relaxed = problem.solve(_limits())
    begin = process_time()
    most = int(begin) + most_seconds, resource.RLIM_INFINITY
    resource.setrlimit(resource.RLIMIT_CPU, most)
    found = fit(problem, limit, limits=_limits(), relaxed=relaxed)
    taken, solution = process_time() - begin, found.solution
    if found.plan is None:
        return Row(name, mesh, limit, "none", cpu_seconds=taken)
    peak = found.plan.peak_bytes
    figures = solution.objective, solution.bound, solution.gap, peak, taken
    return Row(name, mesh, limit, solution.status, *figures)


def _limits() -> Any:
    from shardopt.solve.assignment.limits import SearchLimits, work_of

    return SearchLimits(gap_tolerance=GAP, work=work_of(TIME_LIMIT))


class _Process:
    """Calls one after the other, in another process, which ends with a call that takes too long."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        if self._pool is None:
            self._pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
        return self._pool.submit(function, *arguments).result()

    def end(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
        self._pool = None


def _rows(args: argparse.Namespace, known: Sequence[Row]) -> Iterator[Row]:
    shares = [float(share) for share in args.shares.split(",")]
    process = _Process()
    for number in range(args.first, args.first + args.cases):
        mesh = list(MESHES)[number // len(KINDS) % len(MESHES)]
        name, limits = f"{KINDS[number % len(KINDS)]} {number}", list[int]()
        if args.against:
            limits = [row.limit for row in known if (row.case, row.mesh) == (name, mesh)]
        else:
            name, limits = process.call(find_limits, number, mesh, shares)
        for limit in limits:
            try:
                yield process.call(plan, number, mesh, limit, args.most_seconds)
            except BrokenProcessPool:
                process.end()
                most = float(args.most_seconds)
                yield Row(name, mesh, limit, "gave up", cpu_seconds=most)
        process.end()


def line(row: Row, before: Row | None) -> str:
    figures = f"{row.seconds * 1e3:.5g} ms, gap {row.gap:.2%}, {row.cpu_seconds:.1f} CPU s"
    if before is not None:
        ratio = f"{row.seconds / before.seconds:.5f}" if before.status != "gave up" else "-"
        figures += f"; before {before.status}, x {ratio}, gap {before.gap:.2%}"
        figures += f", {before.cpu_seconds:.1f} CPU s"
    return f"{row.case} on {row.mesh} within {row.limit}: {row.status}, {figures}"


def is_slower(row: Row, before: Row | None) -> bool:
    return before is not None and row.seconds > before.seconds * _LONGER


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=24)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--shares", default="0.1,0.4,0.7,0.95")
    parser.add_argument("--most-seconds", type=int, default=300)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--against", type=Path)
    args = parser.parse_args()
    known = [Row(**row) for row in json.loads(args.against.read_text())] if args.against else []
    before = {row.key: row for row in known}
    console, rows = Console(width=200), list[Row]()
    for row in _rows(args, known):
        rows.append(row)
        console.print(line(row, before.get(row.key)), markup=False, highlight=False)
        if args.json:
            args.json.write_text(json.dumps([asdict(each) for each in rows], indent=1) + "\n")
    taken = sum(row.cpu_seconds for row in rows)
    slower = [row for row in rows if is_slower(row, before.get(row.key))]
    console.print(f"{len(rows)} plans, {taken:.1f} CPU s, {len(slower)} slower than before")
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
