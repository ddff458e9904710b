"""Which results of a function are its arguments of the next step, told from their trees.

    def step(params, opt_state, batch): …; return params, opt_state, loss

    args[0]['w']  f32[64,8]   ─▶  [0]['w']  f32[64,8]       the same key path below the argument,
    args[1].mu['w'] …         ─▶  [1].mu['w'] …             the same shapes and types
    args[2]                       [2]                       stay alone

An argument is paired as a whole with the topmost part of the results that has its key paths and
types. Where there is none, each of its entries is, with a part of the results under the same key.
Large trees go first: the parameters then find no partner inside of an optimizer's state, whose
moments look like them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

from jax.tree_util import KeyPath, keystr, tree_flatten_with_path

# A path from the root of a tree, key by key.
_Prefix = tuple[str, ...]
# Paths below a node, with the types of what lies there.
_Signature = tuple[tuple[_Prefix, Any], ...]
# Arguments are told by two keys: positional or keyword, and which one.
_ARGUMENT_DEPTH = 2


@dataclass
class _Node:
    """A part of a tree: where it stands, and its leaves by number."""

    prefix: _Prefix
    leaves: list[int] = field(default_factory=list)


def state_pairs(inputs: Any, outputs: Any) -> dict[int, int]:
    """flat argument -> flat result, of `inputs`, a tree (args, kwargs), and `outputs`; their leaves
    are types (shape and dtype), which are compared."""
    paths, types = _flat(inputs)
    result_paths, result_types = _flat(outputs)
    nodes, results = _nodes(paths), _nodes(result_paths)
    partners: dict[_Signature, list[_Node]] = {}
    for node in sorted(results.values(), key=lambda node: (len(node.prefix), node.leaves)):
        partners.setdefault(_signature(node, result_paths, result_types), []).append(node)
    children = _children(nodes)
    queue: list[tuple[int, list[int], _Prefix]] = []
    for prefix, node in nodes.items():
        if len(prefix) == _ARGUMENT_DEPTH:
            heappush(queue, (-len(node.leaves), node.leaves, prefix))
    pairs: dict[int, int] = {}
    taken: set[int] = set()
    while queue:
        _, _, prefix = heappop(queue)
        node = nodes[prefix]
        signature = _signature(node, paths, types)
        # No key below the node itself.
        (path, _), *_ = signature
        is_leaf = not path
        partner = next(
            (
                result
                for result in partners.get(signature, ())
                if _fit(prefix, result.prefix, is_leaf) and taken.isdisjoint(result.leaves)
            ),
            None,
        )
        if partner is None:
            for child in children.get(prefix, ()):
                heappush(queue, (-len(nodes[child].leaves), nodes[child].leaves, child))
            continue
        pairs |= zip(node.leaves, partner.leaves, strict=True)
        taken |= set(partner.leaves)
    return dict(sorted(pairs.items()))


def _fit(argument: _Prefix, result: _Prefix, is_leaf: bool) -> bool:
    """Whether the places allow a pair: an argument may be any part of the results, but a single
    array only one that is returned by itself; an entry must stand under the same key."""
    if len(argument) > _ARGUMENT_DEPTH:
        return argument[-1:] == result[-1:]
    return not is_leaf or len(result) <= 1


def _flat(tree: Any) -> tuple[list[_Prefix], list[Any]]:
    pairs, _ = tree_flatten_with_path(tree)
    return [_texts(path) for path, _ in pairs], [(leaf.shape, leaf.dtype) for _, leaf in pairs]


def _texts(path: KeyPath) -> _Prefix:
    return tuple(keystr((key,)) for key in path)


def _nodes(paths: Sequence[_Prefix]) -> dict[_Prefix, _Node]:
    """All parts of a tree by the path to them."""
    nodes: dict[_Prefix, _Node] = {}
    for number, path in enumerate(paths):
        for depth in range(len(path) + 1):
            nodes.setdefault(path[:depth], _Node(path[:depth])).leaves.append(number)
    return nodes


def _children(nodes: dict[_Prefix, _Node]) -> dict[_Prefix, list[_Prefix]]:
    children: dict[_Prefix, list[_Prefix]] = {}
    for prefix in nodes:
        if prefix:
            children.setdefault(prefix[:-1], []).append(prefix)
    return children


def _signature(node: _Node, paths: Sequence[_Prefix], types: Sequence[Any]) -> _Signature:
    depth = len(node.prefix)
    return tuple((paths[number][depth:], types[number]) for number in node.leaves)
