"""lit configuration: run `lit tests/lit`, or `pytest tests/unit/test_lit.py`."""

import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path

import lit.formats

config.name = "shardopt"
config.test_format = lit.formats.ShTest()
config.suffixes = [".mlir"]
config.excludes = ["Inputs"]
config.test_source_root = str(Path(__file__).parent)
config.test_exec_root = os.environ.get(
    "SHARDOPT_LIT_OUTPUT", str(Path(__file__).parents[2] / "out" / "lit")
)

# FileCheck and split-file stand beside the interpreter, as programs of Python that start the real
# ones: to start those at once takes a tenth of the time. `not` is built into lit's shell.
folders = [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
if package := find_spec("llvm_testing_tools"):
    folders[:0] = [str(Path(package.origin).parent / "binaries")]
config.environment["PATH"] = os.pathsep.join(folders)

# Otherwise the tests would run the package that is installed, and not the one asked for.
if "PYTHONPATH" in os.environ:
    config.environment["PYTHONPATH"] = os.environ["PYTHONPATH"]


def whole_word(tool: str) -> str:
    """A pattern for a command, not for the same words inside a path."""
    return rf"(?<![\w/.-]){re.escape(tool)}(?![\w/.-])"


# This interpreter's code, wherever a `shardopt-opt` of another environment may stand on PATH; with
# a socket, in a process that has imported it (`tests/warm/server.py`).
warm = os.environ.get("SHARDOPT_LIT_SOCKET")
client = f"{sys.executable} -S -I {Path(__file__).parents[1] / 'warm' / 'client.py'} {warm}"
config.substitutions += [
    (
        whole_word("shardopt-opt"),
        f"{client} shardopt-opt" if warm else f"{sys.executable} -m shardopt.tools.opt",
    ),
    (
        whole_word("shardopt"),
        f"{client} shardopt" if warm else f"{sys.executable} -m shardopt.tools.shardopt",
    ),
]
