"""What is kept in memory between runs of a pass."""

from __future__ import annotations

from shardopt.caching.memory import remembered, remembering


def test_the_last_of_each_kind_is_kept() -> None:
    made: list[str] = []

    def find(kind: str, key: str) -> str:
        def make() -> str:
            made.append(kind + key)
            return kind + key

        return remembered(kind, lambda: key, make)

    with remembering():
        assert [find("a", "1"), find("b", "1"), find("a", "1"), find("b", "1")] == ["a1", "b1"] * 2
        assert made == ["a1", "b1"]
        assert [find("a", "2"), find("a", "1"), find("b", "1")] == ["a2", "a1", "b1"]
        assert made == ["a1", "b1", "a2", "a1"]
    find("b", "1")
    assert made[4:] == ["b1"]


def test_without_a_memory_no_key_is_asked_for() -> None:
    def key() -> str:
        raise AssertionError

    assert remembered("a", key, lambda: 1) == 1
