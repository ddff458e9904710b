"""What holds for all tests: they see neither the cache of the user who runs them nor that of
another test, and XLA compiles for them in a third of its time."""

from __future__ import annotations

import os

# Of the processes that tests start, too. A test of the cache names a folder of its own.
os.environ["SHARDOPT_CACHE"] = "off"

# Most of a run was XLA making fast code of programs that run once. The passes over HLO, which
# partition, combine and reorder, are the same without. What is said of XLA's kernels is compiled
# with the usual ones (`compile_quickly`).
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
_FLAGS = (os.environ.get("XLA_FLAGS", ""), "--xla_cpu_use_fusion_emitters=false")
os.environ["XLA_FLAGS"] = " ".join(_FLAGS).strip()
