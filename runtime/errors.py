"""The one error of a run that fails."""

from __future__ import annotations


class MeshError(Exception):
    """Something failed on one mesh; the message names the mesh, and the instruction when there is one."""

    def __init__(self, mesh: str, where: str, cause: str) -> None:
        super().__init__(mesh, where, cause)  # all arguments, so that it survives pickling
        self.mesh = mesh

    def __str__(self) -> str:
        mesh, where, cause = self.args
        return f"mesh '{mesh}'{', ' if where else ''}{where}: {cause}"
