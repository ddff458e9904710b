"""Programs of nothing but overhead: instructions on arrays of a few numbers."""

from __future__ import annotations

from shardopt.forms.exported_program import (
    Argument,
    MeshValue,
    ProgramResult,
    StageFunction,
    TensorSpec,
)
from shardopt.forms.reshard_steps import default_steps
from shardopt.mesh.mesh import Mesh, Sharding
from shardopt.runtime.profiling.slopes import bytecode_of
from shardopt.runtime.program.instructions import (
    Copy,
    Free,
    Instruction,
    MeshProgram,
    Program,
    Recv,
    Reshard,
    Run,
    Send,
)
from shardopt.runtime.program.routes import make_route

_TENSOR = "tensor<16xf32>"
_WHOLE = TensorSpec((16,), "float32", Sharding(((),)))
_SPLIT = TensorSpec((16,), "float32", Sharding((("x",),)))


def chain(runs: int) -> Program:
    """One mesh of one device; every RUN takes what the one before made, which is then freed."""
    instructions: list[Instruction] = []
    for k in range(runs):
        instructions.append(Run("add", (k,), (k + 1,), (), f"link {k}"))
        if k:
            instructions.append(Free((k,)))
    value = MeshValue("a", _WHOLE)
    part = MeshProgram(
        mesh=Mesh("a", (("x", 1),), (0,)),
        buffers=(_WHOLE,) * (runs + 1),
        arguments=((0, 0),),
        indices=(),
        instructions=tuple(instructions),
        results=((0, runs),),
        feedback=(),
        functions=(_add(_WHOLE, ""),) if runs else (),
    )
    return Program((Argument("x", value, None),), (ProgramResult("y", value),), (), (part,))


def every_instruction(repeats: int) -> Program:
    """Each kind so often, on meshes of two devices. Mesh b asks for the last message first, so that
    the others have come when it takes them."""
    a, b = (
        Mesh(name, (("x", 2),), (2 * number, 2 * number + 1)) for number, name in enumerate("ab")
    )
    ends = ((a, _SPLIT), (b, _SPLIT)), ((a, _SPLIT), (a, _WHOLE))
    routes = tuple(
        make_route(source, target, default_steps(source, target)) for source, target in ends
    )
    on_a: list[Instruction] = []
    for k in range(repeats):
        made, copied, whole = 3 * k + 1, 3 * k + 2, 3 * k + 3
        on_a += [
            Run("add", (0,), (made,), (), f"link {k}"),
            Send(k, (made,), "b", (0,)),
            Copy(made, copied),
            Reshard(repeats + k, made, whole, 1),
            *(Free((buffer,)) for buffer in (made, copied, whole)),
        ]
    on_b: list[Instruction] = [Recv(k, (k,), "a", (0,)) for k in reversed(range(repeats))]
    on_b += [Free((k,)) for k in range(1, repeats)]
    parts = (
        MeshProgram(
            mesh=a,
            buffers=(_SPLIT, *((_SPLIT, _SPLIT, _WHOLE) * repeats)),
            arguments=((0, 0),),
            indices=(),
            instructions=tuple(on_a),
            results=(),
            feedback=(),
            functions=(_add(_SPLIT, ' {mhlo.sharding = "{devices=[2]<=[2]}"}'),),
        ),
        MeshProgram(
            mesh=b,
            buffers=(_SPLIT,) * repeats,
            arguments=(),
            indices=(),
            instructions=tuple(on_b),
            results=((0, 0),),
            feedback=(),
            functions=(),
        ),
    )
    argument, result = MeshValue("a", _SPLIT), MeshValue("b", _SPLIT)
    return Program((Argument("x", argument, None),), (ProgramResult("y", result),), routes, parts)


def _add(spec: TensorSpec, attributes: str) -> StageFunction:
    text = (
        f"func.func public @main(%x: {_TENSOR}{attributes}) -> ({_TENSOR}{attributes}) {{\n"
        f"%y = stablehlo.add %x, %x : {_TENSOR}\nreturn %y : {_TENSOR}\n}}"
    )
    return StageFunction("add", bytecode_of(text), (spec,), (spec,), ())
