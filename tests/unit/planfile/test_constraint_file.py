"""The constraints file: what it may say, and how its mistakes are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardopt.mesh.annotation import Annotation
from shardopt.mesh.mesh import Mesh
from shardopt.planfile.constraint_file import load_constraints, parse_constraints
from shardopt.support.errors import UserError

MESH = Mesh("m0", (("x", 2), ("y", 2)), (0, 1, 2, 3))


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (3, "f, entry 0: expected fields, found 3"),
        (
            {"argument": 0, "shard": []},
            "f, entry 0: unknown field 'shard', expected one of argument, result, op, ",
        ),
        (
            {"argument": -1, "replicated": True},
            "f, entry 0, field 'argument': expected a number or a name, found -1",
        ),
        (
            {"argument": True, "replicated": True},
            "field 'argument': expected a number or a name, found True",
        ),
        (
            {"replicated": True},
            "expected argument, or result, or op and location, found replicated",
        ),
        (
            {"argument": 0, "op": "add", "replicated": True},
            "or op and location, found argument, op, replicated",
        ),
        ({"argument": 0}, "expected one of sharding, dims, replicated, or forbid, found argument"),
        (
            {"argument": 0, "replicated": False},
            "expected one of sharding, dims, replicated, or forbid",
        ),
        (
            {"argument": 0, "replicated": True, "dims": {}},
            "expected one of sharding, dims, replicated",
        ),
        (
            {"argument": 0, "sharding": "x"},
            "field 'sharding': expected a list with the axes of each dimension",
        ),
        (
            {"argument": 0, "sharding": ["x"]},
            "field 'sharding', dimension 0: expected a list of axes such as [x]",
        ),
        (
            {"argument": 0, "sharding": [["x"], ["x"]]},
            "field 'sharding': expected every axis once, found ['x', 'x']",
        ),
        (
            {"argument": 0, "dims": {"a": []}},
            "field 'dims': expected axes by dimension such as {0: [x]}",
        ),
        ({"argument": 0, "dims": {0: ["x"], 1: ["x"]}}, "field 'dims': expected every axis once"),
        (
            {"argument": 0, "forbid": "x"},
            "field 'forbid': expected a list of axes such as [x], found 'x'",
        ),
        (
            {"location": "a(", "forbid": ["x"]},
            "field 'location': expected a regular expression, found 'a('",
        ),
        ({"op": "", "forbid": ["x"]}, "field 'op': expected text, found ''"),
        (
            {"argument": 0, "forbid": ["x"], "optional": 1},
            "field 'optional': expected true or false, found 1",
        ),
    ],
)
def test_mistakes_name_file_entry_and_field(entry: object, message: str) -> None:
    with pytest.raises(UserError) as error:
        parse_constraints([entry], "f")
    assert str(error.value).startswith("f, entry 0") and message in str(error.value)


def test_broken_files_are_named(tmp_path: Path) -> None:
    for name, text, message in (
        ("a.json", "[1,", "a.json:1: not valid JSON"),
        ("a.yaml", "- [", "a.yaml:1: not valid YAML"),
        ("b.yaml", "argument: 0", "b.yaml: expected a list of entries, found fields"),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(UserError, match=message):
            load_constraints(str(tmp_path / name))
    with pytest.raises(
        UserError, match=r"none\.yaml: cannot read the constraints file: No such file"
    ):
        load_constraints(str(tmp_path / "none.yaml"))


def test_json_and_yaml_say_the_same(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('[{"op": "add", "dims": {"1": ["y"]}, "mesh": "m.*"}]')
    (tmp_path / "a.yaml").write_text("- {op: add, dims: {1: [y]}, mesh: m.*}")
    [first], [second] = (load_constraints(str(tmp_path / name)) for name in ("a.json", "a.yaml"))
    assert (
        (first.op, first.dims, first.mesh)
        == (second.op, second.dims, second.mesh)
        == ("add", ((1, ("y",)),), "m.*")
    )
    assert first.on_mesh(MESH) and not first.on_mesh(Mesh("n", MESH.axes, MESH.devices))


def test_names_are_patterns_and_themselves() -> None:
    [entry] = parse_constraints([{"argument": "params['a'][0]", "replicated": True}], "f")
    assert entry.names(entry.argument, 5, "params['a'][0]") and not entry.names(
        entry.argument, 5, "params['a']0"
    )
    [entry] = parse_constraints([{"argument": r"params\['.'\].*", "replicated": True}], "f")
    assert entry.names(entry.argument, 0, "params['a'][0]") and not entry.names(
        entry.argument, 0, "x"
    )
    assert not entry.names(entry.argument, 0, "") and not entry.names(entry.result, 0, "")
    [entry] = parse_constraints(
        [{"op": "stablehlo.add", "location": "layer_[01]", "forbid": ["x"]}], "f"
    )
    assert entry.names_op("add", 'loc("jit(f)/layer_1/add")') and not entry.names_op(
        "add", "loc(unknown)"
    )
    assert not entry.names_op("subtract", 'loc("layer_1")')


def test_demands_become_annotations() -> None:
    entries = parse_constraints(
        [
            {"argument": 0, "sharding": [["y", "x"], []]},
            {"argument": 0, "dims": {"1": ["x"]}},
            {"argument": 0, "replicated": True},
        ],
        "f",
    )
    assert [entry.annotation(2, MESH) for entry in entries] == [
        Annotation(MESH.axes, (("y", "x"), ())),
        Annotation(MESH.axes, ((), ("x",)), open=(0,)),
        Annotation(MESH.axes, ((), ())),
    ]
    with pytest.raises(ValueError, match="dimension 1 of a value of rank 1"):
        entries[1].annotation(1, MESH)
