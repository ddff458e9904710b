"""The reshardings that are measured: small ones counted by hand, and the public suite of the paper
on resharding.

The suite is that of "On Optimizing the Communication of Model Parallelism" (arXiv 2211.05322,
section 5.1.2), as its authors published it (alpa-projects/alpa, benchmark/alpa/resharding/suite.py;
cases 7 and 8 are equal there): tensors of f32 between meshes of 1, 2 or 3 hosts with four V100s
each."""

from __future__ import annotations

from dataclasses import dataclass, replace

from shardopt.hardware.cluster import Cluster, Link
from shardopt.hardware.cluster_file import load_cluster
from shardopt.mesh.mesh import Mesh, Sharding
from shardopt.solve.resharding.strategies import Resharding

Dims = tuple[tuple[str, ...], ...]

_X, _Y, _XY, _ALL = ("x",), ("y",), ("x", "y"), ()
_REPLICATED: Dims = (_ALL, _ALL, _ALL)
_CUBE, _FLAT = (1024, 1024, 512), (3072, 1024, 170)


@dataclass(frozen=True)
class Case:
    """A tensor from a mesh of `source_shape` devices to one of `target_shape`; the devices of the
    second follow."""

    name: str
    shape: tuple[int, ...]
    itemsize: int
    source_shape: tuple[int, int]
    source_dims: Dims
    target_shape: tuple[int, int]
    target_dims: Dims

    @property
    def resharding(self) -> Resharding:
        source = _mesh("source", self.source_shape, 0)
        target = self.source_shape[0] * self.source_shape[1]
        ends = (
            (source, Sharding(self.source_dims)),
            (_mesh("target", self.target_shape, target), self.target),
        )
        return Resharding(self.shape, self.itemsize, *ends)

    @property
    def target(self) -> Sharding:
        return Sharding(self.target_dims)

    def __str__(self) -> str:
        ends = ((self.source_shape, self.source_dims), (self.target_shape, self.target_dims))
        meshes = " → ".join(f"{rows}×{columns} {_spec(dims)}" for (rows, columns), dims in ends)
        return f"{'×'.join(map(str, self.shape))}, {meshes}"


def _mesh(name: str, shape: tuple[int, int], first: int) -> Mesh:
    devices = tuple(range(first, first + shape[0] * shape[1]))
    return Mesh(name, (("x", shape[0]), ("y", shape[1])), devices)


def _spec(dims: Dims) -> str:
    """As the papers write it: S with the mesh axes, or R, for each dimension."""
    return "".join(
        f"S{''.join(str('xy'.index(axis)) for axis in axes)}" if axes else "R" for axes in dims
    )


SMALL = (
    Case("replicas to rows", (4, 8, 16), 4, (1, 2), _REPLICATED, (1, 2), (_Y, _ALL, _ALL)),
    Case("columns to rows", (4, 8, 16), 4, (1, 2), (_ALL, _Y, _ALL), (1, 2), (_Y, _ALL, _ALL)),
    Case("rows to replicas", (4, 8, 16), 4, (1, 2), (_Y, _ALL, _ALL), (1, 2), _REPLICATED),
    Case("replicas to replicas", (6, 8, 16), 4, (1, 4), _REPLICATED, (1, 4), _REPLICATED),
)

SUITE = (
    Case("1", _CUBE, 4, (2, 4), (_X, _ALL, _ALL), (2, 4), (_X, _ALL, _ALL)),
    Case("2", _CUBE, 4, (2, 4), _REPLICATED, (2, 4), (_X, _ALL, _ALL)),
    Case("3", _CUBE, 4, (2, 4), (_ALL, _X, _ALL), (2, 4), (_X, _ALL, _ALL)),
    Case("4", _CUBE, 4, (2, 4), (_ALL, _XY, _ALL), (2, 4), (_XY, _ALL, _ALL)),
    Case("5", _CUBE, 4, (2, 4), (_Y, _ALL, _ALL), (2, 4), (_X, _ALL, _ALL)),
    Case("6", _FLAT, 4, (2, 4), (_X, _ALL, _ALL), (3, 4), (_X, _ALL, _ALL)),
    Case("7", _CUBE, 4, (1, 4), (_Y, _ALL, _ALL), (2, 4), _REPLICATED),
    Case("8", _CUBE, 4, (1, 4), (_Y, _ALL, _ALL), (2, 4), _REPLICATED),
    Case("9", _CUBE, 4, (2, 4), (_ALL, _X, _ALL), (2, 4), (_ALL, _ALL, _X)),
)

# Up to 64 devices on each side; then the largest cluster there is, of 4096 devices.
_SIDES = ((8, 8), (16, 16), (32, 64))
LARGE = tuple(
    Case(name, (4096, 4096, 512), 2, side, source, side, target)
    for side in _SIDES
    for name, source, target in (
        ("transpose", (_X, _Y, _ALL), (_Y, _X, _ALL)),
        ("rows to rows", (_X, _ALL, _ALL), (_X, _ALL, _ALL)),
        ("rows to columns", (_X, _ALL, _ALL), (_ALL, _X, _ALL)),
        ("all-to-all", (_ALL, _XY, _ALL), (_X, _Y, _ALL)),
        ("replicas to tiles", _REPLICATED, (_XY, _ALL, _ALL)),
        ("replicas to replicas", _REPLICATED, _REPLICATED),
    )
)


def p3_cluster(hosts: int, devices: int = 4) -> Cluster:
    """Hosts like those of the paper, AWS p3.8xlarge: half a p3.16xlarge, with 10 Gbit/s between
    hosts."""
    cluster = load_cluster(f"p3.16xlarge:{hosts}x{devices}")
    (group,) = cluster.groups
    nic = Link(group.inter_host.latency_seconds, 1.25e9)
    return replace(
        cluster, name="p3.8xlarge", groups=(replace(group, name="p3.8xlarge", inter_host=nic),)
    )


def cluster_of(case: Case) -> Cluster:
    """As many hosts as a case needs: of a row of its meshes each, or of eight devices where rows
    are longer."""
    devices = (
        case.source_shape[0] * case.source_shape[1] + case.target_shape[0] * case.target_shape[1]
    )
    width = case.source_shape[1]
    return (
        p3_cluster(devices // width, width)
        if width <= 4
        else load_cluster(f"a100-80g:{devices // 8}x8")
    )
