"""Build sdist and wheel, install the wheel away from the source, and use it: `python -m
scripts.wheel_check`.

The environment is fresh and knows nothing of the checkout. It holds the wheel, and what the wheel
says it depends on:

* by default links to the installed dependencies of the environment that runs this, each found
  through the metadata of the one that needs it. So a dependency that is used but not declared is
  missing, no gigabyte is copied, and nothing is downloaded;
* with `--python PYTHON`, an environment of that interpreter, with the dependencies that pip
  installs.

In it every module is imported, and both tools plan, run and check a small model in an empty folder.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from shardopt import UserError
from shardopt.tools.common import ToolParser, run_tool

ROOT = Path(__file__).parents[1]
# All that a build reads. It works on a copy: a build folder or a list of sources that an older
# build left in the checkout would bring files into the archives that are no longer there.
SOURCES = ("LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "runtime", "shardopt")
MODEL = ROOT / "docs" / "tutorial" / "mlp.mlir"

_COMMAND = "python -m scripts.wheel_check"
# Modules of the extras `ray` and `cuda…`, without which ours must load as well.
_OPTIONAL = ("ray", "cupy")
_USES = (
    "shardopt --version",
    "shardopt --help",
    f"shardopt plan {MODEL.name} --cluster cpu-test:1x4 --microbatches 4 --stages 2 -o plan",
    "shardopt run plan --steps 2 --check",
    f"shardopt-opt {MODEL.name} --to=cluster --phase-options=num-microbatches=4 -o clustered.mlir",
    "shardopt-opt --version",
)
# Imports every module of the installed package, and says where from; {optional} may be missing, no
# other.
_IMPORT_ALL = """
import pkgutil, sys, importlib.metadata, shardopt

def lacking(error):
    name = (getattr(error, "name", None) or "").split(".")[0]
    return isinstance(error, ModuleNotFoundError) and name in {optional!r}

count = 0
for module in pkgutil.walk_packages(shardopt.__path__, "shardopt."):
    try:
        __import__(module.name)
        count += 1
    except ImportError as error:
        if not lacking(error):
            raise
assert importlib.metadata.version("shardopt") == shardopt.__version__
assert count > 100, f"found only {{count}} modules"
strays = [m.__file__ for n, m in sys.modules.items() if n.startswith("shardopt") and m.__file__]
strays = [file for file in strays if not file.startswith({home!r})]
assert not strays, f"loaded from elsewhere: {{strays}}"
print(count, "modules")
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0, or 1 with the output of the first command that failed."""
    parser = ToolParser(
        prog=_COMMAND, description="Check that the wheel works without the checkout."
    )
    parser.add_argument(
        "--python",
        metavar="PYTHON",
        help="check with this interpreter, and the dependencies that pip installs for it",
    )
    options = parser.parse_args(argv)
    return run_tool(_COMMAND, lambda: check(options.python))


def check(python: str | None) -> None:
    """Build, install and use the wheel; raises UserError with the output of what failed."""
    with tempfile.TemporaryDirectory(prefix="shardopt-wheel-") as name:
        # Where temporary folders are reached through a link, modules are compared by their real
        # place.
        folder = Path(name).resolve()
        sdist, wheel = build(folder)
        print(f"{sdist.name} and {wheel.name} are built")
        environment = folder / "environment"
        if python is None:
            make_linked_environment(environment, wheel)
        else:
            make_installed_environment(environment, wheel, python)
        use(environment, folder)


# ---- building ----


def build(folder: Path) -> tuple[Path, Path]:
    """The sdist of this checkout, and the wheel made from that sdist alone, in a new folder of
    `folder`."""
    source, target = folder / "source", folder / "dist"
    source.mkdir()
    ignore = shutil.ignore_patterns("__pycache__")
    for name in SOURCES:
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, source / name, symlinks=True, ignore=ignore)
        else:
            shutil.copy(path, source / name)
    # The backend is that of this environment: a build of its own would download it each time.
    _run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(target), str(source)],
        folder,
    )
    [sdist], [wheel] = target.glob("*.tar.gz"), target.glob("*.whl")
    return sdist, wheel


# ---- installing ----


def make_linked_environment(environment: Path, wheel: Path) -> None:
    """A new environment of this interpreter with the wheel, and links to all that it depends on."""
    _make_environment(environment, sys.executable)
    _pip(environment, "--no-deps", "--no-index", str(wheel))
    site = _site_packages(environment)
    [installed] = distributions(name="shardopt", path=[str(site)])
    for dependency in _dependencies(installed):
        _link(dependency, site)


def make_installed_environment(environment: Path, wheel: Path, python: str) -> None:
    """A new environment of `python` with the wheel and the dependencies from the package index."""
    _make_environment(environment, python)
    _pip(environment, str(wheel))


def _make_environment(environment: Path, python: str) -> None:
    _run([python, "-m", "venv", "--without-pip", str(environment)], environment.parent)


def _pip(environment: Path, *arguments: str) -> None:
    python = str(environment / "bin" / "python")
    command = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "--disable-pip-version-check",
        "install",
    ]
    _run([*command, "--quiet", *arguments], environment.parent)


def _site_packages(environment: Path) -> Path:
    [site] = (environment / "lib").glob("python*/site-packages")
    return site


def _dependencies(root: Distribution) -> Iterable[Distribution]:
    """What `root` needs here, directly or not, without extras that nobody needs; each once."""
    seen: dict[tuple[str, str], Distribution] = {}
    waiting = [(root, "")]
    while waiting:
        needy, extra = waiting.pop()
        for text in needy.requires or ():
            need = Requirement(text)
            if need.marker is not None and not need.marker.evaluate({"extra": extra}):
                continue
            for needed_extra in ("", *sorted(need.extras)):
                key = canonicalize_name(need.name), needed_extra
                if key not in seen:
                    seen[key] = distribution(need.name)
                    waiting.append((seen[key], needed_extra))
    return tuple({name: each for (name, _), each in seen.items()}.values())


def _link(dependency: Distribution, site: Path) -> None:
    """Link the files and folders that `dependency` has at the top of its own environment into
    `site`."""
    tops = {file.parts[0] for file in dependency.files or ()} - {"..", "__pycache__"}
    for top in sorted(tops):
        # Some share a folder, and the link leads to the files of all of them.
        if not (site / top).exists():
            (site / top).symlink_to(Path(str(dependency.locate_file(top))).resolve())


# ---- using ----


def use(environment: Path, folder: Path) -> None:
    """Import all modules, and run the commands one after the other in an empty folder."""
    place = folder / "empty"
    place.mkdir()
    shutil.copy(MODEL, place)
    variables = _variables(environment, folder)
    code = _IMPORT_ALL.format(optional=_OPTIONAL, home=str(environment))
    _shown("import of", [str(environment / "bin" / "python"), "-c", code], place, variables)
    for text in _USES:
        tool, *arguments = shlex.split(text)
        _shown(text, [str(environment / "bin" / tool), *arguments], place, variables)


def _variables(environment: Path, folder: Path) -> dict[str, str]:
    """The variables of this process, but for those through which Python would find the checkout."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("PYTHON", "VIRTUAL_ENV"))
    }
    path = os.pathsep.join([str(environment / "bin"), os.environ.get("PATH", "")])
    return {**kept, "PATH": path, "SHARDOPT_CACHE": str(folder / "cache"), "NO_COLOR": "1"}


def _shown(text: str, command: Sequence[str], place: Path, variables: dict[str, str]) -> None:
    """Run `command`, and print its name, the seconds it took and the last line of its output."""
    start = time.monotonic()
    output = _run(command, place, variables)
    last = output.strip().rpartition("\n")[2].strip()
    print(f"{time.monotonic() - start:6.1f} s  {text}: {last}".rstrip(": "), flush=True)


def _run(command: Sequence[str], place: Path, variables: dict[str, str] | None = None) -> str:
    """The output of `command` (stdout and stderr together); raises UserError if it fails."""
    run = subprocess.run(
        command,
        cwd=place,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if run.returncode:
        raise UserError(f"exit code {run.returncode} of '{shlex.join(command)}':\n{run.stdout}")
    return run.stdout


if __name__ == "__main__":
    sys.exit(main())
