"""Folders of plans: what is replaced in them, what stays, and what is noticed when it is read."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from shardopt.planfile import plan_folder
from shardopt.planfile.plan_file import load_plan_file
from shardopt.planfile.plan_folder import (
    check_target,
    plan_parts,
    read_plan_part,
    safe_file_name,
    write_plan_folder,
)
from shardopt.support.errors import UserError

FIRST = {"plan.json": b"{}", "module.mlirbc": b"first", "ir/1-import.mlir": b"import"}
SECOND = {"plan.json": b"[]", "module.mlirbc": b"second", "stages/m0.mlirbc": b"stage"}


def contents(folder: Path) -> dict[str, bytes]:
    """Of all files but the sums."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != plan_folder.SUMS_FILE
    }


def test_a_plan_is_written_and_its_sums_hold_for_sha256sum(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "plan"
    write_plan_folder(folder, FIRST)
    assert contents(folder) == FIRST
    assert os.listdir(folder.parent) == ["plan"]  # what was written beside it is gone
    checked = subprocess.run(
        ["sha256sum", "--check", "--strict", plan_folder.SUMS_FILE], cwd=folder, capture_output=True
    )
    assert checked.returncode == 0, checked.stderr


def test_another_plan_replaces_what_the_first_wrote_and_nothing_else(tmp_path: Path) -> None:
    write_plan_folder(tmp_path / "plan", FIRST)
    others = {
        "checkpoints/step-000000000012/manifest.json": b"weights",
        "ir/notes.mlir": b"mine",
        "backup.mlirbc": b"mine too",
    }
    for name, data in others.items():
        (tmp_path / "plan" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "plan" / name).write_bytes(data)
    write_plan_folder(tmp_path / "plan", SECOND)
    assert contents(tmp_path / "plan") == SECOND | others
    assert plan_parts(tmp_path / "plan", "ir/*.mlir") == []
    assert plan_parts(tmp_path / "plan", "stages/*") == ["stages/m0.mlirbc"]


def test_folders_that_the_new_plan_does_not_fill_go(tmp_path: Path) -> None:
    write_plan_folder(tmp_path / "plan", FIRST)
    write_plan_folder(tmp_path / "plan", SECOND)
    assert contents(tmp_path / "plan") == SECOND
    assert not (tmp_path / "plan" / "ir").exists()


def test_a_plan_written_before_there_were_sums_is_replaced_and_read(tmp_path: Path) -> None:
    folder = tmp_path / "plan"
    write_plan_folder(folder, FIRST)
    (folder / plan_folder.SUMS_FILE).unlink()
    (folder / "ir" / "notes.mlir").write_bytes(b"mine")
    assert read_plan_part(folder, "module.mlirbc") == b"first"
    assert plan_parts(folder, "ir/*.mlir") == ["ir/1-import.mlir", "ir/notes.mlir"]
    write_plan_folder(folder, SECOND)
    assert contents(folder) == SECOND | {"ir/notes.mlir": b"mine"}


@pytest.mark.parametrize("cut", range(6))
def test_a_replacement_cut_short_is_no_plan_and_can_be_written_again(
    tmp_path: Path, cut: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after any of its moves: `plan.json` is the first to go and the last to come."""
    folder, moves, move = tmp_path / "plan", 0, Path.replace
    write_plan_folder(folder, FIRST)
    (folder / "weights").write_bytes(b"mine")

    def killed(path: Path, target: Path) -> Path:
        nonlocal moves
        if moves == cut:
            raise KeyboardInterrupt
        moves += 1
        return move(path, target)

    monkeypatch.setattr(Path, "replace", killed)
    if cut < len(SECOND) + 1:
        with pytest.raises(KeyboardInterrupt):
            write_plan_folder(folder, SECOND)
        assert not (folder / "plan.json").exists()
    monkeypatch.undo()
    write_plan_folder(folder, SECOND)
    assert contents(folder) == SECOND | {"weights": b"mine"}
    assert sorted(os.listdir(tmp_path)) == ["plan"]


def test_a_link_to_a_folder_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    write_plan_folder(tmp_path / "link", FIRST)
    write_plan_folder(tmp_path / "link", SECOND)
    assert (tmp_path / "link").is_symlink()
    assert contents(tmp_path / "real") == SECOND


def test_nothing_is_written_through_a_link_inside(tmp_path: Path) -> None:
    write_plan_folder(tmp_path / "plan", SECOND)
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "1-import.mlir").write_bytes(b"mine")
    (tmp_path / "plan" / "ir").symlink_to(tmp_path / "precious")
    with pytest.raises(UserError, match=r"'.*/plan/ir' is no folder of its own"):
        write_plan_folder(tmp_path / "plan", FIRST)
    assert contents(tmp_path / "precious") == {"1-import.mlir": b"mine"}
    assert read_plan_part(tmp_path / "plan", "module.mlirbc") == b"second"


def test_a_linked_file_is_replaced_and_not_written_to(tmp_path: Path) -> None:
    write_plan_folder(tmp_path / "plan", FIRST)
    (tmp_path / "elsewhere").write_bytes(b"first")
    (tmp_path / "plan" / "module.mlirbc").unlink()
    (tmp_path / "plan" / "module.mlirbc").symlink_to(tmp_path / "elsewhere")
    write_plan_folder(tmp_path / "plan", SECOND)
    assert (tmp_path / "elsewhere").read_bytes() == b"first"
    assert contents(tmp_path / "plan") == SECOND


def test_sums_that_lead_out_of_the_folder_remove_nothing(tmp_path: Path) -> None:
    write_plan_folder(tmp_path / "plan", FIRST)
    (tmp_path / "victim").write_bytes(b"mine")
    sums = tmp_path / "plan" / plan_folder.SUMS_FILE
    for name in ("../victim", str(tmp_path / "victim"), "ir/../../victim"):
        sums.write_text(sums.read_text() + f"{'0' * 64}  {name}\n")
    write_plan_folder(tmp_path / "plan", SECOND)
    assert (tmp_path / "victim").read_bytes() == b"mine"


def test_sums_that_name_what_no_plan_writes_remove_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "plan"
    write_plan_folder(folder, FIRST)
    others = {"weights.npz": b"mine", "step-12/manifest.json": b"mine", "ir/notes.txt": b"mine"}
    sums = folder / plan_folder.SUMS_FILE
    for name, data in others.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
        sums.write_text(sums.read_text() + f"{'0' * 64}  {name}\n")
    write_plan_folder(folder, SECOND)
    assert contents(folder) == SECOND | others


@pytest.mark.parametrize("name", ["module.mlirbc", "plan.json", plan_folder.SUMS_FILE])
@pytest.mark.parametrize("what", ["pipe", "device", "folder"])
def test_what_has_no_end_is_not_read(tmp_path: Path, name: str, what: str) -> None:
    folder = tmp_path / "plan"
    write_plan_folder(folder, FIRST)
    (folder / name).unlink()
    if what == "pipe":
        os.mkfifo(folder / name)
    elif what == "device":
        (folder / name).symlink_to("/dev/zero")
    else:
        (folder / name).mkdir()
    if name == plan_folder.SUMS_FILE:
        assert read_plan_part(folder, "module.mlirbc") == b"first"
        return
    with pytest.raises(UserError, match=r"regular file|directory"):
        load_plan_file(str(folder / name)) if name == "plan.json" else read_plan_part(folder, name)


def test_what_is_not_a_plan_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.tex").write_text("mine")
    (tmp_path / "nowhere").symlink_to("missing")
    for name in ("file", "folder", "nowhere"):
        with pytest.raises(UserError, match=f"{name}' exists and is not a plan directory"):
            write_plan_folder(tmp_path / name, FIRST)
    assert (tmp_path / "folder" / "thesis.tex").read_text() == "mine"
    with pytest.raises(UserError, match=r"'.*file' is no folder that may be written to"):
        check_target(tmp_path / "file" / "plan")


def test_a_changed_file_is_noticed_unless_its_line_is_taken_out(tmp_path: Path) -> None:
    folder = tmp_path / "plan"
    write_plan_folder(folder, FIRST)
    (folder / "module.mlirbc").write_bytes(b"fIrst")
    with pytest.raises(UserError, match=r"module\.mlirbc' is not what `shardopt plan` wrote"):
        read_plan_part(folder, "module.mlirbc")
    sums = folder / plan_folder.SUMS_FILE
    kept = (line for line in sums.read_text().splitlines(True) if "module" not in line)
    sums.write_text("".join(kept))
    assert read_plan_part(folder, "module.mlirbc") == b"fIrst"
    (folder / "plan.json").write_bytes(b"edited")
    assert read_plan_part(folder, "plan.json") == b"edited"
    with pytest.raises(UserError, match=r"cannot read '.*gone': No such file"):
        read_plan_part(folder, "gone")


@pytest.mark.parametrize("name", ["", ".", "..", "../../x", "/etc/x", "a/b", "a\0b", "a" * 201])
def test_names_that_lead_elsewhere_name_no_file(name: str) -> None:
    with pytest.raises(UserError, match=r"the function of stage 0 is named .* cannot name a file"):
        safe_file_name(name, "the function of stage 0")


def test_names_of_functions_name_files() -> None:
    assert safe_file_name("m0_forward.1", "a function") == "m0_forward.1"
