"""Turn every fragment into a call of a private function that XLA can compile on its own.

Needs the scheduled form. Afterwards `@main` and `@microbatch` hold only `mpmd.fragment_call`,
`mpmd.transfer`, the loop and its call; every callee has global types, a sharding on each argument
and result, `mesh_shape`, and `tf.aliasing_output` where a buffer dies in the call and a result of
the same type and sharding can take it over. Fragments with equal bodies share one callee.

    %f = mpmd.fragment<mesh="m0", …, stage=0> (%w, %x) {…} (%a, %b) {…}
      =>
    %f = mpmd.fragment_call<mesh="m0", origin=[…]> @stage0_fwd(%w, %x)
        {shardopt.kind = "fwd", shardopt.stage = 0} …
    func.func private @stage0_fwd(%a {mhlo.sharding = "{…}"}, …) -> (…)
        attributes {mesh_shape = #sdy.mesh<…>}

Programs that others wrote, without a microbatch loop, are lowered too: each function with a
topology. Their functions keep the annotations of Shardy that they have and get no others, since the
types of the call say how its values are split; names come from the origin of the fragment.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func as func_dialect
from jaxlib.mlir.dialects import mpmd

from shardopt.dialect.attributes import i32
from shardopt.dialect.choices import drop_choices
from shardopt.dialect.donation import ALIASING_OUTPUT
from shardopt.dialect.mpmd import (
    BACKWARD,
    COST,
    KIND,
    STAGE,
    STAGE_ID,
    mesh_shape_attr,
    parse_mesh_tensor,
    read_topology,
)
from shardopt.dialect.program import body_of, read_program
from shardopt.dialect.sharding import to_mhlo
from shardopt.extract.buffer_reuse import reused_buffers, reused_in_function
from shardopt.ir.rewriting import functions, operations, symbol_name, terminator
from shardopt.mesh.mesh import Mesh, Sharding
from shardopt.passes.base import Pass, PassContext
from shardopt.passes.stages.outlining import clone_into

_SHARDING = "mhlo.sharding"
_NOTE = "mpmd."
# Names in the origin of a fragment, which is an array of them.
_NAME = re.compile(r'"([^"]*)"')


def _function_name(fragment: ir.Operation) -> str:
    if KIND not in fragment.attributes:
        origins = "_".join(_NAME.findall(str(fragment.attributes["origin"])))
        return re.sub(r"[^\w.$-]", "_", origins) or "fragment"
    kind = ir.StringAttr(fragment.attributes[KIND]).value
    stage = ir.IntegerAttr(fragment.attributes["stage_id"]).value
    return f"stage{stage}_{kind}"


@dataclass
class _Lowering:
    module: ir.Module
    meshes: dict[str, Mesh]
    is_ours: bool = True
    by_text: dict[str, str] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)

    def lower(self, fragments: Iterable[tuple[ir.Operation, dict[int, int]]]) -> None:
        """Fragments, each with its operands whose buffers results take over."""
        for op, reused in fragments:
            if op.name == "mpmd.fragment":
                replaced = self._call(op, self._function(op, reused))
                for old, new in zip(op.results, replaced.results, strict=True):
                    old.replace_all_uses_with(new)
                op.erase()

    def _call(self, fragment: ir.Operation, callee: str) -> ir.Operation:
        call = mpmd.FragmentCallOp(
            [result.type for result in fragment.results],
            list(fragment.operands),
            fragment.attributes["origin"],
            ir.StringAttr(fragment.attributes["mesh_name"]),
            callee,
            loc=fragment.location,
            ip=ir.InsertionPoint(fragment),
        ).operation
        for source in (KIND, BACKWARD, STAGE_ID, COST):
            if source in fragment.attributes:
                name = STAGE if source == STAGE_ID else source
                call.attributes[name] = fragment.attributes[source]
        return call

    def _function(self, fragment: ir.Operation, aliases: dict[int, int]) -> str:
        """A new private function with the fragment's body, or an older one that prints the same."""
        mesh = self.meshes[ir.StringAttr(fragment.attributes["mesh_name"]).value]
        source = fragment.regions[0].blocks[0]
        inputs = [v.type for v in source.arguments]
        results = [v.type for v in terminator(source).operands]
        # All candidates have one name, or it would tell equal bodies apart.
        function = func_dialect.FuncOp(
            "candidate",
            ir.FunctionType.get(inputs, results),
            visibility="private",  # type: ignore[call-arg]
            loc=fragment.location,
            ip=ir.InsertionPoint(self.module.body),
        ).operation
        block = function.regions[0].blocks.append(
            *inputs, arg_locs=[fragment.location] * len(inputs)
        )
        values = dict(zip(source.arguments, block.arguments, strict=True))
        point = ir.InsertionPoint(block)
        for op in body_of(source):
            if not self.is_ours and _is_unsharded(op):
                values[op.results[0]] = values[op.operands[0]]
                continue
            new = clone_into(op, values, point)
            if not self.is_ours:
                _drop_notes(new)
        func_dialect.ReturnOp(
            [values[v] for v in terminator(source).operands], loc=fragment.location, ip=point
        )
        function.attributes["mesh_shape"] = mesh_shape_attr(mesh)
        attributes = [self._shardings(v, mesh) for v in (*fragment.operands, *fragment.results)]
        for k, alias in aliases.items():
            attributes[k][ALIASING_OUTPUT] = i32(alias)
        of_values = [ir.DictAttr.get(each) for each in attributes]
        function.attributes["arg_attrs"] = ir.ArrayAttr.get(of_values[: len(inputs)])
        function.attributes["res_attrs"] = ir.ArrayAttr.get(of_values[len(inputs) :])
        # What functions of others are sharded like stands in their calls only.
        shardings = [_mhlo(v, mesh) for v in (*fragment.operands, *fragment.results)]
        return self._intern(
            function, _function_name(fragment), "" if self.is_ours else str(shardings)
        )

    def _shardings(self, value: ir.Value, mesh: Mesh) -> dict[str, ir.Attribute]:
        return {_SHARDING: ir.StringAttr.get(_mhlo(value, mesh))} if self.is_ours else {}

    def _intern(self, function: ir.Operation, preferred: str, beside: str) -> str:
        # Without locations: equal layers come from different lines of a model.
        text = str(
            function.get_asm(enable_debug_info=False, use_local_scope=True, assume_verified=True)
        )
        text += beside
        if text in self.by_text:
            function.erase()
            return self.by_text[text]
        name, count = preferred, 1
        while name in self.names:
            name, count = f"{preferred}_{count}", count + 1
        self.names.add(name)
        self.by_text[text] = name
        function.attributes["sym_name"] = ir.StringAttr.get(name)
        return name


def _is_unsharded(op: ir.Operation) -> bool:
    """A `@Sharding` call that names no sharding hands its operand on; XLA's partitioner refuses
    it."""
    if op.name != "stablehlo.custom_call" or _SHARDING in op.attributes:
        return False
    return ir.StringAttr(op.attributes["call_target_name"]).value == "Sharding"


def _drop_notes(root: ir.Operation) -> None:
    """What other tools of this dialect noted on operations (`mpmd.reduce`), which XLA does not
    read."""
    for op in operations(root):
        for name in [each for each in op.attributes if each.startswith(_NOTE)]:
            del op.attributes[name]


def _mhlo(value: ir.Value, mesh: Mesh) -> str:
    tensor = parse_mesh_tensor(value.type)
    return to_mhlo(tensor.sharding or Sharding.replicated(len(tensor.tensor.shape)), mesh)


def _without_loop(module: ir.Module) -> list[ir.Operation]:
    """Functions with a topology and fragments, of a module that has no microbatch loop."""
    if operations(module.operation, ("mpmd.for",)):
        return []
    return [
        function
        for function in functions(module)
        if "topology" in function.attributes and operations(function, ("mpmd.fragment",))
    ]


@dataclass(frozen=True)
class LowerToFragmentCalls(Pass):
    """See the head of the file."""

    name = "shardopt-lower-to-fragment-calls"
    summary = "turn fragments into calls of private functions, each an XLA module"

    def run(self, module: ir.Module, pm: PassContext) -> None:
        written_elsewhere = _without_loop(module)
        if written_elsewhere:
            self._lower_functions(module, written_elsewhere, pm)
            return
        try:
            program = read_program(module)
            meshes = {mesh.name: mesh for mesh in read_topology(program.main)}
        except ValueError as error:
            raise pm.error(module.operation, str(error)) from error
        lowering = _Lowering(
            module, meshes, names={symbol_name(program.main), symbol_name(program.body)}
        )
        lowering.lower(reused_buffers(program, program.main_block))
        lowering.lower(reused_buffers(program, program.body_block))
        drop_choices(program.main)
        pm.statistic("stage functions", len(lowering.by_text))

    def _lower_functions(
        self, module: ir.Module, chosen: list[ir.Operation], pm: PassContext
    ) -> None:
        names = {symbol_name(function) for function in functions(module)}
        count = 0
        for function in chosen:
            try:
                meshes = {mesh.name: mesh for mesh in read_topology(function)}
                lowering = _Lowering(module, meshes, is_ours=False, names=names)
                lowering.lower(reused_in_function(function))
            except ValueError as error:
                raise pm.error(function, str(error)) from error
            count += len(lowering.by_text)
        pm.statistic("stage functions", count)
