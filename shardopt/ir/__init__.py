"""MLIR as it is handled: contexts, files, native passes, diagnostics, rewriting."""
