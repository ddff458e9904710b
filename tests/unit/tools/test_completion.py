"""What shells are offered: commands, options, passes, and values that have names."""

from __future__ import annotations

import os
import shutil
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
def test_code_for_shells(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    code = capsys.readouterr().out
    assert "shardopt-opt" in code and "_ARGCOMPLETE" in code


_BASH = r"""
source "$1"
COMP_LINE="$2" COMP_POINT=${#2} COMP_TYPE=9 COMP_WORDS=($2)
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_python_argcomplete "${COMP_WORDS[0]}"
printf '%s\n' "${COMPREPLY[@]}"
"""
_FISH = "source $argv[1]; complete -C $argv[2]"
# zsh completes in its line editor only: a terminal of its own is asked.
_ZSH = r"""
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell "autoload -U compinit; compinit -u; source $1; print loa""ded"
zpty -r shell answer '*loaded*'
zpty -w -n shell "$2"$'\t'
zpty -r shell answer "*$3*" && print found
zpty -d shell
"""


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("shardopt pl", "plan"),
        ("shardopt plan model.mlir --cluster dgx", "dgx-a100"),
        ("shardopt-opt m.mlir --to micro", "microbatch"),
    ],
)
def test_shells_complete(
    shell: str, line: str, word: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} on this machine")
    main(["completion", shell])
    code = tmp_path / "code"
    code.write_text(capsys.readouterr().out)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    script = {
        "bash": ["bash", "-c", _BASH, "bash", code, line],
        "fish": ["fish", "--no-config", "-c", _FISH, code, line],
        "zsh": ["zsh", "-f", "-c", _ZSH, "zsh", code, line, word],
    }[shell]
    done = subprocess.run(
        script, env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    expected = "found" if shell == "zsh" else word
    assert expected in done.stdout.split(), done.stdout + done.stderr
