"""Run lit tests that others wrote for an opt tool of theirs, with shardopt-opt in its place.

    python -m benchmarks.tools.upstream_lit FOLDER… [--jobs 1] [--show]

RUN lines run as they stand, but for the name of the tool: `sdy_opt`, `mpmd_opt`, `stablehlo-opt`,
`mlir-opt`. A test is applicable where shardopt-opt has all passes that its RUN lines name, and no
other tool is needed. The table counts tests that pass, and others by the first reason. Each command
of an applicable test that fails runs once more by parser, passes and printer of the wheel alone
(`benchmarks.tools.bare_opt`): where these print and say the same, the test is of another version of
the C++, and counts as such."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.tools.bare_opt import SPLIT

_TOOLS = ("sdy_opt", "mpmd_opt", "stablehlo-opt", "mlir-opt")
_RUN = re.compile(r"(?://|#)\s*RUN:\s*(.*)")
# (reason, what the output of a failed test says), of which the first counts.
_REASONS = (
    ("no such pass or option", r"error: unknown option, pass or phase: '([^']*)'"),
    ("no such pass or option", r"error: pipeline: unknown option of ([^;\n]*)"),
    ("no such pass", r"(?:unknown pass|does not refer to a registered pass)[^']*'([^']*)'"),
    ("needs another tool", r"'?([\w.-]+)'?: command not found"),
    ("dialect is not in the wheel", r"[Dd]ialect `?([\w.]+)'? not found"),
    ("dialect is not in the wheel", r"`!\"(\w+)\"<.*created with unregistered dialect"),
    ("our bug", r"internal error|Traceback"),
    ("diagnostics differ", r"(expected \w+ .* was not produced|unexpected \w+:.*)"),
    ("does not parse", r"(error: (?:custom op|expected|invalid|unknown attribute|unregistered).*)"),
    ("prints something else", r"(FileCheck)"),
)
# Tests with these are not applicable.
_OUTSIDE = (
    "no such pass or option",
    "no such pass",
    "needs another tool",
    "dialect is not in the wheel",
)
_AS_THE_WHEEL = "the wheel's C++ alone does the same"
_CONFIG = """\
import lit.formats
config.name = "upstream"
config.test_format = lit.formats.ShTest()
config.suffixes = [".mlir"]
config.test_source_root = {source!r}
config.test_exec_root = {output!r}
config.environment["PATH"] = {path!r}
config.environment["PYTHONPATH"] = {python_path!r}
config.substitutions += [
    (r"(?<![\\w/.-])" + tool.replace("-", "[-]") + r"(?![\\w/.-])", {command!r})
    for tool in {tools!r}
]
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 where every applicable test passes, or fails by what the wheel's C++ does."""
    parser = argparse.ArgumentParser(description="Run lit tests of other opt tools.")
    parser.add_argument("folder", nargs="+", type=Path)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--show", action="store_true", help="print each test that fails")
    args = parser.parse_args(argv)
    table = Table("folder", "tests", "applicable", "passed", "others by reason")
    failed = False
    for folder in args.folder:
        verdicts = {
            name: _controlled(folder / name, *verdict)
            for name, verdict in _run(folder, args.jobs).items()
        }
        counts = Counter(reason for reason, _ in verdicts.values())
        outside = sum(counts[reason] for reason in _OUTSIDE)
        failed |= len(verdicts) - outside != counts["passed"] + counts[_AS_THE_WHEEL]
        others = "\n".join(
            f"{number} {reason}" for reason, number in counts.most_common() if reason != "passed"
        )
        row = (len(verdicts), len(verdicts) - outside, counts["passed"])
        table.add_row(folder.name, *map(str, row), others)
        for name, (reason, detail) in sorted(verdicts.items()):
            if args.show and reason != "passed":
                print(f"{name}: {reason}: {detail}")
    Console(width=100).print(table)
    return int(failed)


def _run(folder: Path, jobs: int) -> dict[str, tuple[str, str]]:
    """test -> (reason or "passed", detail)."""
    tests = [path for path in folder.rglob("*.mlir") if _RUN.search(path.read_text("utf-8"))]
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        tools = str(Path(sys.executable).parent)
        config = _CONFIG.format(
            source=str(work / "suite"),
            output=str(work / "output"),
            path=os.pathsep.join([tools, os.environ.get("PATH", "")]),
            python_path=os.environ.get("PYTHONPATH", str(Path.cwd())),
            command=f"{sys.executable} -m shardopt.tools.opt",
            tools=_TOOLS,
        )
        # lit looks for its configuration beside the tests, which stay as they are
        suite = work / "suite"
        suite.mkdir()
        (suite / "lit.site.cfg.py").write_text(config, encoding="utf-8")
        for path in tests:
            target = suite / path.relative_to(folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(path.resolve())
        report = work / "report.json"
        subprocess.run(
            [f"{tools}/lit", "-a", f"-j{jobs}", f"--output={report}", str(suite)],
            stdout=subprocess.DEVNULL,
            check=False,
        )
        results = json.loads(report.read_text())["tests"]
    return {test["name"].partition(" :: ")[2]: _reason(test) for test in results}


def _reason(test: dict[str, str]) -> tuple[str, str]:
    if test["code"] in ("PASS", "XFAIL"):
        return "passed", ""
    if test["code"] == "UNSUPPORTED":
        return "needs another tool", "REQUIRES"
    for reason, pattern in _REASONS:
        match = re.search(pattern, test["output"])
        if match:
            return reason, match[match.lastindex or 0]
    return "other", test["output"][-200:]


# ---- the control ----


def _controlled(test: Path, reason: str, detail: str) -> tuple[str, str]:
    """The reason of a test that fails, unless it fails by what the wheel's C++ prints and says."""
    if reason == "passed" or reason in _OUTSIDE:
        return reason, detail
    commands = _commands(test)
    same = bool(commands) and all(_prints_the_same(command) for command in commands)
    return (_AS_THE_WHEEL if same else reason), detail


def _commands(test: Path) -> list[list[str]]:
    """The arguments of each call of a tool on the test itself; nothing where there are others."""
    text = "\n".join(_RUN.findall(test.read_text("utf-8"))).replace("\\\n", " ")
    commands = []
    for part in re.split(r"\n|\||&&|;(?=\s)", text):
        words = shlex.split(part.replace("%s", str(test)))
        tool, *arguments = (word for word in words if word not in ("<", "2>&1"))
        if tool == "not" and arguments:
            tool, *arguments = arguments
        if tool not in _TOOLS:
            if tool != "FileCheck":
                return []
        elif str(test) not in arguments:
            return []
        else:
            commands.append(
                [each for each in arguments if each.lstrip("-") != "verify-diagnostics"]
            )
    return commands


def _prints_the_same(arguments: Sequence[str]) -> bool:
    bare, ours = (
        subprocess.run(
            [sys.executable, "-m", module, *arguments], capture_output=True, text=True, check=False
        )
        for module in ("benchmarks.tools.bare_opt", "shardopt.tools.opt")
    )
    return (
        _without_splits(bare.stdout) == _without_splits(ours.stdout)
        and (bare.returncode == 0) == (ours.returncode == 0)
        and all(
            message.replace('"', "'") in ours.stderr.replace('"', "'")
            for message in re.findall(r"^(?:\d+:\d+: )?(?:error|warning): .*", bare.stderr, re.M)
        )
    )


def _without_splits(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip() and line.strip() != SPLIT]


if __name__ == "__main__":
    sys.exit(main())
