"""Programs of one collective K times in a row; see `shardopt.runtime.profiling.chains`."""

from __future__ import annotations

from shardopt.cost import collectives
from shardopt.runtime.profiling.chains import ADD, Chain, Link, type_text, write_back


def collective(kind: str, bytes: int, group: int, devices: int, *, scatters: bool) -> Chain:
    """One of `shardopt.cost.collectives` on all groups of `group` neighbours; `bytes` as its
    formula wants them.

    `scatters` says that the partitioner makes reduce-scatters; otherwise they are all-reduces of
    which each device takes its part."""
    whole = max(bytes // 4 // group, 1) * group
    elements = whole // group if kind == collectives.ALL_GATHER else whole
    if kind == collectives.ALL_TO_ALL:
        elements = max(whole // group // group, 1) * group
        whole = elements * group
    groups = [[start + k for k in range(group)] for start in range(0, devices, group)]
    link, opcode = _collective_link(kind, elements, group, groups, scatters)
    return Chain(
        kind=kind,
        dtype="f32",
        size=4.0 * whole,
        arguments=((elements,),),
        link=link,
        opcodes=(opcode, f"{opcode}-start"),
    )


def _collective_link(
    kind: str, elements: int, group: int, groups: list[list[int]], scatters: bool
) -> tuple[Link, str]:
    links = _Links(elements, group, groups)
    table: dict[str, tuple[Link, str]] = {
        collectives.ALL_REDUCE: (links.all_reduce, "all-reduce"),
        collectives.PERMUTE: (links.permute, "collective-permute"),
        collectives.ALL_TO_ALL: (links.all_to_all, "all-to-all"),
        collectives.ALL_GATHER: (links.all_gather, "all-gather"),
        collectives.REDUCE_SCATTER: (
            (links.reduce_scatter, "reduce-scatter")
            if scatters
            else (links.part_of_all_reduce, "all-reduce")
        ),
    }
    return table[kind]


class _Links:
    """The text of one collective of a chain, by kind: of `elements` numbers a device, within each
    of `groups` of `group` devices."""

    def __init__(self, elements: int, group: int, groups: list[list[int]]) -> None:
        self.elements, self.group, self.groups = elements, group, groups
        self.type = type_text((elements,), "f32")
        self.where = f"replica_groups = dense<{groups}> : tensor<{len(groups)}x{group}xi64>"
        self.add = ADD.replace("tensor<T>", "tensor<f32>")

    def all_reduce(self, step: int, x: str) -> tuple[str, str]:
        return self._sum("y", step, x), f"%y{step}"

    def permute(self, step: int, x: str) -> tuple[str, str]:
        pairs = [
            [each[k], each[(k + 1) % self.group]] for each in self.groups for k in range(self.group)
        ]
        pairs_text = f"source_target_pairs = dense<{pairs}> : tensor<{len(pairs)}x2xi64>"
        return (
            f'%y{step} = "stablehlo.collective_permute"({x}) <{{{pairs_text}}}> : '
            f"({self.type}) -> {self.type}",
            f"%y{step}",
        )

    def all_to_all(self, step: int, x: str) -> tuple[str, str]:
        dims = (
            f"split_dimension = 0 : i64, concat_dimension = 0 : i64, split_count = {self.group} : "
            f"i64, {self.where}"
        )
        return (
            f'%y{step} = "stablehlo.all_to_all"({x}) <{{{dims}}}> : ({self.type}) -> {self.type}',
            f"%y{step}",
        )

    def all_gather(self, step: int, x: str) -> tuple[str, str]:
        whole = self.elements * self.group
        back, result = write_back(step, x, (self.elements,), (whole,), "f32")
        types = f"({self.type}) -> {type_text((whole,), 'f32')}"
        return (
            f'%y{step} = "stablehlo.all_gather"({x}) <{{all_gather_dim = 0 : i64, {self.where}}}> '
            f": {types}\n{back}",
            result,
        )

    def reduce_scatter(self, step: int, x: str) -> tuple[str, str]:
        part = self.elements // self.group
        back, result = write_back(step, x, (self.elements,), (part,), "f32")
        return (
            f'%y{step} = "stablehlo.reduce_scatter"({x}) '
            f"<{{scatter_dimension = 0 : i64, {self.where}}}> "
            f"{self.add} : ({self.type}) -> {type_text((part,), 'f32')}\n{back}",
            result,
        )

    def part_of_all_reduce(self, step: int, x: str) -> tuple[str, str]:
        part = self.elements // self.group
        back, result = write_back(step, x, (self.elements,), (part,), "f32")
        return (
            f"{self._sum('f', step, x)}\n"
            f"%id{step} = stablehlo.replica_id : tensor<ui32>\n"
            f"%n{step} = stablehlo.constant dense<{self.group}> : tensor<ui32>\n"
            f"%k{step} = stablehlo.remainder %id{step}, %n{step} : tensor<ui32>\n"
            f"%m{step} = stablehlo.constant dense<{part}> : tensor<ui32>\n"
            f"%p{step} = stablehlo.multiply %k{step}, %m{step} : tensor<ui32>\n"
            f"%y{step} = stablehlo.dynamic_slice %f{step}, %p{step}, sizes = [{part}] : "
            f"({self.type}, tensor<ui32>) -> {type_text((part,), 'f32')}\n{back}",
            result,
        )

    def _sum(self, name: str, step: int, x: str) -> str:
        reduced = f'"stablehlo.all_reduce"({x}) <{{{self.where}}}> {self.add}'
        return f"%{name}{step} = {reduced} : ({self.type}) -> {self.type}"


# A sum left open along the mesh and then wanted in parts: a reduce-scatter where the backend has
# one.
SCATTERING = """
sdy.mesh @mesh = <["x"=2]>
func.func @main(%0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>},
                %1: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
    -> (tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
  %2 = stablehlo.dot_general %0, %1, contracting_dims = [1] x [0]
      : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %2 : tensor<8x8xf32>
}
"""
