"""What holds for all tests: they see neither the cache of the user who runs them nor that of
another test, XLA compiles for them in a third of its time, garbage is collected seldom, and no child
reads first what they have exported themselves. A run without slow tests draws less, and says how
many it left out."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from shardopt.ir.jax_versions import kernel_options
from shardopt.ir.trial import made_here
from tests import draws

# The same draws in every run, however busy the machine. `--hypothesis-profile=explore` draws anew.
_PATIENT = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("suite", derandomize=True, **_PATIENT)
settings.register_profile("explore", derandomize=False, **_PATIENT)
settings.load_profile("suite")

# Of the processes that tests start, too. A test of the cache names a folder of its own.
os.environ["SHARDOPT_CACHE"] = "off"

# Most of a run was XLA making fast code of programs that run once. The passes over HLO, which
# partition, combine and reorder, are the same without. What is said of XLA's kernels is compiled
# with the usual ones (`compile_quickly`).
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
_CHOICES = (f"--{name}={value}" for name, value in kernel_options(usual_kernels=False))
os.environ["XLA_FLAGS"] = " ".join((os.environ.get("XLA_FLAGS", ""), *_CHOICES)).strip()

# An eighth of the time of tests that solve and compile was looking for garbage, of which there is
# little: JAX is called back each time, and the modules that tests have imported stay.
gc.set_threshold(20_000, 10, 20)


_QUICK_ONLY, _LEFT_OUT = "not slow", pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    draws.quick = config.option.markexpr == _QUICK_ONLY
    if draws.quick and not config.getoption("--hypothesis-profile"):
        suite = settings.get_profile("suite")
        count = draws.draws(suite.max_examples)
        settings.register_profile("quick", suite, max_examples=count)
        settings.load_profile("quick")


def pytest_collection_finish(session: pytest.Session) -> None:
    del session
    if "jax" in sys.modules:  # tests of what needs no JAX start without it
        _trust_exports()
    gc.collect()
    gc.freeze()


def _trust_exports() -> None:
    """Bytes that this process exports it can read, as the front end knows of what it exports. A test
    that has only the bytes would start a child for each: a third of a second in every third test."""
    from jax.export import Exported

    make = Exported.__init__

    def make_trusted(self: Exported, *arguments: Any, **fields: Any) -> None:
        make(self, *arguments, **fields)
        made_here(self.mlir_module_serialized)

    Exported.__init__ = make_trusted  # type: ignore[method-assign]


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """What JAX keeps of the functions that a file has compiled is of no use to the next file, and
    makes forks slow: of a suite it is more than a gigabyte. What the file leaves otherwise stays:
    each run that ends collects garbage, a sixth of the time of tests that run, and need not look
    through it again."""
    if "jax" in sys.modules and nextitem is not None and nextitem.path != item.path:
        sys.modules["jax"].clear_caches()
        gc.collect()
        gc.freeze()
        if sys.platform == "linux":
            ctypes.CDLL(None).malloc_trim(0)


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    config = items[0].config
    if config.option.markexpr == _QUICK_ONLY:
        slow = sum(item.get_closest_marker("slow") is not None for item in items)
        config.stash[_LEFT_OUT] = config.stash.get(_LEFT_OUT, 0) + slow


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Workers of pytest-xdist, each of which collects all tests, tell the process that reports."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left out"] = session.config.stash.get(_LEFT_OUT, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    node.config.stash[_LEFT_OUT] = getattr(node, "workeroutput", {}).get("left out", 0)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if count := config.stash.get(_LEFT_OUT, 0):
        terminalreporter.write_line(f"{count} slow tests left out: `make test-all` runs them")
