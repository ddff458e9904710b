"""The batch arguments of a step: as the user names them, or as donation tells them apart from the state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from jaxlib.mlir import ir

from shardopt.cost.graph import Tensor
from shardopt.dialect.donation import ALIASING_OUTPUT, BUFFER_DONOR, argument_attributes
from shardopt.ir.diagnostics import DiagnosedError, diagnostic
from shardopt.ir.graph import read_tensor
from shardopt.ir.mesh_graphs import MeshGraph
from shardopt.ir.rewriting import shape_of

# Extents of the raw random keys that JAX's generators take (threefry 2, rbg 4): state of the step, never its batch.
_KEY_EXTENTS = (2, 4)
# At most this many candidates are listed in an error.
_MAX_LISTED = 8


@dataclass(frozen=True)
class BatchArgument:
    """Argument number `index` of `@main`, split along `dim`."""

    index: int
    dim: int = 0


def parse_batch_arguments(texts: Sequence[str]) -> tuple[BatchArgument, ...]:
    """From `INDEX` or `INDEX:DIM` each. Raises ValueError."""
    found = []
    for text in texts:
        index, _, dim = text.partition(":")
        if not index.isdigit() or not (dim or "0").isdigit():
            raise ValueError(f"expected batch-args to be auto, none or a list of INDEX[:DIM], found '{text}'")
        found.append(BatchArgument(int(index), int(dim or 0)))
    return tuple(found)


def check_batch_arguments(main: ir.Operation, chosen: Sequence[BatchArgument], count: int) -> None:
    """Raises DiagnosedError unless all exist and can be cut into `count` blocks."""
    arguments = main.regions[0].blocks[0].arguments
    for batch in chosen:
        if batch.index >= len(arguments):
            raise _error(main, f"expected a batch argument below {len(arguments)}, found {batch.index}")
        shape = shape_of(arguments[batch.index])
        if batch.dim >= len(shape):
            raise _error(
                main, f"expected a batch dimension below {len(shape)} of argument {batch.index}, found {batch.dim}"
            )
        extent = shape[batch.dim]
        if extent % count:
            divisors = ", ".join(str(n) for n in range(1, extent + 1) if extent % n == 0)
            raise _error(
                main,
                f"expected a batch that divides into num-microbatches={count}, found extent {extent} of dimension "
                f"{batch.dim} of argument {batch.index}; its divisors are {divisors}",
            )


def find_batch_arguments(main: ir.Operation) -> tuple[BatchArgument, ...]:
    """Arguments that look like the batch, split along dimension 0. Raises DiagnosedError that lists the candidates.

    A training step donates its state, so candidates are the arguments it does not donate; of a function that donates
    nothing they are the integer arguments (tokens, labels). Scalars and random keys are none. All candidates must
    have one leading extent.
    """
    arguments = list(main.regions[0].blocks[0].arguments)
    donated = [ALIASING_OUTPUT in attrs or BUFFER_DONOR in attrs for attrs in argument_attributes(main)]
    tensors = [k for k, value in enumerate(arguments) if shape_of(value) and not _is_key(value)]
    if any(donated):
        candidates = [k for k in tensors if not donated[k]]
    else:
        candidates = [k for k in tensors if isinstance(element_type(arguments[k]), ir.IntegerType)]
    if len({shape_of(arguments[k])[0] for k in candidates}) == 1:
        return tuple(BatchArgument(k) for k in candidates)
    listed = ", ".join(f"{k}: {arguments[k].type}" for k in (candidates or tensors)[:_MAX_LISTED])
    reason = "the candidates differ in their first extent" if candidates else "all arguments are donated or floating"
    raise _error(main, f"cannot tell the batch arguments: {reason} ({listed}); name them with batch-args=INDEX[:DIM]")


def batch_of(graph: MeshGraph, texts: Sequence[str]) -> dict[int, int]:
    """Tensors of a mesh that hold the batch, and the dimension it lies on: as named, or with `auto` those that
    `find_batch_arguments` would take for candidates. Raises ValueError."""
    tensors = {number: graph.graph.tensors[tensor] for number, tensor in graph.arguments.items()}
    state = {number for number, tensor in graph.arguments.items() if tensor in graph.state}
    return {graph.arguments[number]: dim for number, dim in batch_numbers(tensors, state, texts).items()}


def batch_numbers(arguments: Mapping[int, Tensor], state: Set[int], texts: Sequence[str]) -> dict[int, int]:
    """As `batch_of`, of arguments of `@main` by their numbers; `state` are those that a result replaces."""
    if tuple(texts) == ("none",):
        return {}
    if tuple(texts) != ("auto",):
        chosen = parse_batch_arguments(texts)
        return {batch.index: batch.dim for batch in chosen if batch.index in arguments}
    tensors = {k: tensor for k, tensor in arguments.items() if tensor.shape and not _looks_like_key(tensor)}
    if state:  # a training step donates its state
        return {k: 0 for k in tensors if k not in state}
    return {k: 0 for k, tensor in tensors.items() if "i" in tensor.dtype}


def element_type(value: ir.Value) -> ir.Type:
    return ir.RankedTensorType(value.type).element_type


def _is_key(value: ir.Value) -> bool:
    return _looks_like_key(read_tensor(value.type))


def _looks_like_key(tensor: Tensor) -> bool:
    return tensor.dtype == "ui32" and len(tensor.shape) == 1 and tensor.shape[0] in _KEY_EXTENTS


def _error(main: ir.Operation, message: str) -> DiagnosedError:
    return DiagnosedError(diagnostic("error", main, message))
