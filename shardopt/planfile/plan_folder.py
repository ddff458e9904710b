"""The folder that keeps a plan: only what a plan wrote is ever replaced in it, and what is read is
what was written.

    PLAN/files.sha256   the files that the plan wrote, as `sha256sum --check` reads them
    PLAN/plan.json      the plan file, last to be written: a folder without it is no plan
    PLAN/…              the other files, by relative name

A new plan is written beside its target first. A target that does not exist comes into being in one
step. In one that does, other files (checkpoints, notes) may be in use while the plan is replaced,
so they stay where they are: plan.json is removed, every file of the plan is moved to its place, and
plan.json follows. Who is killed in between leaves a folder that is no plan, not one of two halves.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath

from shardopt.support.errors import UserError
from shardopt.support.files import read_regular

PLAN_FILE = "plan.json"
SUMS_FILE = "files.sha256"

# What plans consist of. Before there was files.sha256, all that matched was theirs; a line of it
# that names something else was not written by a plan.
_PARTS = (
    PLAN_FILE,
    "module.mlirbc",
    "original.mlirbc",
    "timeline.svg",
    "ir/[0-9]*-*.mlir",
    "stages/*.mlirbc",
)

# A file name on every system, whatever the name of the function that it is made of.
_SAFE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")
_SUM_LINE = re.compile(r"([0-9a-f]{64}) [ *](.+)")


def safe_file_name(symbol: str, what: str) -> str:
    """The name itself. Raises UserError where it would leave its folder or is no file name
    everywhere; `what` says whose it is."""
    if _SAFE_NAME.fullmatch(symbol) is None:
        raise UserError(
            f"{what} is named {symbol!r}, which cannot name a file: expected letters, digits, "
            "'_', '-' and '.', not first, and at most 200 of them"
        )
    return symbol


def check_target(target: Path) -> None:
    """Raises UserError when no plan can be written to `target`: it is a file or a folder of
    something else, a part of it leads elsewhere, or nobody may write there."""
    if target.exists() or target.is_symlink():
        if not target.is_dir() or not (_is_plan(target) or not any(target.iterdir())):
            raise UserError(
                f"'{target}' exists and is not a plan directory: remove it or choose another output"
            )
        for path in target.iterdir():
            if path.name in ("ir", "stages") and (path.is_symlink() or not path.is_dir()):
                raise UserError(
                    f"'{path}' is no folder of its own: nothing is written through it; remove it "
                    "or choose another output"
                )
    folder = target.resolve()
    while not folder.exists():
        folder = folder.parent
    try:  # rights do not tell it all: of read-only and virtual file systems, say
        if folder.is_dir():
            Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=folder)).rmdir()
            return
    except OSError:
        pass
    raise UserError(f"cannot write '{target}': '{folder}' is no folder that may be written to")


def write_plan_folder(target: Path, files: Mapping[str, bytes]) -> None:
    """Write a plan of `files`, by relative name; those of an earlier plan are replaced, all others
    stay. Raises UserError where `check_target` does or the system refuses; the target is as it was
    then."""
    check_target(target)
    folder = target.resolve()  # a symbolic link keeps pointing at the folder it names
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            _write_all(staging, files)
            if folder.exists():
                _replace(folder, staging, files)
            else:
                staging.chmod(0o755)
                staging.rename(folder)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    except OSError as error:
        raise UserError(f"cannot write '{target}': {error.strerror or error}") from error


def read_plan_part(folder: Path, name: str) -> bytes:
    """One file of a plan. Raises UserError when it cannot be read or is not what was written."""
    path = folder / name
    try:
        data = read_regular(path)
    except OSError as error:
        raise UserError(
            f"cannot read '{path}': {error.strerror} (expected a directory of `shardopt plan`)"
        ) from error
    expected = _sums(folder).get(name)
    if expected is not None and hashlib.sha256(data).hexdigest() != expected:
        raise UserError(
            f"'{path}' is not what `shardopt plan` wrote: its checksum differs from the one in "
            f"'{folder / SUMS_FILE}'; plan again, or remove that line if you changed the file"
        )
    return data


def has_checksum(folder: Path, name: str) -> bool:
    """Whether it is written beside a file of a plan what was written into it."""
    return name in _sums(folder)


def plan_parts(folder: Path, pattern: str) -> list[str]:
    """Names of the plan's files that match, sorted: those with a checksum, where there are any."""
    names = {path.relative_to(folder).as_posix() for path in folder.glob(pattern)}
    return sorted(names & _sums(folder).keys() if (folder / SUMS_FILE).is_file() else names)


def _is_plan(folder: Path) -> bool:
    """Whether a plan was written here, wholly or, with its sums alone, in part."""
    return (folder / PLAN_FILE).is_file() or (folder / SUMS_FILE).is_file()


def _write_all(staging: Path, files: Mapping[str, bytes]) -> None:
    sums = []
    for name, data in files.items():
        path = staging / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        # People edit plan.json, and it is checked field by field where it is read.
        if name != PLAN_FILE:
            sums.append(f"{hashlib.sha256(data).hexdigest()}  {name}\n")
    (staging / SUMS_FILE).write_text("".join(sums), encoding="utf-8")


def _replace(folder: Path, staging: Path, files: Mapping[str, bytes]) -> None:
    before = _written(folder)
    (folder / PLAN_FILE).unlink(missing_ok=True)
    for name in before - files.keys():
        (folder / name).unlink(missing_ok=True)
    # The sums come last but one: the old ones say that the folder was a plan's, should this be cut
    # short, so that another plan may be written here.
    for name in (*sorted(files.keys() - {PLAN_FILE}), SUMS_FILE, PLAN_FILE):
        (folder / name).parent.mkdir(exist_ok=True)
        (staging / name).replace(folder / name)
    for name in {str(PurePosixPath(name).parent) for name in before} - {"."}:
        with suppress(OSError):  # it holds files of the new plan, or of somebody else
            (folder / name).rmdir()


def _written(folder: Path) -> set[str]:
    """Files of an earlier plan in the folder, by relative name, that are there."""
    if (folder / SUMS_FILE).is_file():
        names = {name for name in _sums(folder) if any(map(PurePosixPath(name).match, _PARTS))}
    elif (folder / PLAN_FILE).is_file():
        names = {
            path.relative_to(folder).as_posix()
            for pattern in _PARTS
            for path in folder.glob(pattern)
        }
    else:
        names = set()
    return {name for name in names if (folder / name).is_file()}


def _sums(folder: Path) -> dict[str, str]:
    """The checksums of the plan's files; lines that no plan writes are left out, such as those that
    would name a file elsewhere."""
    try:
        text = read_regular(folder / SUMS_FILE).decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return {}
    matches = filter(None, map(_SUM_LINE.fullmatch, text.splitlines()))
    return {match[2]: match[1] for match in matches if _is_inside(match[2])}


def _is_inside(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return len(parts) <= 2 and all(_SAFE_NAME.fullmatch(part) for part in parts)
