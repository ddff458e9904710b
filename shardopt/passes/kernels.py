"""Compiling all that a plan of a large model will need, beside its first phases."""

from __future__ import annotations

from importlib.util import find_spec

from shardopt.solve.assignment.large.compilation import compile_elsewhere

# A module of so many bytes takes seconds until the first kernel is called, and calls it.
_MANY_BYTES = 50_000

_COMPILE = f"from {__name__} import use_all; use_all()"


def compile_for(model: bytes) -> None:
    """Have kernels compiled for a model, as bytecode, if it is so large that it pays, and none was
    compiled on this machine."""
    if len(model) >= _MANY_BYTES and find_spec("numba") is not None:
        compile_elsewhere(_COMPILE)


def use_all() -> None:
    """Call every kernel, those of the stage search first: they are needed first."""
    from shardopt.solve.assignment.large.compilation import use_kernels_for_large
    from shardopt.solve.assignment.sharing.price_splitting import use_kernels_for_sharing
    from shardopt.solve.stages.dp.shared_mesh_search import use_kernels_for_shared_meshes
    from shardopt.solve.stages.dp.stage_dp import use_kernels_for_stages

    use_kernels_for_stages()
    use_kernels_for_sharing()
    use_kernels_for_large()
    use_kernels_for_shared_meshes()
