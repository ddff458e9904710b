"""On which mesh each stage of a schedule is."""

from __future__ import annotations


def in_turn(num_stages: int, num_meshes: int) -> tuple[int, ...]:
    """Mesh after mesh, and round again where a mesh has several stages."""
    return tuple(stage % num_meshes for stage in range(num_stages))


def down_and_up(num_stages: int, num_meshes: int) -> tuple[int, ...]:
    """Two stages a mesh: from the first mesh to the last, and back."""
    return (*range(num_meshes), *reversed(range(num_meshes)))


def in_blocks(num_stages: int, num_meshes: int) -> tuple[int, ...]:
    """All stages of a mesh follow each other."""
    return tuple(stage * num_meshes // num_stages for stage in range(num_stages))
