"""The tool `shardopt-opt`: passes, phases and pipelines on a module, with the flags of
`mlir-opt`."""

from shardopt.tools.opt.tool import main

__all__ = ["main"]
