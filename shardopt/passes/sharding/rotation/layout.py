"""How values of attention lie on a ring: rows and keys by its axis, the batch by the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from jaxlib.mlir import ir

from shardopt.graph.op_graph import FactorRule
from shardopt.mesh.mesh import Mesh, Sharding
from shardopt.passes.sharding.partition.builder import dense
from shardopt.solve.presets.attention_dims import AttentionDims
from shardopt.solve.presets.context import ContextParallel
from shardopt.solve.presets.slots import leading_factor

Dims = tuple[str | None, ...]  # of each dimension: rows, keys, batch, or nothing
Roles = dict[int, str]  # of factors


@dataclass(frozen=True)
class RingLayout:
    """The ring is the last of the axes; `plan` knows where the batch and the sequence lie."""

    plan: ContextParallel
    place: AttentionDims

    @property
    def mesh(self) -> Mesh:
        return self.plan.tables.mesh

    @property
    def size(self) -> int:
        return self.plan.size

    def axes(self, role: str | None) -> tuple[str, ...]:
        if role is None:
            return ()
        return self.plan.axes[:-1] if role == "batch" else (self.plan.axis,)

    def tiles(self, role: str | None) -> int:
        return prod(self.mesh.axis_size(axis) for axis in self.axes(role))

    def sharding(self, dims: Dims) -> Sharding:
        return Sharding(tuple(map(self.axes, dims)))

    def local(self, shape: Sequence[int], dims: Dims) -> list[int]:
        return [n // self.tiles(role) for n, role in zip(shape, dims, strict=True)]

    def roles(self, index: int) -> Roles:
        """Of the factors of an operation of attention."""
        found: Roles = dict.fromkeys(self.plan.batch_split(index), "batch")
        for role in ("rows", "keys"):
            factor = self.place.factor(index, role)
            if factor is not None:
                found[factor] = role
        return found

    @staticmethod
    def dims(rule: FactorRule, mapping: tuple[tuple[int, ...], ...], roles: Roles) -> Dims:
        leading = (leading_factor(factors, rule.sizes) for factors in mapping)
        return tuple(None if factor is None else roles.get(factor) for factor in leading)

    def neighbours(self) -> ir.DenseElementsAttr:
        """Every device and the next one of its ring."""
        shape = [size for _, size in self.mesh.axes]
        devices = np.arange(self.mesh.size, dtype=np.int64).reshape(shape)
        behind = np.roll(devices, -1, axis=self.mesh.axis_names.index(self.plan.axis))
        pairs = np.stack([devices.ravel(), behind.ravel()], axis=1)
        return dense(pairs)
