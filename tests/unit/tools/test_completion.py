"""What shells are offered: commands, options, passes, and values that have names."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shardopt.tools.completion import SHELLS
from shardopt.tools.shardopt import main

pytest.importorskip("argcomplete")


def offered(module: str, line: str, answer: Path) -> set[str]:
    """What the shell gets for a line with the cursor at its end."""
    environment = {
        **os.environ,
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
        "_ARGCOMPLETE_IFS": "\n",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "COMP_TYPE": "9",
    }
    code = f"from {module} import main\nmain()"
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    return {word.strip() for word in answer.read_text().split("\n")}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("shardopt pl", {"plan"}),
        ("shardopt plan --clus", {"--cluster"}),
        ("shardopt plan model.mlir --cluster dgx", {"dgx-a100"}),
        ("shardopt plan model.mlir --schedule zero-b", {"zero-bubble"}),
        ("shardopt completion f", {"fish"}),
        ("shardopt run plan --backend pro", {"process"}),
    ],
)
def test_commands_options_and_values(line: str, words: set[str], tmp_path: Path) -> None:
    assert words <= offered("shardopt.tools.shardopt", line, tmp_path / "answer")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("shardopt-opt m.mlir --shardopt-choose-st", {"--shardopt-choose-stages"}),
        ("shardopt-opt m.mlir --shardopt-sta", {"--shardopt-stage"}),
        ("shardopt-opt m.mlir --to micro", {"microbatch"}),
        ("shardopt-opt m.mlir --mlir-print-ir-d", {"--mlir-print-ir-diff"}),
    ],
)
def test_passes_and_phases(line: str, words: set[str], tmp_path: Path) -> None:
    assert words <= offered("shardopt.tools.opt", line, tmp_path / "answer")


@pytest.mark.parametrize("shell", SHELLS)
def test_code_for_shells(shell: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["completion", shell]) == 0
    code = capsys.readouterr().out
    assert "shardopt-opt" in code and "_ARGCOMPLETE" in code
    if shell == "bash":
        script = tmp_path / "code.sh"
        script.write_text(code)
        subprocess.run(["bash", "-n", script], check=True)
