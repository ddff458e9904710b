"""What holds for all tests: they see neither the cache of the user who runs them nor that of
another test, and XLA compiles for them in a third of its time."""

from __future__ import annotations

import os

# Of the processes that tests start, too. A test of the cache names a folder of its own.
os.environ["SHARDOPT_CACHE"] = "off"

# Most of a run was LLVM optimizing programs that run once. The passes over HLO, which partition,
# combine and reorder, are the same without; what is measured against XLA is made by them.
_QUICK_COMPILATION = (
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
    "--xla_cpu_use_fusion_emitters=false",
)
os.environ["XLA_FLAGS"] = " ".join((os.environ.get("XLA_FLAGS", ""), *_QUICK_COMPILATION)).strip()
