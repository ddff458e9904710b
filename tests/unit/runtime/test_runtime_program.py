"""Exported modules to instructions: reading, verifying, building, checking, and the tile algebra
behind transfers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from jaxlib.mlir import ir

from shardopt.dialect.dtypes import MLIR_NAMES, mlir_name, numpy_dtype, numpy_name
from shardopt.forms.exported_form import read_exported
from shardopt.forms.exported_program import (
    Argument,
    Body,
    Call,
    ExportedProgram,
    Loop,
    LoopArgument,
    MeshValue,
    ProgramResult,
    StageFunction,
    TensorSpec,
    Transfer,
)
from shardopt.forms.exported_verify import verify_exported
from shardopt.forms.reshard_steps import default_steps
from shardopt.ir.context import make_context
from shardopt.mesh.mesh import Mesh, Sharding
from shardopt.runtime.program.build import build_program
from shardopt.runtime.program.check import check_program
from shardopt.runtime.program.instructions import (
    Copy,
    Free,
    Instruction,
    Program,
    Recv,
    Reshard,
    Run,
    Send,
)
from shardopt.runtime.program.text import format_program
from shardopt.schedule.schedules import ScheduleText
from shardopt.support.errors import UserError

EXAMPLE = (Path(__file__).parents[2] / "e2e" / "exported_example.mlir").read_text()


def read(text: str) -> ExportedProgram:
    with make_context():
        module = ir.Module.parse(text)
        assert verify_exported(module) == []
        return read_exported(module)


def build(text: str = EXAMPLE) -> Program:
    return build_program(read(text))


def of_type(program: Program, mesh: int, kind: type) -> list[Instruction]:
    return [each for each in program.meshes[mesh].instructions if isinstance(each, kind)]


# Reading and verifying


def test_names_of_arguments_and_donation_pairs() -> None:
    exported = read(EXAMPLE)
    assert [(each.name, each.alias) for each in exported.arguments] == [
        ("w0", 0),
        ("w1", 1),
        ("x", None),
        ("t", None),
    ]
    assert [each.name for each in exported.results] == ["w0", "w1", "loss"]
    assert {function.name: function.donates for function in exported.functions}["stage1_fwd"] == (
        4,
        5,
    )


def test_axes_of_size_one_are_dropped_from_shardings() -> None:
    w0 = '!mpmd.mesh_tensor<"m0", tensor<8x8xf32>, sharding=<@m0, [{}, {}]>>'
    exported = read(EXAMPLE.replace(w0, w0.replace("[{}, {}]", '[{"y"}, {}]')))
    assert exported.arguments[0].value.spec.sharding == Sharding(((), ()))


FAULTS = [
    (
        "      %t: ",
        '      %z: !mpmd.mesh_tensor<"m9", tensor<f32>>, %t: ',
        "mesh 'm9' is not in the topology (m0, m1)",
    ),
    (
        "      %t: ",
        '      %z: !mpmd.mesh_tensor<"m0", tensor<i7>>, %t: ',
        "argument 3: element type 'i7' has no array form",
    ),
    ("array<i64: 2, 3>", "array<i64: 1, 3>", "device 1 is in mesh 'm0' and in mesh 'm1'"),
    (
        '@stage0_fwd(%w: tensor<8x8xf32> {mhlo.sharding = "{replicated}"}',
        '@stage0_fwd(%w: tensor<8x8xf32> {mhlo.sharding = "{devices=[2,1]<=[2]}"}',
        'argument 0 of @stage0_fwd: expected mhlo.sharding "{replicated}", found '
        '"{devices=[2,1]<=[2]}"',
    ),
    (
        '-> (tensor<4x8xf32> {mhlo.sharding = "{devices=[2,1]<=[2]}"}) attributes',
        "-> (tensor<4x8xf32>) attributes",
        'result 0 of @stage0_fwd: expected mhlo.sharding "{devices=[2,1]<=[2]}", found none',
    ),
    ('name = "1f1b"', 'name = "1f2b"', "unknown schedule: '1f2b'; did you mean '1f1b'?"),
    (
        "[0, 1, 3, 2, 4, 4, 8]",
        "[0, 1, 3, 2, 4, 4, 7]",
        "tile [0:4, 4:8] of device 3 is not filled completely",
    ),
    ("[0, 1, 3, 2, 4, 4, 8]", "[0, 1, 3, 0, 4, 2, 8]", "exceeds the source tile [2:4, 0:8]"),
    ("[0, 1, 2, 2, 0, 4, 4]", "[0, 0, 2, 0, 0, 2, 4]", "part of it arrives twice"),
    ("[[0, 2, 0], [1, 0, 1]]", "[[0, 2, 0], [1, 1, 0]]", "device 1 has not received that slice"),
    ('shardopt.kind = "bwd"', 'shardopt.kind = "update"', "expected a kind of the microbatch body"),
    ('shardopt.kind = "bwd", ', "", "expected attribute 'shardopt.kind', found none"),
    (
        'kind = "fwd", shardopt.stage = 1',
        'kind = "fwd", shardopt.stage = 0',
        "fwd of stage 0 runs on mesh 'm0' and on",
    ),
    (
        "{tf.aliasing_output = 0 : i32, jax.arg",
        "{tf.aliasing_output = 2 : i32, jax.arg",
        "expected equal types",
    ),
    (
        "{tf.aliasing_output = 0 : i32, jax.arg",
        "{tf.aliasing_output = 1 : i32, jax.arg",
        "expected equal types",
    ),
    (
        "return %n0, %n1, %nl",
        "return %g0, %n1, %nl",
        "carried value 0: expected its own argument, or the result of a",
    ),
]


@pytest.mark.parametrize(("old", "new", "message"), FAULTS, ids=[fault[2][:40] for fault in FAULTS])
def test_verifier_names_the_fault(old: str, new: str, message: str) -> None:
    assert old in EXAMPLE
    with make_context():
        faults = verify_exported(ir.Module.parse(EXAMPLE.replace(old, new)))
    assert any(message in text for _, text in faults), faults
    assert all("-" in str(where) for where, _ in faults)


def test_carried_value_must_be_read_where_it_is_written() -> None:
    call = 'mpmd.fragment_call<mesh="m0", origin=["layer_0"]> @stage0_fwd(%w0, %xs, %i)'
    assert call in EXAMPLE
    with make_context():
        faults = verify_exported(ir.Module.parse(EXAMPLE.replace(call, call.replace("%w0", "%g0"))))
    assert [text for _, text in faults] == [
        "carried value 0 is written by bwd of stage 0 but read by fwd of stage 0: "
        "the schedule may run them in another order"
    ]


@pytest.mark.parametrize("name", sorted(MLIR_NAMES))
def test_element_types_round_trip(name: str) -> None:
    assert numpy_name(mlir_name(name)) == name
    assert numpy_dtype(name).name == name


def test_unknown_element_types_are_refused() -> None:
    with pytest.raises(ValueError, match="'i7' has no array form"):
        numpy_name("i7")
    with pytest.raises(ValueError, match="'object' has no MLIR"):
        mlir_name("object")


# Building


F0, F1, F2, F3 = (f"fwd stage 0 microbatch {i}" for i in range(4))
B0, B1, B2, B3 = (f"bwd stage 0 microbatch {i}" for i in range(4))


@pytest.mark.parametrize(
    ("schedule", "tasks"),
    [
        ('name = "gpipe"', [F0, F1, F2, F3, B0, B1, B2, B3]),
        ('name = "1f1b"', [F0, F1, B0, F2, B1, F3, B2, B3]),
        (None, [F0, B0, F1, B1, F2, B2, F3, B3]),
    ],
)
def test_example_builds_into_a_good_program(schedule: str | None, tasks: list[str]) -> None:
    attribute = f", shardopt.schedule = {{{schedule}}}" if schedule else ""
    program = build(EXAMPLE.replace(', shardopt.schedule = {name = "1f1b"}', attribute))
    assert check_program(program) == ()
    labels = [run.label for run in of_type(program, 0, Run) if isinstance(run, Run)]
    assert labels == ["prologue stage 0", *tasks, "update stage 0"]


def test_dump() -> None:
    text = format_program(build())
    for line in (
        "mesh m0[x=2, y=1] devices [0, 1]",
        "%0 = argument 0 'w0' f32[8, 8] [{}, {}] (state)",
        "SEND #0 %5 to m1 route 0",
        '%6: f32[4, 8] [{}, {"y"}] = RECV #0 from m0 route 0',
        "RUN @stage0_bwd(%2, %4, %5, %8, %3) donates %3 // bwd stage 0 microbatch 0",
        "FREE %5, %8",
        "next %0 = %21",
    ):
        assert f"  {line}\n" in text or f"{line}\n" in text, line


def test_index_and_donated_buffers_are_never_sent_or_copied() -> None:
    program = build()
    assert not of_type(program, 0, Copy) and not of_type(program, 1, Copy)
    assert [len(part.indices) for part in program.meshes] == [4, 4]
    assert (
        len(
            {
                each.tag
                for part in (0, 1)
                for each in of_type(program, part, Send)
                if isinstance(each, Send)
            }
        )
        == 9
    )


def test_donating_a_kept_argument_makes_a_copy() -> None:
    program = build(EXAMPLE.replace("{tf.aliasing_output = 0 : i32, jax.arg_info", "{jax.arg_info"))
    assert [type(each) for each in program.meshes[0].instructions][-3:] == [Copy, Run, Free]
    assert check_program(program) == ()


def test_schedule_without_a_task_for_a_stage_is_refused() -> None:
    with pytest.raises(UserError, match="schedule 'inference' has no task for bwd of stage 0"):
        build(EXAMPLE.replace('name = "1f1b"', 'name = "inference"'))


# Programs by hand: three meshes of two devices, one function that takes one value and returns one.

SPLIT = TensorSpec((4,), "float32", Sharding((("x",),)))
WHOLE = TensorSpec((4,), "float32", Sharding(((),)))
INDEX = TensorSpec((), "uint32", Sharding(()))
MESHES = tuple(Mesh(f"m{number}", (("x", 2),), (2 * number, 2 * number + 1)) for number in range(3))


def transfer(values: list[MeshValue], source: int, target: int) -> Transfer:
    ends = [
        (next(mesh for mesh in MESHES if mesh.name == values[v].mesh), values[v].spec)
        for v in (source, target)
    ]
    return Transfer(source, target, default_steps(ends[0], ends[1]))


def pipeline(kinds: list[str], schedule: str | None) -> ExportedProgram:
    """Loop over 4 microbatches. Body: stage 0 makes v; v goes m0 -> m1 -> m2 and m1 only passes it
    on; a captured weight goes m0 -> m2 in the body; stage 1 runs on m1; stage 2 takes both on m2
    and accumulates."""
    one = StageFunction("one", b"", (WHOLE,), (WHOLE,), ())
    many = StageFunction("many", b"", (WHOLE, WHOLE, WHOLE, WHOLE, INDEX), (WHOLE,), (3,))
    values = [
        MeshValue("m0", WHOLE),  # 0 weight
        MeshValue("m2", WHOLE),  # 1 accumulator
        MeshValue("m0", INDEX),  # 2 index
        MeshValue("m0", WHOLE),  # 3 out of stage 0
        MeshValue("m1", SPLIT),  # 4 at stage 1
        MeshValue("m1", WHOLE),  # 5 resharded there
        MeshValue("m1", WHOLE),  # 6 out of stage 1
        MeshValue("m2", WHOLE),  # 7 value 4 passed on
        MeshValue("m2", WHOLE),  # 8 out of stage 1
        MeshValue("m2", WHOLE),  # 9 weight
        MeshValue("m2", INDEX),  # 10 index
        MeshValue("m2", WHOLE),  # 11 accumulated
    ]
    ops = (
        Call("m0", "one", kinds[0], 0, (0,), (3,)),
        transfer(values, 3, 4),
        transfer(values, 4, 5),
        Call("m1", "one", kinds[1], 1, (5,), (6,)),
        transfer(values, 4, 7),
        transfer(values, 6, 8),
        transfer(values, 0, 9),
        transfer(values, 2, 10),
        Call("m2", "many", kinds[2], 2, (7, 8, 9, 1, 10), (11,)),
    )
    body = Body(tuple(values), ops, (11,))
    arguments = (LoopArgument("captured", 0), LoopArgument("carried", 0), LoopArgument("index"))
    text = None if schedule is None else ScheduleText(schedule)
    loop = Loop(4, text, body, arguments, (1,), (0,), (2,))
    main = Body(
        (MeshValue("m0", WHOLE), MeshValue("m2", WHOLE), MeshValue("m2", WHOLE)), (loop,), (2,)
    )
    return ExportedProgram(
        MESHES,
        (Argument("w", main.values[0], None), Argument("sum", main.values[1], 0)),
        (ProgramResult("sum", main.values[2]),),
        main,
        (one, many),
    )


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "inference", None])
def test_values_passed_on_and_captured_values_that_move(schedule: str | None) -> None:
    program = build_program(pipeline(["fwd", "fwd", "fwd"], schedule))
    assert check_program(program) == ()
    assert len(of_type(program, 0, Send)) == 4 + 1, "each microbatch once, the weight once"
    assert len(of_type(program, 1, Reshard)) == 4
    assert [len(of_type(program, mesh, Recv)) for mesh in range(3)] == [0, 4, 4 + 1]
    sizes = sorted(
        len(recv.buffers) for recv in of_type(program, 2, Recv) if isinstance(recv, Recv)
    )
    assert sizes == [1, 2, 2, 2, 2], (
        "what m1 makes and what it passes on travel together, the weight alone"
    )
    chain = [run for run in of_type(program, 2, Run) if isinstance(run, Run)]
    assert [run.inputs[3] for run in chain[1:]] == [run.outputs[0] for run in chain[:-1]]


def test_a_mesh_that_runs_nothing_passes_values_on() -> None:
    exported = pipeline(["fwd", "fwd", "fwd"], "gpipe")
    loop = exported.main.ops[0]
    assert isinstance(loop, Loop)
    produce, arrive, _, _, forward, _, weight, index, consume = loop.body.ops
    ops = (produce, arrive, forward, weight, index, replace(consume, inputs=(7, 7, 9, 1, 10)))
    main = replace(exported.main, ops=(replace(loop, body=replace(loop.body, ops=ops)),))  # type: ignore[arg-type]
    program = build_program(replace(exported, main=main))
    assert check_program(program) == ()
    assert [type(each) for each in program.meshes[1].instructions] == [Recv, Send, Free] * 4


def test_two_results_from_one_buffer_get_a_copy_each() -> None:
    value = MeshValue("m0", WHOLE)
    same = ExportedProgram(
        MESHES[:1],
        (Argument("a", value, 0), Argument("b", value, 1), Argument("kept", value, None)),
        (ProgramResult("a", value), ProgramResult("b", value)),
        Body((value,) * 4, (Call("m0", "one", "update", 0, (0,), (3,)),), (3, 3)),
        (StageFunction("one", b"", (WHOLE,), (WHOLE,), (0,)),),
    )
    program = build_program(same)
    assert check_program(program) == ()
    assert len(of_type(program, 0, Copy)) == 1


def test_state_may_be_swapped_without_a_copy() -> None:
    value = MeshValue("m0", WHOLE)
    swap = ExportedProgram(
        MESHES[:1],
        (Argument("a", value, 0), Argument("b", value, 1)),
        (ProgramResult("a", value), ProgramResult("b", value)),
        Body((value,) * 2, (), (1, 0)),
        (),
    )
    program = build_program(swap)
    assert check_program(program) == () and program.meshes[0].instructions == ()
    assert program.meshes[0].feedback == ((1, 0), (0, 1))


# Checking: every mutation of a good program is found


def mutate(program: Program, mesh: int, change: Callable[[list[Instruction]], object]) -> Program:
    parts = list(program.meshes)
    instructions = list(parts[mesh].instructions)
    change(instructions)
    parts[mesh] = replace(parts[mesh], instructions=tuple(instructions))
    return replace(program, meshes=tuple(parts))


def first(instructions: list[Instruction], kind: type) -> int:
    return next(number for number, each in enumerate(instructions) if isinstance(each, kind))


def drop(kind: type) -> Callable[[list[Instruction]], object]:
    return lambda instructions: instructions.pop(first(instructions, kind))


def repeat(kind: type) -> Callable[[list[Instruction]], object]:
    def change(instructions: list[Instruction]) -> None:
        number = first(instructions, kind)
        instructions.insert(number, instructions[number])

    return change


def edit(kind: type, **fields: object) -> Callable[[list[Instruction]], object]:
    def change(instructions: list[Instruction]) -> None:
        number = first(instructions, kind)
        instructions[number] = replace(instructions[number], **fields)  # type: ignore[arg-type]

    return change


MUTATIONS = [
    (drop(Free), "is never freed"),
    (repeat(Free), "is gone"),
    (drop(Send), "tag #0: expected one SEND and one RECV, found 0 and 1"),
    (drop(Recv), "is not defined"),
    (repeat(Recv), "is defined twice"),
    (edit(Send, tag=77), "tag #77: expected one SEND and one RECV, found 1 and 0"),
    (edit(Send, target="m0"), "m0 sends to m0, but m1 receives from m0"),
    (edit(Send, routes=(1,)), "m0 sends by route 1, m1 receives by route 0"),
    (edit(Send, buffers=(0,)), "%0 is f32[8, 8] [{}, {}], expected f32[4, 8]"),
    (edit(Run, function="other"), "function @other is not in the program"),
    (edit(Run, inputs=()), "@prologue_m0 takes 1 and returns 2 buffers"),
    (edit(Run, donated=(1,)), "consumes %1, which the next step needs"),
    (edit(Free, buffers=(4,)), "consumes %4, which the next step needs"),
    (edit(Free, buffers=(0,)), "%0 is gone"),
    (
        lambda instructions: instructions.insert(0, instructions.pop(first(instructions, Recv))),
        "deadlock: mesh m0, instruction 0 (",
    ),
]


@pytest.mark.parametrize(
    ("change", "message"), MUTATIONS, ids=[message for _, message in MUTATIONS]
)
def test_check_finds_a_mutation(
    change: Callable[[list[Instruction]], object], message: str
) -> None:
    faults = check_program(mutate(build(), 0, change))
    assert any(message in fault for fault in faults), faults
