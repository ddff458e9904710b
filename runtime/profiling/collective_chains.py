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
    type_ = type_text((elements,), "f32")
    where = f"replica_groups = dense<{groups}> : tensor<{len(groups)}x{group}xi64>"
    add = ADD.replace("tensor<T>", "tensor<f32>")

    def all_reduce(step: int, x: str) -> tuple[str, str]:
        return (
            f'%y{step} = "stablehlo.all_reduce"({x}) <{{{where}}}> {add} : ({type_}) -> {type_}',
            f"%y{step}",
        )

    def permute(step: int, x: str) -> tuple[str, str]:
        pairs = [[each[k], each[(k + 1) % group]] for each in groups for k in range(group)]
        pairs_text = f"source_target_pairs = dense<{pairs}> : tensor<{len(pairs)}x2xi64>"
        return (
            f'%y{step} = "stablehlo.collective_permute"({x}) <{{{pairs_text}}}> : ({type_}) -> '
            f"{type_}",
            f"%y{step}",
        )

    def all_to_all(step: int, x: str) -> tuple[str, str]:
        dims = (
            f"split_dimension = 0 : i64, concat_dimension = 0 : i64, split_count = {group} : "
            f"i64, {where}"
        )
        return (
            f'%y{step} = "stablehlo.all_to_all"({x}) <{{{dims}}}> : ({type_}) -> {type_}',
            f"%y{step}",
        )

    def all_gather(step: int, x: str) -> tuple[str, str]:
        back, result = write_back(step, x, (elements,), (elements * group,), "f32")
        types = f"({type_}) -> {type_text((elements * group,), 'f32')}"
        return (
            f'%y{step} = "stablehlo.all_gather"({x}) <{{all_gather_dim = 0 : i64, {where}}}> : '
            f"{types}\n{back}",
            result,
        )

    def reduce_scatter(step: int, x: str) -> tuple[str, str]:
        part = type_text((elements // group,), "f32")
        back, result = write_back(step, x, (elements,), (elements // group,), "f32")
        if scatters:
            op = (
                f'"stablehlo.reduce_scatter"({x}) <{{scatter_dimension = 0 : i64, {where}}}> '
                f"{add} : ({type_}) -> {part}"
            )
            return f"%y{step} = {op}\n{back}", result
        return (
            f'%f{step} = "stablehlo.all_reduce"({x}) <{{{where}}}> {add} : ({type_}) -> {type_}\n'
            f"%id{step} = stablehlo.replica_id : tensor<ui32>\n"
            f"%n{step} = stablehlo.constant dense<{group}> : tensor<ui32>\n"
            f"%k{step} = stablehlo.remainder %id{step}, %n{step} : tensor<ui32>\n"
            f"%m{step} = stablehlo.constant dense<{elements // group}> : tensor<ui32>\n"
            f"%p{step} = stablehlo.multiply %k{step}, %m{step} : tensor<ui32>\n"
            f"%y{step} = stablehlo.dynamic_slice %f{step}, %p{step}, sizes = [{elements // group}] "
            ": "
            f"({type_}, tensor<ui32>) -> {part}\n{back}",
            result,
        )

    table: dict[str, tuple[Link, str]] = {
        collectives.ALL_REDUCE: (all_reduce, "all-reduce"),
        collectives.PERMUTE: (permute, "collective-permute"),
        collectives.ALL_TO_ALL: (all_to_all, "all-to-all"),
        collectives.ALL_GATHER: (all_gather, "all-gather"),
        collectives.REDUCE_SCATTER: (
            reduce_scatter,
            "reduce-scatter" if scatters else "all-reduce",
        ),
    }
    return table[kind]


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
