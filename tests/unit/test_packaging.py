"""What is built holds the files of the repository: all of them, each once, and nothing else."""

from __future__ import annotations

import subprocess
import tarfile
from email import message_from_bytes
from pathlib import Path
from zipfile import ZipFile

import pytest

import shardopt
from scripts.wheel_check import ROOT, build

# What the backend adds to the sources at the top of an sdist.
_MADE = ("PKG-INFO", "setup.cfg")


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist and the wheel."""
    return build(tmp_path_factory.mktemp("build"))


@pytest.fixture(scope="module")
def sources() -> set[str]:
    """The files under version control or about to be, as an installed package names them."""
    command = [
        "git",
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
        "shardopt",
        "runtime",
    ]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if run.returncode:
        pytest.skip(f"the list of files is git's, which says: {run.stderr.strip()}")
    files = (name for name in run.stdout.split("\0") if (ROOT / name).is_file())
    return {f"shardopt/{name}" if name.startswith("runtime/") else name for name in files}


def _of_sdist(path: Path) -> list[str]:
    """The files of an sdist below its one folder."""
    with tarfile.open(path) as archive:
        assert not [member.name for member in archive if member.issym() or member.islnk()]
        return [member.name.partition("/")[2] for member in archive if member.isfile()]


def _of_wheel(path: Path) -> list[str]:
    with ZipFile(path) as archive:
        return [name for name in archive.namelist() if ".dist-info/" not in name]


def test_the_link_to_the_runtime_is_relative() -> None:
    """An absolute one would lead out of a clone; a folder in its place would be a second copy."""
    link = ROOT / "shardopt" / "runtime"
    assert link.is_symlink() and link.readlink() == Path("../runtime")


def test_the_wheel_holds_all_files_of_the_repository(
    archives: tuple[Path, Path], sources: set[str]
) -> None:
    names = _of_wheel(archives[1])
    assert len(names) == len(set(names))
    assert set(names) == sources


def test_the_sdist_holds_all_files_of_the_repository(
    archives: tuple[Path, Path], sources: set[str]
) -> None:
    names = [
        name for name in _of_sdist(archives[0]) if ".egg-info/" not in name and name not in _MADE
    ]
    assert len(names) == len(set(names))
    assert set(names) == sources | {"LICENSE", "MANIFEST.in", "README.md", "pyproject.toml"}


def test_metadata_names_the_version_of_the_code(archives: tuple[Path, Path]) -> None:
    with ZipFile(archives[1]) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = message_from_bytes(archive.read(name))
    assert metadata["Version"] == shardopt.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
