"""What holds for all tests: they see neither the cache of the user who runs them nor that of
another test, and XLA compiles for them in a third of its time."""

from __future__ import annotations

import os

from shardopt.ir.jax_versions import kernel_options

# Of the processes that tests start, too. A test of the cache names a folder of its own.
os.environ["SHARDOPT_CACHE"] = "off"

# Most of a run was XLA making fast code of programs that run once. The passes over HLO, which
# partition, combine and reorder, are the same without. What is said of XLA's kernels is compiled
# with the usual ones (`compile_quickly`).
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
_CHOICES = (f"--{name}={value}" for name, value in kernel_options(usual_kernels=False))
os.environ["XLA_FLAGS"] = " ".join((os.environ.get("XLA_FLAGS", ""), *_CHOICES)).strip()
