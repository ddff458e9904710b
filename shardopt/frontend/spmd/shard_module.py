"""Shard a whole module over one mesh: what `shardopt shard` prints and writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardopt.frontend.calls.phase_options import option_text
from shardopt.frontend.calls.sources import reported_in, resolve_source, source_name
from shardopt.mesh.mesh import parse_mesh
from shardopt.report.frontier import frontier_table
from shardopt.report.sharding_summary import (
    ShardingSummary,
    signature_table,
    summarize_sharding,
    traffic_table,
)

if TYPE_CHECKING:
    from shardopt.ir.diagnostics import Handler


@dataclass(frozen=True)
class ShardedModule:
    """An annotated module as MLIR bytecode, and what it says."""

    module: bytes
    summary: ShardingSummary

    def text(self) -> str:
        """The module as MLIR text."""
        from shardopt.ir.context import make_context
        from shardopt.ir.io import load_module, module_text

        with make_context() as context:
            return module_text(load_module(self.module, context))

    def tables(self) -> tuple[Any, ...]:
        """Arguments, collectives, and plans of other memory budgets, as `rich` tables."""
        frontier = self.summary.frontier
        more = () if frontier is None else (frontier_table(frontier),)
        return signature_table(self.summary), traffic_table(self.summary), *more


def shard_module(
    source: Any,
    mesh: str,
    options: Mapping[str, object],
    *,
    on_read: Callable[[], None] | None = None,
    handler: Handler | None = None,
) -> ShardedModule:
    """Run `shardopt-intra` with `options` (by their names there) on a model given as to
    `make_plan`.

    `on_read` is called when the model has been read; `handler` gets warnings and remarks. Raises
    UserError."""
    from shardopt.ir.context import make_context
    from shardopt.ir.io import load_module, module_bytecode
    from shardopt.pipeline.manager import run_pipeline

    logical = parse_mesh(mesh)
    text = " ".join(
        f"{name}={option_text(value)}" for name, value in {"mesh": mesh, **options}.items()
    )
    name = source_name(source)
    with make_context() as context, reported_in(name, handler) as report:
        module = load_module(resolve_source(source), context, name=name)
        if on_read is not None:
            on_read()
        run_pipeline(module, f"builtin.module(shardopt-intra{{{text}}})", handler=report)
        return ShardedModule(module_bytecode(module), summarize_sharding(module, logical))
