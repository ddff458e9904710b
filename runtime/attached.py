"""A second program on the workers of a run: an evaluation step beside the training step, on the
weights where they are.

    # its arguments 0 and 1 are those of the training step
    evaluation = run.attach(program, {0: 0, 1: 1})
    outputs = evaluation.step({2: x, 3: labels})

Both programs must place what they share alike: on the same meshes, with the same shardings. Nothing
is copied then: the arrays that the training step left are those that the evaluation step reads, and
it must not consume them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from shardopt.runtime.health.watch import Watch
from shardopt.runtime.program.hosts import Hosts
from shardopt.runtime.program.instructions import Instruction, MeshProgram, Program, Send
from shardopt.runtime.program.json_form import only_mesh, program_to_json
from shardopt.runtime.tracing.where import WorkerStatus
from shardopt.support.errors import UserError

# Tags of one program end below; those of the next begin there, so that messages of two steps never
# mix.
TAGS_OF_A_PROGRAM = 1 << 20

Call = Callable[[str, Mapping[str, tuple[Any, ...]]], dict[str, Any]]


def shared_by_name(main: Program, other: Program) -> dict[int, int]:
    """Arguments of `other` that have the name of a state argument of `main`: its number there."""
    arguments, others = main.signature.arguments, other.signature.arguments
    state = {a.name: number for number, a in enumerate(arguments) if a.alias is not None}
    return {number: state[a.name] for number, a in enumerate(others) if a.name in state}


def shared_homes(main: Program, other: Program, shares: Mapping[int, int]) -> dict[int, int]:
    """What is shared, by the numbers of the programs: each part of an argument. Raises UserError
    where the two programs do not place it alike, with what was expected and found."""
    meshes = {part.mesh.name: part for part in main.meshes}
    for part in other.meshes:
        if part.mesh.name not in meshes or meshes[part.mesh.name].mesh != part.mesh:
            raise UserError(
                f"the attached program has mesh {part.mesh}, which the running one does not have"
            )
        missing = _targets(part) - _targets(meshes[part.mesh.name])
        if missing:
            raise UserError(
                f"in the attached program mesh '{part.mesh.name}' sends to '{min(missing)}', "
                "which it is not connected to in the running one"
            )
    arguments, others = main.signature.arguments, other.signature.arguments
    homes: dict[int, int] = {}
    for number, source in shares.items():
        if not (0 <= number < len(others) and 0 <= source < len(arguments)):
            raise UserError(
                f"argument {number} cannot be argument {source}: there is no such argument"
            )
        argument, expected = others[number], arguments[source]
        if argument.alias is not None:
            raise UserError(
                f"argument '{argument.name}' of the attached program is consumed by it: it cannot "
                "be shared"
            )
        if len(argument.homes) != len(expected.homes):
            raise UserError(
                f"argument '{argument.name}' of the attached program is in {len(argument.homes)} "
                f"parts, expected {len(expected.homes)}, as it lives"
            )
        for home, there in zip(argument.homes, expected.homes, strict=True):
            if (home.value, home.rows) != (there.value, there.rows):
                raise UserError(
                    f"argument '{argument.name}{home.rows}' of the attached program is "
                    f"{home.value.spec} on mesh '{home.value.mesh}', expected "
                    f"{there.value.spec} on mesh '{there.value.mesh}', where it lives"
                )
            homes[home.number] = there.number
    return homes


def with_own_tags(program: Program, number: int) -> Program:
    """Program `number` on some workers, with tags that no other has."""
    first = number * TAGS_OF_A_PROGRAM

    def moved(instruction: Instruction) -> Instruction:
        tag = getattr(instruction, "tag", None)
        return instruction if tag is None else replace(instruction, tag=first + tag)

    parts = (
        replace(part, instructions=tuple(map(moved, part.instructions))) for part in program.meshes
    )
    return replace(program, meshes=tuple(parts), hosts=())


class AttachedBackend:
    """The workers of a run as those of a second program; they end with the run."""

    def __init__(self, program: Program, name: str, backend: Any, call: Call) -> None:
        """`call` is that of the run, which remembers failures."""
        self.hosts: Hosts = {
            part.mesh.name: backend.hosts[part.mesh.name] for part in program.meshes
        }
        self.watch: Watch = backend.watch
        self._name, self._backend, self._call = name, backend, call

    def start(
        self, program: Program, shares: Mapping[int, int], options: Mapping[str, Any]
    ) -> None:
        calls: dict[str, tuple[Any, ...]] = {}
        for part in program.meshes:
            text = program_to_json(only_mesh(program, part.mesh.name))
            kept = {number: shares[number] for number, _ in part.arguments if number in shares}
            calls |= {
                host.name: (self._name, text, kept, dict(options))
                for host in self.hosts[part.mesh.name]
            }
        self._call("attach", calls)

    def call(self, method: str, arguments: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
        return self._call(
            "on_attached",
            {worker: (self._name, method, *each) for worker, each in arguments.items()},
        )

    def where(self) -> dict[str, WorkerStatus | None]:
        statuses: dict[str, WorkerStatus | None] = self._backend.where()
        return statuses

    def ask(self, method: str, seconds: float) -> dict[str, Any]:
        answers: dict[str, Any] = self._backend.ask(method, seconds)
        return answers

    def close(self) -> None:
        """The run ends its workers."""


def _targets(part: MeshProgram) -> set[str]:
    return {each.target for each in part.instructions if isinstance(each, Send)}
