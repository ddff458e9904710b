"""Mutations of dumped modules, for `benchmarks.tools.fuzz_phases`.

Those of the text take a dump apart by the grammar of the printed IR: attributes of ours, shardings,
names of meshes, symbols, types, sizes, operands, operations. Most of what they write is no valid
module. Those of the module change operations, values and attributes in place and keep types whole,
so that most modules stay valid and what becomes of them can be compared."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import combinations
from typing import TypeVar

from jaxlib.mlir import ir

from shardopt.dialect.attributes import entries, i64
from shardopt.dialect.donation import argument_attributes
from shardopt.dialect.mpmd import (
    LAYER,
    is_mesh_tensor,
    mesh_tensor_type,
    parse_mesh_tensor,
    read_topology,
)
from shardopt.dialect.sharding import MHLO_SHARDING, to_mhlo
from shardopt.ir.rewriting import defining, functions, shape_of, symbol_name, terminator
from shardopt.mesh.mesh import Mesh, Sharding
from shardopt.mesh.shardings import all_shardings, live_axes

Generator = random.Random
TextMutation = Callable[[str, Generator], str]
ModuleMutation = Callable[[ir.Module, Generator], None]

T = TypeVar("T")

_SIZES = ("0", "-1", "1", "3", "2147483648", "9223372036854775807", "99999999999999999999")


# ---- of text ----


def _replace(text: str, match: re.Match[str], new: str) -> str:
    return text[: match.start()] + new + text[match.end() :]


def _choose(pattern: str, text: str, generator: Generator) -> re.Match[str] | None:
    matches = list(re.finditer(pattern, text))
    return generator.choice(matches) if matches else None


def _swap(pattern: str) -> TextMutation:
    """Exchange two pieces of a kind that are not the same."""

    def mutate(text: str, generator: Generator) -> str:
        first = _choose(pattern, text, generator)
        others = (
            []
            if first is None
            else [match for match in re.finditer(pattern, text) if match[0] != first[0]]
        )
        if first is None or not others:
            return text
        second = generator.choice(others)
        front, back = sorted((first, second), key=lambda match: match.start())
        return _replace(_replace(text, back, front[0]), front, back[0])

    return mutate


def _drop(pattern: str) -> TextMutation:
    def mutate(text: str, generator: Generator) -> str:
        match = _choose(pattern, text, generator)
        return text if match is None else _replace(text, match, "")

    return mutate


def _change(pattern: str, words: Sequence[str]) -> TextMutation:
    def mutate(text: str, generator: Generator) -> str:
        match = _choose(pattern, text, generator)
        return text if match is None else _replace(text, match, generator.choice(words))

    return mutate


def _move_line(text: str, generator: Generator) -> str:
    """An operation stands somewhere else: nesting and order."""
    lines = text.split("\n")
    line = lines.pop(generator.randrange(len(lines)))
    lines.insert(generator.randrange(len(lines)), line)
    return "\n".join(lines)


def _repeat_line(text: str, generator: Generator) -> str:
    lines = text.split("\n")
    at = generator.randrange(len(lines))
    lines.insert(at, lines[at])
    return "\n".join(lines)


# One attribute of ours with a value without brackets, or with one level of them.
_OURS = (
    r"shardopt\.\w+ = (?:\{[^{}]*\}|\[[^\[\]]*\]|array<[^<>]*>|\"[^\"]*\"|[^\s,{}\[\]]+(?: : \w+)?)"
    r"(?:, )?"
)
_TYPE_SHARDING = r"sharding=<@\w+, \[[^\]]*\](?:, unreduced=\{[^}]*\})?>"
_XLA = r"\"\{(?:replicated|devices=[^\"]*|maximal[^\"]*|manual)\}\""
_STRINGS = (
    '""',
    '"{manual}"',
    '"{maximal device=0}"',
    '"{devices=[3,1]<=[3]}"',
    '"{devices=[-1,2]<=[2]}"',
    '"{replicated}"',
    '"{devices=[1,2]<=[2]}"',
    '"{devices=[2,1]<=[2]}"',
    '"{unreduced}"',
)


def _number_in(pattern: str, text: str, generator: Generator) -> str:
    """One number in a piece becomes another: a size that cannot be, or its neighbour."""
    match = _choose(pattern, text, generator)
    if match is None:
        return text
    number = _choose(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?", match[0], generator)
    if number is None:
        return text
    neighbours = (str(int(float(number[0])) + 1), "inf", "nan")
    return _replace(
        text, match, _replace(match[0], number, generator.choice((*_SIZES, *neighbours)))
    )


OF_TEXT: dict[str, TextMutation] = {
    "metadata gone": _drop(_OURS),
    "metadata swapped": _swap(_OURS),
    "metadata number": partial(_number_in, _OURS),
    "sharding swapped": _swap(_TYPE_SHARDING),
    "xla sharding swapped": _swap(_XLA),
    "xla sharding": _change(_XLA, _STRINGS),
    "aliasing": partial(_number_in, r"tf\.aliasing_output = \d+"),
    "iterations": partial(_number_in, r"iterations = \d+"),
    "mesh": _swap(r"(?<=<)\"m\d\"|(?<=mesh=)\"m\d\""),
    "symbol": _swap(r"@\w+"),
    "symbol typo": _change(r"@\w+", ("@typo", "@main", "@microbatch", '@"日本"')),
    "type": _swap(r"tensor<[^<>]*>"),
    "size": _change(r"(?<=[<x])\d+(?=x)", _SIZES),
    "number": _change(r"\b\d+\b", _SIZES),
    "small number": _change(r"\b\d\b", ("0", "1", "2", "3")),
    "operand": _swap(r"%[\w#]+"),
    "operation gone": _drop(r"\n[^\n]* = [^\n]*"),
    "operation moved": _move_line,
    "operation twice": _repeat_line,
    "brackets": _drop(r"[\[\](){}<>]"),
}

# ---- of modules ----


def _another(generator: Generator, among: Iterable[T], but: T) -> T | None:
    others = [each for each in among if each != but]
    return generator.choice(others) if others else None


def _pick(module: ir.Module, generator: Generator, *, reading: int = 0) -> ir.Operation:
    """An operation with at least as many operands."""
    return generator.choice([op for op in _operations_of(module) if len(op.operands) >= reading])


def _reread(module: ir.Module, generator: Generator) -> None:
    """An operation reads another value of the same type."""
    op = _pick(module, generator, reading=1)
    number = generator.randrange(len(op.operands))
    block = op.block
    values = [*block.arguments]
    for view in block.operations:
        if view.operation == op:
            break
        values += view.operation.results
    old = op.operands[number]
    other = _another(generator, (value for value in values if value.type == old.type), old)
    if other is not None:
        op.operands[number] = other


def _exchange_operands(module: ir.Module, generator: Generator) -> None:
    """An operation reads two values of one type the other way round."""
    op = _pick(module, generator, reading=2)
    number = generator.randrange(len(op.operands))
    first = op.operands[number]
    same = (k for k, value in enumerate(op.operands) if value.type == first.type)
    other = _another(generator, same, number)
    if other is not None:
        op.operands[number], op.operands[other] = op.operands[other], first


def _exchange_results(module: ir.Module, generator: Generator) -> None:
    """The readers of two results or arguments of one type read each other's."""
    op = _pick(module, generator)
    values = [
        *op.results,
        *(value for region in op.regions for value in region.blocks[0].arguments),
    ]
    if not values:
        return
    first = generator.choice(values)
    other = _another(generator, (each for each in values if each.type == first.type), first)
    if other is None:
        return
    uses = [(use.owner.operation, use.operand_number) for use in first.uses]
    other.replace_all_uses_with(first)
    for reader, number in uses:
        reader.operands[number] = other


def _pass_over(module: ir.Module, generator: Generator) -> None:
    """The readers of an operation read what it reads."""
    op = _pick(module, generator, reading=1)
    if op.results:
        result = generator.choice(list(op.results))
        other = _another(generator, (v for v in op.operands if v.type == result.type), result)
        if other is not None:
            result.replace_all_uses_with(other)


def _repeat(module: ir.Module, generator: Generator) -> None:
    """One reader of a value reads it of a copy of the operation."""
    op = _pick(module, generator)
    uses = [
        (use.owner.operation, use.operand_number) for result in op.results for use in result.uses
    ]
    if not uses:
        return
    reader, number = generator.choice(uses)
    result = ir.OpResult(reader.operands[number]).result_number
    copy = op.clone(ip=ir.InsertionPoint(op))
    reader.operands[number] = copy.results[result]


def _reorder(module: ir.Module, generator: Generator) -> None:
    """An operation stands somewhere else between its operands and its readers."""
    op = generator.choice(_operations_of(module))
    block = [view.operation for view in op.block.operations]
    here = block.index(op)
    least, most = here, here
    made = set(_read(op))
    while least and not any(result in made for result in block[least - 1].results):
        least -= 1
    results = set(op.results)
    while most < len(block) - 2 and not results & set(_read(block[most + 1])):
        most += 1
    target = generator.randint(least, most)
    if here < len(block) - 1 and target != here:
        (op.move_before if target < here else op.move_after)(block[target])


# Operations that take each other's place.
_ALIKE = (
    ("add", "subtract", "multiply", "maximum", "minimum", "divide"),
    ("tanh", "negate", "abs", "exponential", "sine", "sqrt", "logistic"),
)


def _rename(module: ir.Module, generator: Generator) -> None:
    """An operation of the same signature stands in the place of one."""
    op = _pick(module, generator)
    name = op.name.removeprefix("stablehlo.")
    group = next((group for group in _ALIKE if name in group), ())
    other = _another(generator, group, name)
    if other is None:
        return
    new = ir.Operation.create(
        f"stablehlo.{other}",
        results=[result.type for result in op.results],
        operands=list(op.operands),
        attributes={name: op.attributes[name] for name in op.attributes},
        loc=op.location,
        ip=ir.InsertionPoint(op),
    )
    op.results[0].replace_all_uses_with(new.results[0])
    op.erase()


# Values of every type that attributes of ours have, and none at all.
OTHER_TYPES = ("7 : i64", "7.5 : f64", '"s"', "{}", "[{}]", "[]", "unit", "array<i64: 1>", "")
_NUMBER = r"(?<![\w.])-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?(?![\w.])"


def _change_constant(module: ir.Module, generator: Generator) -> None:
    """One element, or all that are equal, becomes another number."""
    constants = [op for op in _operations_of(module) if op.name == "stablehlo.constant"]
    if not constants:
        return
    op = generator.choice(constants)
    text = str(op.attributes["value"])
    elements, separator, type_ = text.rpartition(" : ")
    match = _choose(_NUMBER, elements, generator)
    if match is None:
        return
    whole = match[0].lstrip("-").isdigit()
    number = float(match[0])
    others = ("0", "1", "2", "3") if whole else (f"{-number:e}", f"{number * 2:e}", "0.0", "1.0")
    new = _replace(elements, match, generator.choice(others))
    op.attributes["value"] = ir.Attribute.parse(f"{new}{separator}{type_}")


def _change_attribute(module: ir.Module, generator: Generator) -> None:
    """A number in an attribute becomes another small one, a comparison another."""
    owners = [module.operation, *_operations_of(module)]
    op = generator.choice([op for op in owners if len(op.attributes)])
    name = generator.choice(list(op.attributes))
    if name in ("value", "function_type"):  # others change those
        return
    old = op.attributes[name]
    text = str(old)
    direction = re.search(r"(?<=comparison_direction )\w+", text)
    match = direction or _choose(_NUMBER, text, generator)
    if match is None:
        return
    directions = ("EQ", "NE", "GE", "GT", "LE", "LT")
    others = directions if direction else ("0", "1", "2", "3", "4")
    other = _another(generator, others, match[0])
    assert other is not None
    try:
        op.attributes[name] = ir.Attribute.parse(_replace(text, match, other))
        if op.name.startswith("stablehlo."):
            op.verify()
    except ir.MLIRError:
        op.attributes[name] = old


def _retype_attribute(module: ir.Module, generator: Generator) -> None:
    """An attribute of ours, or an entry of one, becomes one of another type, or goes."""
    ours = [
        (op, name)
        for op in (module.operation, *_operations_of(module))
        for name in op.attributes
        if name.startswith("shardopt.") or name == MHLO_SHARDING
    ]
    if not ours:
        return
    op, name = generator.choice(ours)
    text = generator.choice(OTHER_TYPES)
    other = ir.Attribute.parse(text) if text else None
    rows = entries(op.attributes[name]) if isinstance(op.attributes[name], ir.DictAttr) else {}
    if rows and generator.random() < 0.5:
        key = generator.choice(list(rows))
        kept = {each: value for each, value in rows.items() if each != key}
        other = ir.DictAttr.get({**kept, key: other} if other is not None else kept)
    if other is None:
        del op.attributes[name]
    else:
        op.attributes[name] = other


def _change_layer(module: ir.Module, generator: Generator) -> None:
    """An operation moves to another layer, or to none."""
    ops = [op for op in _operations_of(module) if LAYER in op.attributes]
    if not ops:
        return
    op = generator.choice(ops)
    layers = {ir.IntegerAttr(each.attributes[LAYER]).value for each in ops}
    other = _another(generator, sorted(layers), ir.IntegerAttr(op.attributes[LAYER]).value)
    if other is not None:
        op.attributes[LAYER] = i64(other)


def _retarget(module: ir.Module, generator: Generator) -> None:
    """A call calls another function of the same type."""
    types = {
        symbol_name(function): function.attributes["function_type"]
        for function in functions(module)
    }
    calls = [op for op in _operations_of(module) if "callee" in op.attributes]
    if not calls:
        return
    op = generator.choice(calls)
    callee = ir.FlatSymbolRefAttr(op.attributes["callee"]).value
    same = (name for name, type_ in types.items() if type_ == types[callee])
    other = _another(generator, same, callee)
    if other is not None:
        op.attributes["callee"] = ir.FlatSymbolRefAttr.get(other)


def _exchange_argument_attributes(module: ir.Module, generator: Generator) -> None:
    """Two arguments of a function exchange one attribute: what they alias, where the batch is."""
    function = generator.choice(list(functions(module)))
    attributes = [entries(each) for each in argument_attributes(function)]
    names = sorted({name for each in attributes for name in each})
    if len(attributes) < 2 or not names:
        return
    name = generator.choice(names)
    first, second = generator.sample(attributes, 2)
    for each, value in ((first, second.get(name)), (second, first.get(name))):
        each.pop(name, None)
        if value is not None:
            each[name] = value
    function.attributes["arg_attrs"] = ir.ArrayAttr.get(
        [ir.DictAttr.get(each) for each in attributes]
    )


def _meshes(module: ir.Module) -> dict[str, Mesh]:
    main = next(function for function in functions(module) if symbol_name(function) == "main")
    return (
        {mesh.name: mesh for mesh in read_topology(main)} if "topology" in main.attributes else {}
    )


_XLA_SHARDING = "mhlo.sharding"


def _reshard_operation(module: ir.Module, generator: Generator) -> None:
    """An operation has its result in another sharding of the mesh."""
    meshes = list(_meshes(module).values())
    ops = [
        op
        for op in _operations_of(module)
        if _XLA_SHARDING in op.attributes and len(op.results) == 1
    ]
    if ops and meshes:
        op, mesh = generator.choice(ops), generator.choice(meshes)
        sharding = generator.choice(_with_terms(mesh, shape_of(op.results[0])))
        op.attributes[_XLA_SHARDING] = ir.StringAttr.get(to_mhlo(sharding, mesh))


def _with_terms(mesh: Mesh, shape: tuple[int, ...]) -> list[Sharding]:
    """Every sharding of a shape, and each with any of the axes that it leaves over unreduced."""
    return [
        Sharding(sharding.dims, unreduced)
        for sharding in all_shardings(mesh, shape)
        for free in [[axis for axis in live_axes(mesh) if axis not in sharding.axes]]
        for count in range(len(free) + 1)
        for unreduced in combinations(free, count)
    ]


def _exchange_shardings(module: ir.Module, generator: Generator) -> None:
    """Two operations exchange the shardings of their results."""
    ops = [op for op in _operations_of(module) if _XLA_SHARDING in op.attributes]
    if not ops:
        return
    op = generator.choice(ops)
    types = [result.type for result in op.results]
    alike = (each for each in ops if [result.type for result in each.results] == types)
    other = _another(generator, alike, op)
    if other is not None:
        first, second = op.attributes[_XLA_SHARDING], other.attributes[_XLA_SHARDING]
        op.attributes[_XLA_SHARDING], other.attributes[_XLA_SHARDING] = second, first


def _reshard_value(module: ir.Module, generator: Generator) -> None:
    """A value between fragments has another sharding, in all places that have to agree on it."""
    meshes = _meshes(module)
    values = [
        value
        for op in _operations_of(module)
        for value in op.results
        if is_mesh_tensor(value.type) and parse_mesh_tensor(value.type).sharding is not None
    ]
    if not values:
        return
    value = generator.choice(values)
    old = parse_mesh_tensor(value.type)
    shardings = _with_terms(meshes[old.mesh], tuple(old.tensor.shape))
    sharding = _another(generator, shardings, old.sharding)
    if sharding is None:
        return
    for each in _of_one_type(module, value):
        each.set_type(mesh_tensor_type(old.mesh, old.tensor, sharding))
        _tell_fragments(module, each, to_mhlo(sharding, meshes[old.mesh]))
    for function in functions(module):
        block = function.regions[0].blocks[0]
        type_ = ir.FunctionType.get(
            [argument.type for argument in block.arguments],
            [result.type for result in terminator(block).operands],
        )
        function.attributes["function_type"] = ir.TypeAttr.get(type_)


def _of_one_type(module: ir.Module, value: ir.Value) -> list[ir.Value]:
    """The value, and those that loops, calls and functions hand it on as."""
    by_name = {symbol_name(function): function for function in functions(module)}
    pairs: list[tuple[ir.Value, ir.Value]] = []
    for op in _operations_of(module):
        if op.name == "mpmd.for":
            block = op.regions[0].blocks[0]
            handed = (block.arguments, op.results, terminator(block).operands)
            pairs += [pair for some in handed for pair in zip(op.operands, some, strict=False)]
        elif op.name in ("mpmd.call", "func.call"):
            block = (
                by_name[ir.FlatSymbolRefAttr(op.attributes["callee"]).value].regions[0].blocks[0]
            )
            pairs += zip(op.operands, block.arguments, strict=True)
            pairs += zip(op.results, terminator(block).operands, strict=True)
    same = [value]
    for each in same:
        for pair in pairs:
            if each in pair:
                same += [other for other in pair if other not in same]
    return same


def _tell_fragments(module: ir.Module, value: ir.Value, sharding: str) -> None:
    """What makes the value in a fragment, and the arguments and results of exported functions, have
    its sharding."""
    by_name = {symbol_name(function): function for function in functions(module)}
    text = ir.StringAttr.get(sharding)

    def of_function(op: ir.Operation, kind: str, number: int) -> None:
        function = by_name[ir.FlatSymbolRefAttr(op.attributes["callee"]).value]
        if kind in function.attributes:
            each = [entries(ir.DictAttr(one)) for one in ir.ArrayAttr(function.attributes[kind])]
            each[number][_XLA_SHARDING] = text
            function.attributes[kind] = ir.ArrayAttr.get([ir.DictAttr.get(one) for one in each])

    for use in value.uses:
        if use.owner.operation.name == "mpmd.fragment_call":
            of_function(use.owner.operation, "arg_attrs", use.operand_number)
    op = defining(value)
    if op is None or op.name not in ("mpmd.fragment", "mpmd.fragment_call"):
        return
    number = ir.OpResult(value).result_number
    owner = op
    if op.name == "mpmd.fragment_call":
        of_function(op, "res_attrs", number)
        owner = by_name[ir.FlatSymbolRefAttr(op.attributes["callee"]).value]
    maker = defining(terminator(owner.regions[0].blocks[0]).operands[number])
    if maker is not None:
        maker.attributes[_XLA_SHARDING] = text


OF_MODULES: dict[str, ModuleMutation] = {
    "operand of its type": _reread,
    "operands exchanged": _exchange_operands,
    "results exchanged": _exchange_results,
    "operation passed over": _pass_over,
    "operation repeated": _repeat,
    "operation moved in order": _reorder,
    "operation of its type": _rename,
    "constant": _change_constant,
    "attribute": _change_attribute,
    "attribute of another type": _retype_attribute,
    "layer": _change_layer,
    "function of its type": _retarget,
    "attributes of arguments": _exchange_argument_attributes,
    "operation in another sharding": _reshard_operation,
    "shardings exchanged": _exchange_shardings,
    "value in another sharding": _reshard_value,
}


_TRIES = 200


def mutated_module(
    text: str,
    count: int,
    generator: Generator,
    context: ir.Context,
    among: Sequence[str] = tuple(OF_MODULES),
) -> tuple[str, tuple[str, ...]]:
    """A dump that nothing has mutated with `count` mutations of the module `among` these, and their
    names; with fewer where it has little that they change."""
    with context, ir.Location.unknown():
        module = ir.Module.parse(text)
        names: list[str] = []
        before = str(module)
        for _ in range(_TRIES):  # not every dump has what a mutation changes
            if len(names) == count:
                break
            name = generator.choice(among)
            try:
                OF_MODULES[name](module, generator)
            except ValueError:  # one before left an attribute that this one reads of another type
                continue
            after = str(module)
            if after != before:
                before = after
                names.append(name)
        return before, tuple(names)


def mutated_text(text: str, count: int, generator: Generator) -> tuple[str, tuple[str, ...]]:
    names: list[str] = []
    while len(names) < count:
        name = generator.choice(list(OF_TEXT))
        mutated = OF_TEXT[name](text, generator)
        if mutated != text:
            text = mutated
            names.append(name)
    return text, tuple(names)


def _operations_of(module: ir.Module) -> list[ir.Operation]:
    """Those of functions and fragments; inside of reductions StableHLO leaves open what happens
    where the order matters."""
    found: list[ir.Operation] = []

    def visit(op: ir.Operation) -> None:
        for region in op.regions:
            for block in region.blocks:
                for view in block.operations:
                    found.append(view.operation)
                    if not view.operation.name.startswith("stablehlo."):
                        visit(view.operation)

    for function in module.body.operations:
        visit(function.operation)
    return found


def _read(op: ir.Operation) -> Iterator[ir.Value]:
    yield from op.operands
    for region in op.regions:
        for block in region.blocks:
            for view in block.operations:
                yield from _read(view.operation)
