"""Which argument of `@main` a result replaces: how state is fed back from one step to the next.

`tf.aliasing_output = j` names the result; `jax.buffer_donor` only offers the buffer, and JAX pairs
such arguments with results of equal type in order, skipping results that are already taken.
`shardopt.replaced_by = j` names the result for an argument whose buffer stays the caller's.
`shardopt.memory = "host"`, on a donated argument, says that it and the result that replaces it lie
in the memory of the hosts."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from jaxlib.mlir import ir

from shardopt.dialect.attributes import entries, i32
from shardopt.dialect.mpmd import is_mesh_tensor, parse_mesh_tensor

ALIASING_OUTPUT = "tf.aliasing_output"
BUFFER_DONOR = "jax.buffer_donor"
REPLACED_BY = "shardopt.replaced_by"
# on a donated argument that holds an older version of another one
VERSION_OF = "shardopt.version_of"
MEMORY = "shardopt.memory"
HOST = "host"


def argument_attributes(func: ir.Operation) -> list[ir.DictAttr]:
    """One dictionary an argument, empty where the function carries none."""
    count = len(ir.FunctionType(ir.TypeAttr(func.attributes["function_type"]).value).inputs)
    if "arg_attrs" not in func.attributes:
        return [ir.DictAttr.get({})] * count
    return [ir.DictAttr(attr) for attr in ir.ArrayAttr(func.attributes["arg_attrs"])]


def result_attributes(func: ir.Operation) -> list[ir.DictAttr]:
    """One dictionary a result, empty where the function carries none."""
    count = len(ir.FunctionType(ir.TypeAttr(func.attributes["function_type"]).value).results)
    if "res_attrs" not in func.attributes:
        return [ir.DictAttr.get({})] * count
    return [ir.DictAttr(attr) for attr in ir.ArrayAttr(func.attributes["res_attrs"])]


def is_donated(attributes: Mapping[str, ir.Attribute]) -> bool:
    """Whether an argument with these attributes gives its buffer away."""
    if ALIASING_OUTPUT in attributes:
        return True
    # as XLA reads it: nothing else than `true` offers the buffer
    offered = attributes.get(BUFFER_DONOR)
    return isinstance(offered, ir.BoolAttr) and offered.value


def read_donation(func: ir.Operation) -> dict[int, int]:
    """argument -> the result that replaces it, for every donated argument that has one."""
    type_ = ir.FunctionType(ir.TypeAttr(func.attributes["function_type"]).value)
    attributes = argument_attributes(func)
    pairs = {
        index: ir.IntegerAttr(attrs[ALIASING_OUTPUT]).value
        for index, attrs in enumerate(attributes)
        if ALIASING_OUTPUT in attrs
    }
    taken = set(pairs.values())
    free = [result for result in range(len(type_.results)) if result not in taken]
    for index, attrs in enumerate(attributes):
        if index in pairs or not is_donated(entries(attrs)):
            continue
        buffer = _buffer(type_.inputs[index])
        result = next((r for r in free if _buffer(type_.results[r]) == buffer), None)
        if result is not None:
            pairs[index] = result
            free.remove(result)
    return dict(sorted(pairs.items()))


def donation_faults(func: ir.Operation) -> Iterator[str]:
    """What is wrong with the results that arguments name: it is no number, there is none of that
    number, it is of another type, or another argument names it."""
    type_ = ir.FunctionType(ir.TypeAttr(func.attributes["function_type"]).value)
    inputs, results = type_.inputs, type_.results
    taken: dict[int, int] = {}
    for number, attributes in enumerate(argument_attributes(func)):
        if BUFFER_DONOR in attributes and not isinstance(attributes[BUFFER_DONOR], ir.BoolAttr):
            yield (
                f"argument {number}: expected true or false in '{BUFFER_DONOR}', found "
                f"{attributes[BUFFER_DONOR]}"
            )
        for key, verb in ((ALIASING_OUTPUT, "aliases"), (REPLACED_BY, "is replaced by")):
            if key not in attributes:
                continue
            if not isinstance(attributes[key], ir.IntegerAttr):
                yield f"argument {number}: expected a number in '{key}', found {attributes[key]}"
                continue
            result = ir.IntegerAttr(attributes[key]).value
            if not 0 <= result < len(results):
                yield (
                    f"argument {number} {verb} result {result}, but there are "
                    f"{len(results)} results"
                )
            elif key == ALIASING_OUTPUT and taken.setdefault(result, number) != number:
                yield f"arguments {taken[result]} and {number} both alias result {result}"
            elif not _is_same_buffer(inputs[number], results[result]):
                yield (
                    f"argument {number} {verb} result {result}: expected equal types, found "
                    f"{inputs[number]} and {results[result]}"
                )
    yield from _version_faults(func)
    yield from _memory_faults(func)


def read_versions(func: ir.Operation) -> dict[int, int]:
    """argument that is an older version -> the argument that it is one of."""
    return {
        index: ir.IntegerAttr(attrs[VERSION_OF]).value
        for index, attrs in enumerate(argument_attributes(func))
        if VERSION_OF in attrs
    }


def write_on_host(func: ir.Operation, arguments: Collection[int]) -> None:
    """Lay these arguments, which are donated, into the memory of the hosts."""
    rows = [entries(attributes) for attributes in argument_attributes(func)]
    for index in arguments:
        rows[index][MEMORY] = ir.StringAttr.get(HOST)
    func.attributes["arg_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get(row) for row in rows])


def read_on_host(func: ir.Operation) -> frozenset[int]:
    """The arguments that lie in the memory of the hosts."""
    rows = enumerate(argument_attributes(func))
    return frozenset(index for index, attributes in rows if MEMORY in attributes)


def _memory_faults(func: ir.Operation) -> Iterator[str]:
    """What is wrong with the memory of arguments: there is no other than the host's, and only what
    a step replaces may lie there."""
    donated = read_donation(func)
    for number, attributes in enumerate(argument_attributes(func)):
        if MEMORY not in attributes:
            continue
        found = attributes[MEMORY]
        if found != ir.StringAttr.get(HOST):
            yield f"argument {number}: expected '{HOST}' in '{MEMORY}', found {found}"
        elif number not in donated:
            yield (
                f"argument {number} lies in the memory of the host: expected a donated argument "
                "that a result replaces"
            )


def _version_faults(func: ir.Operation) -> Iterator[str]:
    """What is wrong with arguments that are older versions of others: they stand behind all that
    are none, are donated, and so are the arguments that they are versions of; so do the results
    that replace them."""
    versions = read_versions(func)
    if not versions:
        return
    type_ = ir.FunctionType(ir.TypeAttr(func.attributes["function_type"]).value)
    donated = read_donation(func)
    first, visible = len(type_.inputs) - len(versions), len(type_.results) - len(versions)
    for number, source in versions.items():
        if number < first:
            yield f"argument {number}: expected older versions behind all other arguments"
        elif number not in donated or donated[number] < visible:
            yield (
                f"argument {number}: expected an older version to be replaced by a result behind "
                "those of other arguments"
            )
        elif not 0 <= source < first or source not in donated:
            yield f"argument {number}: expected the number of a donated argument, found {source}"
        elif not _is_same_buffer(type_.inputs[number], type_.inputs[source]):
            yield (
                f"argument {number}: expected the type of argument {source}, found "
                f"{type_.inputs[number]} and {type_.inputs[source]}"
            )


def read_replacements(func: ir.Operation) -> dict[int, int]:
    """argument -> the result that replaces it in the next step, donated or not: both have one
    sharding."""
    named = {
        index: ir.IntegerAttr(attrs[REPLACED_BY]).value
        for index, attrs in enumerate(argument_attributes(func))
        if REPLACED_BY in attrs
    }
    return dict(sorted((read_donation(func) | named).items()))


def write_replacements(func: ir.Operation, pairs: Mapping[int, int]) -> None:
    """Name the result of each argument in `pairs`, in place of the results that donation pairs with
    it: donated arguments stay so. What is donated and not in `pairs` keeps its result if that is
    still free."""
    donated, taken = read_donation(func), set(pairs.values())
    rows = []
    for index, attributes in enumerate(argument_attributes(func)):
        row = entries(attributes)
        gives = is_donated(row)
        kept = {name: row[name] for name in row if name not in (ALIASING_OUTPUT, BUFFER_DONOR)}
        if index in pairs:
            kept[ALIASING_OUTPUT if gives else REPLACED_BY] = i32(pairs[index])
        elif index in donated and donated[index] not in taken:
            kept[ALIASING_OUTPUT] = i32(donated[index])
        elif gives:
            kept[BUFFER_DONOR] = ir.BoolAttr.get(True)
        rows.append(ir.DictAttr.get(kept))
    func.attributes["arg_attrs"] = ir.ArrayAttr.get(rows)


def drop_replacements(func: ir.Operation, arguments: Collection[int] | None = None) -> None:
    """Forget the results of these arguments, of all by default, as far as they are not donated."""
    rows = [entries(attributes) for attributes in argument_attributes(func)]
    dropped = {
        index
        for index, row in enumerate(rows)
        if REPLACED_BY in row and (arguments is None or index in arguments)
    }
    for index in dropped:
        del rows[index][REPLACED_BY]
    if dropped:
        func.attributes["arg_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get(row) for row in rows])


def _is_same_buffer(left: ir.Type, right: ir.Type) -> bool:
    try:
        return _buffer(left) == _buffer(right)
    except ValueError:  # of a type that is malformed, which is said elsewhere
        return True


def _buffer(type_: ir.Type) -> tuple[str, str]:
    """What must agree for a buffer to change hands: the mesh, if any, and the tensor; not the
    sharding."""
    if not is_mesh_tensor(type_):
        return "", str(type_)
    parsed = parse_mesh_tensor(type_)
    return parsed.mesh, str(parsed.tensor)
