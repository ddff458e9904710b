"""From any sharding to any other: XLA takes exactly the chain of collectives that was predicted,
whichever format says so.

All pairs stand in one module, each with an argument of its own, so that one compilation shows them
all."""

from __future__ import annotations

import io
import re
from collections import defaultdict
from dataclasses import replace
from itertools import permutations

import pytest
from jaxlib.mlir import ir

from shardopt.cost.resharding_chain import resharding_steps, resharding_stops
from shardopt.cost.traffic import Traffic, comparable, of_step
from shardopt.dialect.sharding import to_mhlo
from shardopt.forms.shardy import to_shardy
from shardopt.ir.context import make_context
from shardopt.mesh.mesh import Mesh, Sharding, parse_mesh
from shardopt.runtime.devices.compiled import compiled_text
from shardopt.solve.sharding.strategies.strategies import all_shardings
from shardopt.xla_text.hlo import HloCollective, parse_collectives

Pair = tuple[Sharding, Sharding]


def module_of(pairs: list[Pair], shape: tuple[int, ...], mesh: Mesh) -> str:
    type_ = f"tensor<{'x'.join(map(str, shape))}xf32>"
    arguments, results, body = [], [], []
    for k, (src, dst) in enumerate(pairs):
        arguments.append(f'%a{k}: {type_} {{mhlo.sharding = "{to_mhlo(src, mesh)}"}}')
        results.append(f'{type_} {{mhlo.sharding = "{to_mhlo(dst, mesh)}"}}')
        value = f"%a{k}"
        for n, stop in enumerate((*resharding_stops(src, dst, mesh, shape), dst)):
            body.append(
                f"%v{k}_{n} = stablehlo.custom_call @Sharding({value}) {{mhlo.sharding = "
                f'"{to_mhlo(stop, mesh)}"}} '
                f': ({type_}) -> {type_} loc("pair{k}")'
            )
            value = f"%v{k}_{n}"
        body.append(
            f'%r{k} = stablehlo.negate {value} {{mhlo.sharding = "{to_mhlo(dst, mesh)}"}} : {type_}'
        )
    returned = ", ".join(f"%r{k}" for k in range(len(pairs)))
    attributes = f"mhlo.num_partitions = {mesh.size} : i32, mhlo.num_replicas = 1 : i32"
    signature = f"@main({', '.join(arguments)}) -> ({', '.join(results)})"
    lines = "\n".join((*body, f"return {returned} : {', '.join([type_] * len(pairs))}"))
    return f"module attributes {{{attributes}}} {{ func.func public {signature} {{\n{lines}\n}} }}"


def found_in(text: str, mesh: Mesh) -> dict[int, list[Traffic]]:
    """The collectives of each pair; a combined one names its pairs in order."""
    by_number: dict[int, list[Traffic]] = defaultdict(list)
    for collective in parse_collectives(text, mesh):
        # Each pair has an argument of its number, which newer versions of XLA name.
        numbers = re.findall(r"(?:pair|Arg_)(\d+)", collective.source)
        if not numbers:  # jaxlib 0.12 loses the names of what it pads
            continue
        for number, part in zip(numbers, split(collective, len(numbers)), strict=True):
            by_number[int(number)].append(part.traffic)
    return by_number


def split(collective: HloCollective, parts: int) -> list[HloCollective]:
    return (
        [collective]
        if parts == 1
        else [replace(collective, sizes=(size,)) for size in collective.sizes]
    )


@pytest.mark.parametrize("form", ["sdy", "gspmd"])
@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("2x2", (8, 4)),
        ("2x4", (8, 16)),
        ("3", (10, 8)),
        ("2x2", (7, 9)),
        pytest.param("2x2", (15, 15), marks=pytest.mark.slow),
        pytest.param("2x3", (10, 16), marks=pytest.mark.slow),
        pytest.param("2x2", (4, 8, 4), marks=pytest.mark.slow),
        pytest.param("2x2x2", (8, 16), marks=pytest.mark.slow),
    ],
)
def test_every_chain_is_taken_as_predicted(text: str, shape: tuple[int, ...], form: str) -> None:
    mesh = parse_mesh(text)
    pairs = list(permutations(all_shardings(mesh, shape), 2))
    emitted = found_in(compiled_chains(pairs, shape, mesh, form), mesh)
    for k, (src, dst) in enumerate(pairs):
        planned = [of_step(step, mesh) for step in resharding_steps(src, dst, mesh, shape, 4)]
        if comparable(emitted[k]) != comparable(planned):  # without a name: alone it is known
            alone = parse_collectives(compiled_chains([(src, dst)], shape, mesh, form), mesh)
            emitted[k] = [part.traffic for each in alone for part in split(each, len(each.sizes))]
        assert comparable(emitted[k]) == comparable(planned), f"{src} -> {dst}"


def compiled_chains(pairs: list[Pair], shape: tuple[int, ...], mesh: Mesh, form: str) -> str:
    """What XLA makes of a module that reshards one value for each pair."""
    with make_context() as context:
        module = ir.Module.parse(module_of(pairs, shape, mesh), context)
        if form == "sdy":
            to_shardy(module, mesh)
        buffer = io.BytesIO()
        module.operation.write_bytecode(buffer)
    return compiled_text(buffer.getvalue(), mesh.size, shardy=form == "sdy")
