"""A program as a JSON document: the round trip, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardopt.runtime.program.build import build_program
from shardopt.runtime.program.check import check_program
from shardopt.runtime.program.instructions import Program
from shardopt.runtime.program.json_form import (
    only_mesh,
    program_from_json,
    program_to_json,
    readable_json,
)
from tests.draws import draws
from tests.unit.runtime.random_programs import program_of_all_kinds
from tests.unit.runtime.test_runtime_program import build, pipeline


@pytest.mark.parametrize(
    "program", [build(), build_program(pipeline(["fwd"] * 3, "1f1b"))], ids=["example", "by-hand"]
)
def test_round_trip(program: Program) -> None:
    text = program_to_json(program)
    assert program_from_json(text) == program
    assert program_to_json(program_from_json(text)) == text, "the same bytes again"
    part = only_mesh(program, "m1")
    assert [each.mesh.name for each in part.meshes] == ["m1"] and program_from_json(
        program_to_json(part)
    ) == part


def test_what_is_shared_is_written_once() -> None:
    program = build()
    document = json.loads(program_to_json(program))
    specs = {spec for part in program.meshes for spec in part.buffers}
    assert len(document["tables"]["TensorSpec"]) <= len(specs) + 2, "those of routes and arguments"
    assert len(document["tables"]["StageFunction"]) == len(
        {f for part in program.meshes for f in part.functions}
    )


def test_readable_form_names_functions_by_their_hash() -> None:
    readable = json.loads(readable_json(build()))
    assert all(row["bytecode"].startswith("sha256:") for row in readable["tables"]["StageFunction"])
    assert readable["program"] == json.loads(program_to_json(build()))["program"]


def at(*path: Any) -> Callable[[Any, Any], None]:
    def put(document: Any, value: Any) -> None:
        for key in path[:-1]:
            document = document[key]
        document[path[-1]] = value

    return put


FAULTS: list[tuple[Callable[[Any, Any], None], Any, str]] = [
    (at("format"), "other", "expected a JSON document of format 'shardopt.program'"),
    (at("version"), 1, "expected version 3 of 'shardopt.program', found 1"),
    (at("tables", "TensorSpec"), None, "tables.TensorSpec: expected a list, found None"),
    (
        at("program", "meshes", 0, "buffers", 0),
        99,
        r"program.meshes\[0\].buffers\[0\]: expected a number below",
    ),
    (
        at("program", "meshes", 0, "instructions", 1, "op"),
        "EXEC",
        "expected an op of RUN, SEND, .* found 'EXEC'",
    ),
    (
        at("program", "meshes", 0, "instructions", 2, "tag"),
        True,
        r"instructions\[2\].tag: expected int, found True",
    ),
    (
        at("program", "meshes", 0, "mesh", "devices"),
        [0, 0],
        "meshes.0..mesh: mesh 'm0': device ids .* not unique",
    ),
    (
        at("program", "routes", 0, "pieces", 0),
        {"shard": 1},
        "expected the fields shard, slice, found shard",
    ),
    (at("tables", "StageFunction", 0, "bytecode"), "?", r"tables.StageFunction\[0\].bytecode: "),
    (at("program"), [], "program: expected an object"),
]


@pytest.mark.parametrize(
    ("put", "value", "message"), FAULTS, ids=[message[:30] for _, _, message in FAULTS]
)
def test_what_does_not_fit_is_refused_with_its_place(
    put: Callable[[Any, Any], None], value: Any, message: str
) -> None:
    document = json.loads(program_to_json(build()))
    put(document, value)
    with pytest.raises(ValueError, match=message):
        program_from_json(json.dumps(document))


@pytest.mark.parametrize("text", ["", "{", "[1]", "[" * 100_000, b"\xff"])
def test_what_is_no_document_is_refused(text: str | bytes) -> None:
    with pytest.raises(ValueError, match="JSON"):
        program_from_json(text)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The places of all lists and of all values in them."""
    items = (
        list(value.items())
        if isinstance(value, dict)
        else list(enumerate(value))
        if isinstance(value, list)
        else []
    )
    return [path, *(leaf for key, item in items for leaf in leaves(item, (*path, key)))]


DOCUMENT = program_to_json(build_program(program_of_all_kinds()))
PLACES = [path for path in leaves(json.loads(DOCUMENT)) if path]


@settings(max_examples=draws(300), deadline=None)
@given(
    st.sampled_from(PLACES),
    st.sampled_from([None, -1, 0, 1, 3, 10**12, 1.5, True, "", "m0", [], [0], [[0, 9]], {}]),
)
def test_a_damaged_document_is_refused_or_checked(path: tuple[Any, ...], value: Any) -> None:
    """Whatever stands in one place, reading ends in ValueError, or in a program of which the check
    finds what is wrong without failing itself."""
    document = json.loads(DOCUMENT)
    at(*path)(document, value)
    try:
        program = program_from_json(json.dumps(document))
    except ValueError:
        return
    assert all(isinstance(fault, str) for fault in check_program(program))
