"""Which device writes which slice of a state array, so that replicas are written once and the work
is spread."""

from __future__ import annotations

from collections.abc import Sequence

from shardopt.forms.exported_program import Slice, TensorSpec
from shardopt.forms.reshard_steps import tiles_by_device
from shardopt.mesh.mesh import Mesh
from shardopt.runtime.program.instructions import Program
from shardopt.runtime.program.signature import Whole
from shardopt.support.errors import UserError


def owned_slices(mesh: Mesh, spec: TensorSpec, turn: int) -> tuple[tuple[int, Slice], ...]:
    """(position in the mesh, slice) for every distinct tile: one holder each, replicas by `turn`,
    so that the arrays of a program spread over the hosts that hold copies."""
    holders: dict[Slice, list[int]] = {}
    for position, tile in enumerate(tiles_by_device(mesh, spec).values()):
        holders.setdefault(tile, []).append(position)
    return tuple(
        (holders_of_tile[turn % len(holders_of_tile)], slice_)
        for slice_, holders_of_tile in holders.items()
    )


def state_keys(arguments: Sequence[Whole]) -> dict[int, str]:
    """The name in checkpoints of every argument. Of arguments with equal names, later ones are
    numbered: `w`, `w#2`.

    Names and their order are the model's, so another plan of the same model has the same keys.
    """
    seen: dict[str, int] = {}
    keys = {}
    for number, argument in enumerate(arguments):
        seen[argument.name] = seen.get(argument.name, 0) + 1
        keys[number] = (
            argument.name if seen[argument.name] == 1 else f"{argument.name}#{seen[argument.name]}"
        )
    return keys


def state_arguments(program: Program) -> tuple[int, ...]:
    """The arguments that a step replaces. Raises UserError for one whose sum is still open: it has
    no one value."""
    arguments = program.signature.arguments
    state = tuple(number for number, argument in enumerate(arguments) if argument.alias is not None)
    for number in state:
        for value in (home.value for home in arguments[number].homes):
            if value.spec.sharding.unreduced:
                raise UserError(
                    f"argument '{arguments[number].name}' on mesh '{value.mesh}' is a sum over "
                    f"axes {list(value.spec.sharding.unreduced)} that is not taken: it cannot be "
                    "saved or restored"
                )
    return state
