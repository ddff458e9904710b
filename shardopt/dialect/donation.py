"""Which argument of `@main` a result replaces: how state is fed back from one step to the next.

`tf.aliasing_output = j` names the result; `jax.buffer_donor` only offers the buffer, and JAX pairs
such arguments with results of equal type in order, skipping results that are already taken."""

from __future__ import annotations

from jaxlib.mlir import ir

from shardopt.dialect.mpmd import is_mesh_tensor, parse_mesh_tensor

ALIASING_OUTPUT = "tf.aliasing_output"
BUFFER_DONOR = "jax.buffer_donor"


def argument_attributes(func: ir.Operation) -> list[ir.DictAttr]:
    """One dictionary an argument, empty where the function carries none."""
    count = len(ir.FunctionType(ir.TypeAttr(func.attributes["function_type"]).value).inputs)
    if "arg_attrs" not in func.attributes:
        return [ir.DictAttr.get({})] * count
    return [ir.DictAttr(attr) for attr in ir.ArrayAttr(func.attributes["arg_attrs"])]


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
        if BUFFER_DONOR not in attrs or index in pairs:
            continue
        buffer = _buffer(type_.inputs[index])
        result = next((r for r in free if _buffer(type_.results[r]) == buffer), None)
        if result is not None:
            pairs[index] = result
            free.remove(result)
    return dict(sorted(pairs.items()))


def _buffer(type_: ir.Type) -> tuple[str, str]:
    """What must agree for a buffer to change hands: the mesh, if any, and the tensor; not the
    sharding."""
    if not is_mesh_tensor(type_):
        return "", str(type_)
    parsed = parse_mesh_tensor(type_)
    return parsed.mesh, str(parsed.tensor)
