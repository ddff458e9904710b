"""Runs every command in the documentation: blocks fenced with ```console in README.md and
docs/**/*.md.

    ```console
    $ shardopt-opt mlp.mlir --to=import -o imported.mlir
    $ grep -c dot_general imported.mlir
    5
    ```

A command starts with `$ `. It goes on in the next line after a backslash, and up to the line `END`
after `<<'END'`. All commands of a page run in order in one new directory, which holds the files of
docs/tutorial and leads to docs, examples and tests. They must succeed, or have `[1]`, their exit
code, in the line behind their output. Where output is shown (stdout and stderr together) it must be
what the command prints: `…` stands for any text within a line, and a line of `…` alone for any
number of lines. A command that shows no output may print anything.

Plans and executables are kept, as a user's are: pages plan the same models, and commands of a page
start from what those before them have planned."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.warm.tools import write_commands

ROOT = Path(__file__).parents[2]

BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXIT_CODE = re.compile(r"\[(\d+)\]")


@dataclass(frozen=True)
class Command:
    """One command of a page, the output shown behind it (none: any output will do), and its exit
    code."""

    text: str
    output: tuple[str, ...]
    code: int


def commands(page: str) -> list[Command]:
    return [command for block in BLOCK.findall(page) for command in _of_block(block)]


def _of_block(block: str) -> list[Command]:
    in_page = []
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        lines = part.rstrip("\n").split("\n")
        if "<<'END'" in lines[0]:
            end = lines.index("END")
        else:
            end = next(k for k, line in enumerate(lines) if not line.endswith("\\"))
        shown, code = lines[end + 1 :], 0
        if shown and (match := EXIT_CODE.fullmatch(shown[-1])):
            code = int(match[1])
            shown.pop()
        in_page.append(Command("\n".join(lines[: end + 1]), tuple(shown), code))
    return in_page


def matches(shown: tuple[str, ...], printed: tuple[str, ...]) -> bool:
    """Whether the printed lines are those shown; blanks at the ends of lines and empty last lines
    do not count."""
    patterns = [
        r"(?:.*\n)*?"
        if line.strip() == "…"
        else ".*".join(map(re.escape, line.rstrip().split("…"))) + r"\n"
        for line in shown
    ]
    text = "\n".join(line.rstrip() for line in printed).rstrip("\n") + "\n"
    return re.fullmatch("".join(patterns), text) is not None


# Of their kinds of commands others run, in a fraction of the time.
SLOW = {"docs/guide/tutorial-python.md", "docs/evidence/alpa.md"}
PAGES = {
    str(path.relative_to(ROOT)): in_page
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if (in_page := commands(path.read_text(encoding="utf-8")))
}


@pytest.fixture(scope="session")
def commands_folder(warm_socket: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tools of this checkout."""
    folder = tmp_path_factory.mktemp("commands")
    write_commands(folder, warm_socket)
    return folder


@pytest.fixture(scope="session")
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def _environment(commands_folder: Path, cache_folder: Path) -> dict[str, str]:
    """The tools, this interpreter, the checkout and a cache, in English, and without colours or the
    width of a terminal."""
    folders = [str(commands_folder), str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    path = os.pathsep.join(folders)
    return {
        **os.environ,
        "PATH": path,
        "PYTHONPATH": str(ROOT),
        "SHARDOPT_CACHE": str(cache_folder),
        "LC_ALL": "C.UTF-8",
        "NO_COLOR": "1",
    }


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.slow if page in SLOW else ()) for page in PAGES],
)
def test_commands_of_a_page_print_what_it_shows(
    page: str, tmp_path: Path, commands_folder: Path, cache_folder: Path
) -> None:
    shutil.copytree(ROOT / "docs" / "tutorial", tmp_path, dirs_exist_ok=True)
    for name in ("docs", "examples", "tests"):
        (tmp_path / name).symlink_to(ROOT / name)
    for command in PAGES[page]:
        run = subprocess.run(
            # `timeout` ends what the shell has started, too, which would go on alone if only the
            # shell were killed
            ["timeout", "--kill-after=5", "300", "bash", "-o", "pipefail", "-c", command.text],
            cwd=tmp_path,
            env=_environment(commands_folder, cache_folder),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert run.returncode == command.code, f"$ {command.text}\n{run.stdout}"
        printed = tuple(run.stdout.splitlines())
        if command.output and not matches(command.output, printed):
            expected = "\n".join(command.output)
            pytest.fail(
                f"$ {command.text}\n--- {page} shows\n{expected}\n--- the command "
                f"prints\n{run.stdout}"
            )


def test_every_page_that_shows_commands_is_run() -> None:
    assert {"README.md", "docs/guide/tutorial.md", "docs/guide/debugging.md"} <= PAGES.keys()


def test_readme_shows_no_command_that_is_not_run() -> None:
    """Blocks that are not run hold targets of the Makefile, or no command at all."""
    readme, makefile = (
        (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "Makefile")
    )
    assert set(re.findall(r"^```(\w+)$", readme, re.MULTILINE)) == {"console"}
    plain = "\n".join(
        re.findall(r"^```\n(.*?)^```$", BLOCK.sub("", readme), re.MULTILINE | re.DOTALL)
    )
    assert re.search(r"^(\$|shardopt |shardopt-opt |python |pip )", plain, re.MULTILINE) is None
    targets = re.findall(r"^make ([\w-]+)", plain, re.MULTILINE) + re.findall(
        r"`make ([\w-]+)`", readme
    )
    assert targets and [name for name in targets if f"\n{name}:" not in makefile] == []


def test_blocks_are_read_as_commands_with_their_output() -> None:
    block = "$ one \\\n    more\n$ two\nout\n\n…\n[1]\n$ cat <<'END'\na\nEND\na\n"
    page = f"text\n```console\n{block}```\n```\n$ not run\n```\n"
    assert commands(page) == [
        Command("one \\\n    more", (), 0),
        Command("two", ("out", "", "…"), 1),
        Command("cat <<'END'\na\nEND", ("a",), 0),
    ]


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("a b", "a b  ", True),
        ("a … c", "a b b c", True),
        ("a … c", "a b b", False),
        ("…\nlast", "first\nsecond\nlast", True),
        ("first\n…", "first", True),
        ("first", "first\nsecond", False),
        ("first\n…\nlast", "first\nlast", True),
    ],
)
def test_dots_stand_for_text_and_lines(shown: str, printed: str, same: bool) -> None:
    assert matches(tuple(shown.split("\n")), tuple(printed.split("\n"))) == same
