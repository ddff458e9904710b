"""The store on disk: entries survive other processes and damage, and an unusable folder is no
error."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shardopt.caching.store import CACHE_VARIABLE, Store, active_store, default_store, key_of, using

KEY = key_of("test", b"content")


def entry(folder: Path) -> Path:
    return folder / "things" / KEY[:2] / KEY


def test_an_entry_reads_back_in_another_store(tmp_path: Path) -> None:
    Store(tmp_path).put("things", KEY, b"content")
    assert Store(tmp_path).get("things", KEY) == b"content"
    assert Store(tmp_path).get("others", KEY) is None
    assert Store(tmp_path / "elsewhere").get("things", KEY) is None


def test_keys_tell_apart_where_parts_end() -> None:
    assert key_of("ab", "c") != key_of("a", "bc") != key_of("abc")
    assert key_of("a", b"b") == key_of("a", "b")


@pytest.mark.parametrize(
    "damage", [b"", b"content", b"shardopt1" + bytes(32) + b"content"], ids=["empty", "bare", "sum"]
)
def test_a_damaged_entry_is_dropped_with_a_remark(tmp_path: Path, damage: bytes) -> None:
    remarks: list[str] = []
    store = Store(tmp_path, remarks.append)
    store.put("things", KEY, b"content")
    entry(tmp_path).write_bytes(damage)
    assert store.get("things", KEY) is None
    assert len(remarks) == 1 and "damaged" in remarks[0]
    assert not entry(tmp_path).exists()
    store.put("things", KEY, b"content")
    assert store.get("things", KEY) == b"content"


def test_a_folder_that_cannot_be_written_is_a_remark(tmp_path: Path) -> None:
    remarks: list[str] = []
    (tmp_path / "file").write_text("in the way")
    store = Store(tmp_path / "file", remarks.append)
    store.put("things", KEY, b"content")
    store.put("things", KEY, b"content")
    assert store.get("things", KEY) is None
    assert [message for message in remarks if "cannot write" in message] == remarks[:1]


def test_trimming_keeps_what_was_used_last(tmp_path: Path) -> None:
    store = Store(tmp_path, limit_bytes=250)
    keys = [key_of(str(number)) for number in range(4)]
    for age, key in enumerate(keys):
        store.put("things", key, bytes(60))  # and 41 bytes of header
        path = tmp_path / "things" / key[:2] / key
        os.utime(path, ns=(age, age))
    assert store.get("things", keys[0]) is not None  # used, and so the youngest
    store.trim()
    assert [store.get("things", key) is not None for key in keys] == [True, False, False, True]


def test_the_variable_names_the_folder_or_turns_the_cache_off(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    store = default_store()
    assert store is not None and store.folder == tmp_path
    monkeypatch.setenv(CACHE_VARIABLE, "off")
    assert default_store() is None
    monkeypatch.delenv(CACHE_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    store = default_store()
    assert store is not None and store.folder == tmp_path / "shardopt"
    monkeypatch.delenv("XDG_CACHE_HOME")

    def homeless() -> Path:
        raise RuntimeError("could not determine home directory")

    monkeypatch.setattr(Path, "home", homeless)
    assert default_store() is None


def test_a_store_is_active_inside_its_block_only(tmp_path: Path) -> None:
    with using(Store(tmp_path)) as store:
        assert active_store() is store
        with using(None):
            assert active_store() is None
    assert active_store() is None


WRITER = """
import sys
from pathlib import Path
from shardopt.caching.store import Store, key_of
store = Store(Path(sys.argv[1]), remark=lambda said: sys.exit(said))
for number in range(200):
    key = key_of(str(number % 7))
    found = store.get("things", key)
    assert found in (None, str(number % 7).encode() * 5000), found
    store.put("things", key, str(number % 7).encode() * 5000)
"""


def test_processes_share_a_folder(tmp_path: Path) -> None:
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)]) for _ in range(2)]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 7
