"""Put the parts of a program that others wrote on meshes, where they are on none yet.

Needs: a function with a `topology`; what it calls, and its loops, are written out first. Afterwards
its values are mesh tensors, and it consists of fragments and transfers, which
shardopt-lower-to-fragment-calls takes.

    func.func @main(%x: tensor<4xf32>) …  {topology = <<"m0": …>, <"m1": …>>}
      %1 = mpmd.named_computation<"f1"> (%x) …
      %2 = mpmd.named_computation<"f2"> (%1) …
      %3 = mpmd.reduce<add> %1, %2
   =>
    func.func @main(%x: !mpmd.mesh_tensor<"m0", tensor<4xf32>>) …
      %1 = mpmd.fragment<mesh="m0", origin=["f1"]> (%x) …
      %t = mpmd.transfer %1 : … "m0" … -> … "m1" …
      %2 = mpmd.fragment<mesh="m1", origin=["f2"]> (%t) …
      %3 = mpmd.fragment<mesh="m1", origin=[]> (%t, %2) { stablehlo.add … }

1. Named computations and tensors go where `name-to-mesh` says; names that it leaves out go in their
   order to the meshes, in runs of equal length.
2. Operations without a name follow what they read (`shardopt.solve.stages.homes`); runs of them on
   one mesh are one fragment, and constants are made on each mesh.
3. A reduction over meshes reduces on each mesh what lies there, and then what is left.
4. Arguments lie where they are first read, results where they are made. `mpmd.assign` is a transfer
   where the value is elsewhere, `mpmd.unassign` none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir

from shardopt.dialect.mpmd import is_mesh_tensor, read_topology
from shardopt.forms.written_out import has_plain, write_out
from shardopt.ir.rewriting import functions, symbol_name
from shardopt.passes.base import Pass, PassContext, option
from shardopt.passes.pipelining.plain_fragments import Placed, outline
from shardopt.passes.pipelining.plain_parts import (
    extract,
    flatten,
    free_ops,
    mesh_name,
    names_of,
)
from shardopt.solve.stages.homes import find_homes
from shardopt.support.suggestions import unknown_name

_TOPOLOGY = "topology"


@dataclass(frozen=True)
class AssignMeshes(Pass):
    """See the head of the file."""

    name = "shardopt-assign-meshes"
    summary = "put the parts of a program that are on no mesh yet on meshes of its topology"

    name_to_mesh: tuple[str, ...] = option(
        (), help="meshes of named computations and tensors, each as name@mesh"
    )

    def run(self, module: ir.Module, pm: PassContext) -> None:
        by_name = {symbol_name(function): function for function in functions(module)}
        chosen = [each for each in by_name.values() if _TOPOLOGY in each.attributes]
        if not chosen:
            raise pm.error(
                module.operation, f"expected a function with attribute '{_TOPOLOGY}', found none"
            )
        plain = [function for function in chosen if has_plain(function)]
        for function in plain:
            write_out(function, by_name)
        self._check_names(module, plain, pm)
        pm.statistic("fragments", sum(self._assign(function, pm) for function in plain))

    def _check_names(
        self, module: ir.Module, plain: Sequence[ir.Operation], pm: PassContext
    ) -> None:
        known = [name for function in plain for name in names_of(function.regions[0].blocks[0])]
        for row in self.name_to_mesh:
            name, at, _ = row.rpartition("@")
            if not at:
                message = f"name-to-mesh: expected name@mesh, found '{row}'"
                raise pm.error(module.operation, message)
            if name not in known:
                message = unknown_name("name of a computation or tensor", name, tuple(known))
                raise pm.error(module.operation, message)

    def _assign(self, function: ir.Operation, pm: PassContext) -> int:
        """The number of fragments that were made."""
        try:
            topology = read_topology(function)
        except ValueError as error:
            raise pm.error(function, str(error)) from error
        meshes = tuple(mesh.name for mesh in topology)
        if not meshes:
            raise pm.error(function, "expected at least one mesh in the topology, found none")
        block = function.regions[0].blocks[0]
        by_name = self._meshes_of_names(function, names_of(block), meshes, pm)
        parts = flatten(block, by_name, meshes)
        _check(function, parts.ops, meshes, pm)
        free = free_ops(parts.ops)
        mesh_of = {mesh: number for number, mesh in enumerate(meshes)}
        extracted = extract(parts, free, mesh_of)
        homes = find_homes(extracted.steps, extracted.bytes_of_values)
        return outline(function, parts, free, Placed(extracted, homes, topology))

    def _meshes_of_names(
        self,
        function: ir.Operation,
        names: Sequence[str],
        meshes: Sequence[str],
        pm: PassContext,
    ) -> Mapping[str, int]:
        stated: dict[str, int] = {}
        for row in self.name_to_mesh:
            name, _, mesh = row.rpartition("@")
            if name not in names:  # of another function
                continue
            if mesh not in meshes:
                raise pm.error(function, unknown_name("mesh of the topology", mesh, tuple(meshes)))
            stated[name] = meshes.index(mesh)
        left = [name for name in names if name not in stated]
        runs = {name: k * len(meshes) // len(left) for k, name in enumerate(left)}
        return runs | stated


def _check(
    function: ir.Operation, ops: Sequence[ir.Operation], meshes: Sequence[str], pm: PassContext
) -> None:
    """Values on no mesh are of types that can be on one, and meshes of types exist."""
    values = [(function, value) for value in function.regions[0].blocks[0].arguments]
    values += [(op, value) for op in ops for value in op.results]
    for op, value in values:
        if is_mesh_tensor(value.type):
            mesh = mesh_name(value.type)
            if mesh not in meshes:
                raise pm.error(op, unknown_name("mesh of the topology", mesh, tuple(meshes)))
        elif not (
            isinstance(value.type, ir.RankedTensorType)
            and ir.RankedTensorType(value.type).has_static_shape
        ):
            raise pm.error(op, f"expected tensors of static shapes on meshes, found {value.type}")
