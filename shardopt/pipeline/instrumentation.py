"""What can watch a pipeline run: the hooks that the manager calls. Printing, dumps and figures are
built on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxlib.mlir import ir

from shardopt.pipeline.parser import Leaf, Pipeline

if TYPE_CHECKING:
    from shardopt.pipeline.manager import PipelineResult


class Instrumentation:
    """Hooks around passes, which do nothing here. A module that `after` sees has been verified,
    unless that is off."""

    def begin(self, pipeline: Pipeline, module: ir.Module) -> None:
        """Before the first pass."""

    def before(self, leaf: Leaf, module: ir.Module) -> None:
        """Before each pass."""

    def after(self, leaf: Leaf, module: ir.Module) -> None:
        """After each pass that succeeded."""

    def failed(self, leaf: Leaf, error: Exception, module: ir.Module) -> None:
        """After a pass that raised; the module may be invalid, and printing it is at the user's
        risk."""

    def end(self, result: PipelineResult) -> None:
        """After the last pass of a pipeline that succeeded."""
