"""The exported form: reading a module whose stages are fragment calls into `ExportedProgram`.

    func.func public @main(%w: !mpmd.mesh_tensor<"m0", …> {tf.aliasing_output = 0 : i32}, …)
          attributes {topology, shardopt.devices}
      mpmd.fragment_call<mesh="m0", …> @prologue_m0(…)
          {shardopt.kind = "prologue", shardopt.stage = 0 : i64}
      mpmd.for (…) {iterations = 4 : ui32, shardopt.schedule = {name = "1f1b"}} {
        mpmd.call @microbatch(…) … }
      mpmd.transfer {shardopt.resharding =
          {steps = dense<[[phase, src, dst, starts…, limits…], …]>}} %x
    func.func private @microbatch(…)       fragment calls of kind fwd / bwd, and transfers
    func.func private @stage0_fwd(…)       plain StableHLO with global types and `mesh_shape`,
                                           `mhlo.sharding` on every argument and result

A module of Shardy's own MPMD export is read, too: its functions have no `mhlo.sharding`, its calls
no kind and stage (`shardopt.forms.shardy_functions`).

`read_exported` expects a module that `verify_exported` (in `shardopt.forms.exported_verify`)
accepts."""

from __future__ import annotations

import io
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
from jaxlib.mlir import ir

from shardopt.dialect.attributes import entries, i32
from shardopt.dialect.donation import (
    ALIASING_OUTPUT,
    VERSION_OF,
    argument_attributes,
    is_donated,
    read_donation,
    read_on_host,
)
from shardopt.dialect.dtypes import numpy_name
from shardopt.dialect.mpmd import KIND, RESHARDING, STAGE, parse_mesh_tensor, read_topology
from shardopt.dialect.padding import read_shape
from shardopt.dialect.parts import read_parts
from shardopt.dialect.program import body_of
from shardopt.dialect.schedule import read_schedule
from shardopt.dialect.sharding import MHLO_SHARDING
from shardopt.extract.waiting_values import waiting_values
from shardopt.forms.exported_program import (
    Argument,
    Body,
    Call,
    ExportedProgram,
    Loop,
    LoopArgument,
    Memory,
    MeshValue,
    ProgramResult,
    ReshardStep,
    StageFunction,
    TensorSpec,
    Transfer,
)
from shardopt.forms.reshard_steps import default_steps
from shardopt.forms.shardy import to_shardy
from shardopt.forms.shardy_functions import complete_module
from shardopt.ir.context import make_context
from shardopt.ir.diagnostics import position_of
from shardopt.ir.io import module_bytecode
from shardopt.ir.rewriting import terminator
from shardopt.mesh.mesh import Mesh, Sharding

MAIN = "main"
MESH_SHAPE = "mesh_shape"

FRAGMENT = "fragment"  # kind of a call that does not say
_RESERVATIONS = ("reserved_hbm_bytes", "xla_tpu_user_reserved_hbm_bytes")  # for other compilers
_MESH = "mesh"  # in stage modules: equal stages of two meshes are one function
_STEP_COLUMNS = 3  # phase, source device, target device; then the starts, then the limits
_NAME_ATTRIBUTES = ("jax.arg_info", "jax.result_info")


def read_exported(module: ir.Module) -> ExportedProgram:
    """The whole program as plain values. Raises ValueError or KeyError on a module that does not
    verify."""
    symbols = ir.SymbolTable(module.operation)
    main = find_function(symbols, MAIN)
    meshes = read_topology(main)
    reader = _Reader(symbols, {mesh.name: mesh for mesh in meshes})
    body = reader.read_body(entry_block(main))
    donated = read_donation(main)
    parts = read_parts(main, "res_attrs")
    replacing = {donated[number] for number in read_on_host(main)}
    return ExportedProgram(
        meshes=meshes,
        arguments=_arguments(main, reader),
        results=tuple(
            ProgramResult(
                _display_name(attrs, f"result{number}"),
                reader.border_value(attrs, type_, "host" if number in replacing else "device"),
                parts.get(number),
            )
            for number, (attrs, type_) in enumerate(
                zip(attribute_dicts(main, "res_attrs"), function_type(main).results, strict=True)
            )
        ),
        main=body,
        functions=tuple(reader.functions.values()),
    )


def find_function(symbols: ir.SymbolTable, name: str) -> ir.Operation:
    """Raises ValueError when the module has no function of that name."""
    operation = symbols[name].operation if name in symbols else None
    if operation is None or operation.name != "func.func":
        raise ValueError(f"function @{name} does not exist")
    return operation


def function_type(function: ir.Operation) -> ir.FunctionType:
    return ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)


def entry_block(function: ir.Operation) -> ir.Block:
    return function.regions[0].blocks[0]


def callee_name(op: ir.Operation) -> str:
    return ir.FlatSymbolRefAttr(op.attributes["callee"]).value


def mesh_value(type_: ir.Type) -> MeshValue:
    """A mesh tensor type as a value; without a sharding it is replicated. Raises ValueError on
    other types."""
    parsed = parse_mesh_tensor(type_)
    shape = static_shape(parsed.tensor)
    sharding = parsed.sharding if parsed.sharding is not None else Sharding.replicated(len(shape))
    return MeshValue(
        parsed.mesh, TensorSpec(shape, numpy_name(str(parsed.tensor.element_type)), sharding)
    )


def static_shape(type_: ir.RankedTensorType) -> tuple[int, ...]:
    if not type_.has_static_shape:
        raise ValueError(f"expected a static shape, found {type_}")
    return tuple(type_.shape)


def attribute_dicts(function: ir.Operation, which: str) -> list[dict[str, ir.Attribute]]:
    """The attributes of every argument ("arg_attrs") or result ("res_attrs"), empty where there are
    none."""
    count = len(
        function_type(function).inputs if which == "arg_attrs" else function_type(function).results
    )
    if which not in function.attributes:
        return [{} for _ in range(count)]
    rows = [ir.DictAttr(row) for row in ir.ArrayAttr(function.attributes[which])]
    return [{row[index].name: row[index].attr for index in range(len(row))} for row in rows]


def donated_arguments(function: ir.Operation) -> tuple[int, ...]:
    """The arguments whose buffers a stage function consumes."""
    rows = attribute_dicts(function, "arg_attrs")
    return tuple(number for number, row in enumerate(rows) if is_donated(row))


def read_steps(transfer: ir.Operation, rank: int) -> tuple[ReshardStep, ...] | None:
    """The resharding plan on a transfer, or None. Raises ValueError when it is no `[n, 3 + 2 *
    rank]` of i64."""
    if RESHARDING not in transfer.attributes:
        return None
    plan = ir.DictAttr(transfer.attributes[RESHARDING])
    if "steps" not in plan:
        return None
    steps = ir.DenseIntElementsAttr(plan["steps"])
    element = ir.ShapedType(steps.type).element_type
    if str(element) != "i64":
        raise ValueError(f"expected resharding steps of i64, found {element}")
    rows = np.asarray(steps)
    if rows.ndim != 2 or rows.shape[1] != _STEP_COLUMNS + 2 * rank:
        columns = _STEP_COLUMNS + 2 * rank
        raise ValueError(
            f"expected resharding steps [n, {columns}] for rank {rank}, found {list(rows.shape)}"
        )
    limits = _STEP_COLUMNS + rank
    return tuple(
        ReshardStep(
            row[0], row[1], row[2], tuple(zip(row[_STEP_COLUMNS:limits], row[limits:], strict=True))
        )
        for row in rows.tolist()
    )


def _arguments(main: ir.Operation, reader: _Reader) -> tuple[Argument, ...]:
    """They have the names that the model's source gives them, which jax writes into locations."""
    aliases, on_host = read_donation(main), read_on_host(main)
    parts = read_parts(main, "arg_attrs")
    rows = zip(attribute_dicts(main, "arg_attrs"), entry_block(main).arguments, strict=True)
    return tuple(
        Argument(
            _display_name(attrs, position_of(value).name or f"arg{number}"),
            reader.border_value(attrs, value.type, "host" if number in on_host else "device"),
            aliases.get(number),
            ir.IntegerAttr(attrs[VERSION_OF]).value if VERSION_OF in attrs else None,
            parts.get(number),
        )
        for number, (attrs, value) in enumerate(rows)
    )


def _display_name(attributes: dict[str, ir.Attribute], default: str) -> str:
    names = [ir.StringAttr(attributes[key]).value for key in _NAME_ATTRIBUTES if key in attributes]
    return next((name for name in names if name), default)


class _Reader:
    """Walks one function after another; `functions` collects the callees in order of their first
    call."""

    def __init__(self, symbols: ir.SymbolTable, meshes: dict[str, Mesh]) -> None:
        self.symbols = symbols
        self.meshes = meshes
        self.functions: dict[str, StageFunction] = {}
        self._same: dict[object, bytes] = {}  # bytecode by text and shardings

    def value(self, type_: ir.Type, memory: Memory = "device") -> MeshValue:
        """The type as a value, without axes of size one: they split nothing, and equal tilings
        compare equal."""
        value = mesh_value(type_)
        live = {name for name, size in self.meshes[value.mesh].axes if size > 1}
        sharding = value.spec.sharding
        *dims, unreduced = (
            tuple(axis for axis in axes if axis in live)
            for axes in (*sharding.dims, sharding.unreduced)
        )
        spec = replace(value.spec, sharding=Sharding(tuple(dims), unreduced), memory=memory)
        return replace(value, spec=spec)

    def border_value(
        self, attributes: Mapping[str, ir.Attribute], type_: ir.Type, memory: Memory
    ) -> MeshValue:
        """An argument or result of `@main` as the caller has it: without padding."""
        value, shape = self.value(type_, memory), read_shape(attributes)
        return value if shape is None else replace(value, spec=replace(value.spec, shape=shape))

    def read_body(self, block: ir.Block) -> Body:
        numbers: dict[ir.Value, int] = {}
        values: list[MeshValue] = []

        def define(defined: ir.Value) -> int:
            numbers[defined] = len(values)
            values.append(self.value(defined.type))
            return numbers[defined]

        for argument in block.arguments:
            define(argument)
        ops: list[Call | Transfer | Loop] = []
        *body, terminator = block.operations
        for view in body:
            op = view.operation
            inputs = tuple(numbers[operand] for operand in op.operands)
            outputs = tuple(define(result) for result in op.results)
            if op.name == "mpmd.fragment_call":
                ops.append(
                    self._read_call(
                        op, inputs, outputs, [values[value] for value in (*inputs, *outputs)]
                    )
                )
            elif op.name == "mpmd.transfer":
                ops.append(
                    self._read_transfer(
                        op, inputs[0], outputs[0], values[inputs[0]], values[outputs[0]]
                    )
                )
            elif op.name == "mpmd.for":
                ops.append(self._read_loop(op, inputs, outputs, numbers))
            else:
                raise ValueError(f"expected a fragment call, transfer or loop, found '{op.name}'")
        return Body(
            tuple(values), tuple(ops), tuple(numbers[operand] for operand in terminator.operands)
        )

    def _read_call(
        self,
        op: ir.Operation,
        inputs: tuple[int, ...],
        outputs: tuple[int, ...],
        values: list[MeshValue],
    ) -> Call:
        callee = callee_name(op)
        if callee not in self.functions:
            specs = tuple(value.spec for value in values)
            function = find_function(self.symbols, callee)
            self.functions[callee] = StageFunction(
                callee,
                self._bytecode(
                    function, self.meshes[ir.StringAttr(op.attributes["mesh_name"]).value], specs
                ),
                specs[: len(inputs)],
                specs[len(inputs) :],
                donated_arguments(function),
            )
        return Call(
            mesh=ir.StringAttr(op.attributes["mesh_name"]).value,
            function=callee,
            kind=ir.StringAttr(op.attributes[KIND]).value if KIND in op.attributes else FRAGMENT,
            stage=int(ir.IntegerAttr(op.attributes[STAGE]))
            if STAGE in op.attributes
            else self._place(op),
            inputs=inputs,
            outputs=outputs,
        )

    def _place(self, op: ir.Operation) -> int:
        """Calls without a stage are told apart by their mesh."""
        return list(self.meshes).index(ir.StringAttr(op.attributes["mesh_name"]).value)

    def _bytecode(self, function: ir.Operation, mesh: Mesh, specs: Sequence[TensorSpec]) -> bytes:
        if is_annotated(function):
            return standalone_bytecode(function, mesh)
        shardings = [spec.sharding for spec in specs]
        split = len(function_type(function).inputs)
        # Ours share equal functions already; here those that differ in their names alone are
        # compiled once, too.
        name = ir.StringAttr(function.attributes["sym_name"]).value
        text = str(function.get_asm(enable_debug_info=False)).replace(f"@{name}(", "@(", 1)
        key = (text, mesh.axes, tuple(shardings))
        if key not in self._same:
            signature = (self.symbols, shardings[:split], shardings[split:])
            self._same[key] = standalone_bytecode(function, mesh, signature)
        return self._same[key]

    def _read_transfer(
        self,
        op: ir.Operation,
        source: int,
        target: int,
        source_value: MeshValue,
        target_value: MeshValue,
    ) -> Transfer:
        steps = read_steps(op, len(source_value.spec.shape))
        if not steps:
            steps = default_steps(
                *((self.meshes[value.mesh], value.spec) for value in (source_value, target_value))
            )
        return Transfer(source, target, steps)

    def _read_loop(
        self,
        op: ir.Operation,
        initial: tuple[int, ...],
        outputs: tuple[int, ...],
        numbers: dict[ir.Value, int],
    ) -> Loop:
        block = op.regions[0].blocks[0]
        carried = list(block.arguments)
        call, terminator = (view.operation for view in block.operations)
        body = entry_block(find_function(self.symbols, callee_name(call)))
        waiting = waiting_values(op, body_of(body))
        values = [*body.arguments, *(result for each in body.operations for result in each.results)]
        return Loop(
            iterations=int(ir.IntegerAttr(op.attributes["iterations"])),
            schedule=read_schedule(op),
            body=self.read_body(body),
            arguments=tuple(
                loop_argument(operand, carried, len(initial), numbers) for operand in call.operands
            ),
            initial=initial,
            yields=tuple(
                None if operand in carried else _position(operand, call.results)
                for operand in terminator.operands
            ),
            outputs=outputs,
            waiting=frozenset(k for k, value in enumerate(values) if value in waiting),
        )


def loop_argument(
    operand: ir.Value,
    block_arguments: Sequence[ir.Value],
    num_carried: int,
    numbers: dict[ir.Value, int],
) -> LoopArgument:
    """What the call in a loop passes on: the index is the block argument after the carried
    values."""
    if operand not in block_arguments:
        return LoopArgument("captured", numbers[operand])
    position = _position(operand, block_arguments)
    return LoopArgument("index") if position == num_carried else LoopArgument("carried", position)


def _position(value: ir.Value, among: Sequence[ir.Value]) -> int:
    return next(number for number, other in enumerate(among) if other == value)


def is_annotated(function: ir.Operation) -> bool:
    """Whether the signature has `mhlo.sharding`s, as in our form; else it is taken for one of
    Shardy's."""
    rows = (*attribute_dicts(function, "arg_attrs"), *attribute_dicts(function, "res_attrs"))
    return not rows or any(MHLO_SHARDING in row for row in rows)


def standalone_bytecode(
    function: ir.Operation,
    mesh: Mesh,
    signature: tuple[ir.SymbolTable, Sequence[Sharding], Sequence[Sharding]] | None = None,
) -> bytes:
    """MLIR bytecode of a module that holds `function` alone, as public `@main`, in the form of
    Shardy's partitioner for a mesh of the shape of `mesh`; `function` itself stays as it is.

    `signature` is for functions that are not annotated: where their module's symbols are, and the
    shardings of their arguments and results."""
    with function.context, function.location:
        module = ir.Module.create()
        module.operation.attributes["sym_name"] = function.attributes["sym_name"]
        clone = function.clone(ip=ir.InsertionPoint(module.body))
        clone.attributes["sym_name"] = ir.StringAttr.get(MAIN)
        clone.attributes["sym_visibility"] = ir.StringAttr.get("public")
        for name in (MESH_SHAPE, *_RESERVATIONS):
            if name in clone.attributes:
                del clone.attributes[name]
        if signature is None:
            # XLA ends the process on names with escapes
            axes = tuple(
                (name if name.isascii() else f"_{number}", size)
                for number, (name, size) in enumerate(mesh.axes)
            )
            to_shardy(module, replace(mesh, name=_MESH, axes=axes))
        else:
            complete_module(module, clone, signature[0], mesh, signature[1], signature[2])
        buffer = io.BytesIO()
        module.operation.write_bytecode(buffer)
        return buffer.getvalue()


def keep_results(bytecode: bytes, wanted: Collection[int]) -> tuple[bytes, tuple[int, ...]]:
    """The module of `standalone_bytecode` whose `@main` gives the results with these numbers, and
    those that take the buffer of an argument, in their order; and the numbers of all of them."""
    with make_context() as context, ir.Location.unknown():
        module = ir.Module.parse(bytecode, context)
        main = find_function(ir.SymbolTable(module.operation), MAIN)
        aliases = read_donation(main)
        kept = tuple(sorted({*wanted, *aliases.values()}))
        end = terminator(entry_block(main))
        values, type_ = list(end.operands), function_type(main)
        with ir.InsertionPoint(end):
            ir.Operation.create(end.name, operands=[values[number] for number in kept])
        end.erase()
        main.attributes["function_type"] = ir.TypeAttr.get(
            ir.FunctionType.get(type_.inputs, [type_.results[number] for number in kept])
        )
        if "res_attrs" in main.attributes:
            of_results = ir.ArrayAttr(main.attributes["res_attrs"])
            main.attributes["res_attrs"] = ir.ArrayAttr.get([of_results[k] for k in kept])
        rows = argument_attributes(main)
        for argument, result in aliases.items():
            named = entries(rows[argument])
            if ALIASING_OUTPUT in named:
                number = i32(kept.index(result))
                rows[argument] = ir.DictAttr.get({**named, ALIASING_OUTPUT: number})
        main.attributes["arg_attrs"] = ir.ArrayAttr.get(rows)
        return module_bytecode(module), kept
