"""Rules about single values: what they allow, and how those that cannot be met are told.

Messages name both in the user's words: the annotation or the entry of a file, and the argument or
operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir

from shardopt.dialect.annotation import is_marker
from shardopt.dialect.mpmd import is_mesh_tensor, parse_mesh_tensor
from shardopt.ir.diagnostics import Located, position_of
from shardopt.ir.rewriting import defining
from shardopt.mesh.annotation import Annotation
from shardopt.mesh.mesh import Mesh, Sharding
from shardopt.mesh.shardings import shardings_that


class DemandError(Exception):
    """A demand that cannot be met: where, what, and notes for the others involved."""

    def __init__(
        self, where: Located, message: str, notes: Sequence[tuple[Located, str]] = ()
    ) -> None:
        super().__init__(message)
        self.where, self.message, self.notes = where, message, notes


@dataclass(frozen=True)
class DemandRule:
    """What `source` says about a value, found at `where`, as the shardings it allows."""

    source: str
    where: Located
    allows: Callable[[Sharding], bool]


@dataclass(frozen=True)
class Lost:
    """An annotation that cannot be obeyed on the mesh, and why."""

    where: Located
    mesh: Mesh
    message: str


def choices(rules: Sequence[DemandRule], value: ir.Value, mesh: Mesh) -> tuple[Sharding, ...]:
    """The shardings of a value that all of its rules allow. Raises DemandError, which names two
    that contradict."""
    shape = tensor_shape(value)
    agreeing = shardings_that(
        lambda sharding: all(rule.allows(sharding) for rule in rules), mesh, shape
    )
    if agreeing:
        return agreeing
    # A rule that no sharding meets is at fault by itself, whatever the others say.
    alone = [rule for rule in rules if not shardings_that(rule.allows, mesh, shape)]
    if alone:
        message = f"{alone[0].source}: no sharding of {what_is(value)} on mesh {mesh} agrees"
        raise DemandError(alone[0].where, message)
    first, *others = rules
    # Rules may agree two by two and not all together: then the last one is named.
    second = next((r for r in others if not _together(first, r, mesh, shape)), others[-1])
    message = (
        f"{first.source} and {second.source} contradict each other for {what_is(value)} "
        f"on mesh {mesh}"
    )
    raise DemandError(first.where, message, [(second.where, "the other stands here")])


def _together(first: DemandRule, second: DemandRule, mesh: Mesh, shape: tuple[int, ...]) -> bool:
    return bool(
        shardings_that(
            lambda sharding: first.allows(sharding) and second.allows(sharding), mesh, shape
        )
    )


def agreement(annotation: Annotation, mesh: Mesh) -> Callable[[Sharding], bool]:
    """What an annotation allows on a mesh."""
    return lambda sharding: annotation.agrees(sharding, mesh)


def what_is(value: ir.Value) -> str:
    """The words for a value in messages; a marker stands for what it hands on."""
    op = defining(value)
    while op is not None and is_marker(op):
        value = op.operands[0]
        op = defining(value)
    if op is not None:
        return f"the result of '{op.name}'"
    name = position_of(value).name
    return f"argument {ir.BlockArgument(value).arg_number}" + (f" '{name}'" if name else "")


def tensor_shape(value: ir.Value) -> tuple[int, ...]:
    """The shape of a value, a mesh tensor or a plain one."""
    tensor = parse_mesh_tensor(value.type).tensor if is_mesh_tensor(value.type) else value.type
    return tuple(ir.RankedTensorType(tensor).shape)
