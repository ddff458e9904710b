"""Sums whose terms come from several layers: split, they are what they were, and no term travels in
every microbatch; joined again, a stage has one of each."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest
from jaxlib.mlir import ir

from shardopt.dialect.mpmd import LAYER
from shardopt.dialect.program import StepProgram, read_program
from shardopt.dialect.stages import PlacedStage, write_stages
from shardopt.forms.clustered_form import violations
from shardopt.ir.context import make_context
from shardopt.ir.rewriting import defining
from shardopt.pipeline.manager import run_pipeline
from tests.unit.passes.program_evaluation import evaluate, random_arguments

_LAYERS, _TYPE = 3, "tensor<4x4xf32>"
_UNARY = ("negate", "tanh", "transpose", "convert")


def random_step(seed: int) -> str:
    """Two accumulators of random sums over random terms, some of which others read, too."""
    rng, rows = random.Random(seed), list[str]()

    def add(text: str, layer: int | None = None) -> str:
        name, place = f"%v{len(rows)}", rng.randrange(_LAYERS) if layer is None else layer
        rows.append(f"{name} = {text.replace('@', f'{{shardopt.layer = {place} : i64}}')}")
        return name

    def unary(value: str) -> str:
        kind = rng.choice(_UNARY)
        if kind == "transpose":
            return add(f"stablehlo.transpose {value}, dims = [1, 0] @ : ({_TYPE}) -> {_TYPE}")
        if kind == "convert":
            half = add(f"stablehlo.convert {value} @ : ({_TYPE}) -> tensor<4x4xf16>")
            return add(f"stablehlo.convert {half} @ : (tensor<4x4xf16>) -> {_TYPE}")
        return add(f"stablehlo.{kind} {value} @ : {_TYPE}")

    def total(values: list[str], layer: int | None = None) -> str:
        while len(values) > 1:
            one, other = (values.pop(rng.randrange(len(values))) for _ in range(2))
            where = layer if not values else None
            values.append(add(f"stablehlo.add {one}, {other} @ : {_TYPE}", where))
        return values[0]

    terms = [unary(rng.choice(["%w", "%x"])) for _ in range(4)]
    terms += [unary(rng.choice(terms)) for _ in range(4)]
    sums = []
    for accumulator in ("%a", "%b"):
        # The first is added in layer 0, which has a term of its own.
        own = add(f"stablehlo.negate %x @ : {_TYPE}", 0)
        whole = total([own, *rng.sample(terms, rng.randint(1, 6))])
        pair = [accumulator, whole] if rng.random() < 0.5 else [whole, accumulator]
        sums.append(add(f"stablehlo.add {', '.join(pair)} @ : {_TYPE}", 0))
    body = "\n  ".join(rows)
    return f"""
!t = {_TYPE}
func.func public @main(%w: !t {{shardopt.layer = 0 : i64}}, %x: !t {{shardopt.layer = 0 : i64}}) -> (!t, !t) {{
  %z = stablehlo.constant {{shardopt.layer = 0 : i64}} dense<2.0> : !t
  %r:2 = mpmd.for (%z, %z) {{iterations = 3 : ui32}} (%a: !t, %b: !t, %i: tensor<ui32>) {{
    %n:2 = mpmd.call @microbatch(%w, %x, %a, %b) {{call_counter = 0 : ui32}} : (!t, !t, !t, !t) -> (!t, !t)
    mpmd.return %n#0, %n#1 : !t, !t
  }} : !t, !t
  %u = stablehlo.subtract %w, %r#0 {{shardopt.layer = 0 : i64}} : !t
  return %u, %r#1 : !t, !t
}}
func.func private @microbatch(%w: !t, %x: !t, %a: !t, %b: !t) -> (!t, !t) {{
  {body}
  return {sums[0]}, {sums[1]} : !t, !t
}}
"""


def layer(op: ir.Operation) -> int:
    return ir.IntegerAttr(op.attributes[LAYER]).value


def travelling(program: StepProgram) -> int:
    """Terms that what accumulates them gets from another layer."""
    count = 0
    for argument, returned in program.carried:
        added, accumulator = (
            defining(program.body_returned[returned]),
            program.body_block.arguments[argument],
        )
        assert added is not None
        stack = [value for value in added.operands if value != accumulator]
        while stack:
            maker = defining(stack.pop())
            if maker is None:
                continue
            read_once = sum(1 for _ in maker.results[0].uses) == 1
            if maker.name == "stablehlo.add" and read_once:
                stack += list(maker.operands)
            else:
                count += layer(maker) != layer(added)
    return count


@pytest.mark.parametrize("seed", range(20))
def test_split_sums_are_what_they_were(seed: int) -> None:
    module = ir.Module.parse(random_step(seed), make_context())
    arguments = random_arguments(module, seed)
    before = evaluate(module, arguments)
    program = read_program(module)
    carried, travelled = len(program.carried), travelling(program)
    with module.context:
        result = run_pipeline(module, "builtin.module(shardopt-split-sums)")
        assert not [violation.message for violation in violations(module)]
    split = result.statistics["shardopt-split-sums", "sums split"]
    assert travelled or not split
    after, program = evaluate(module, arguments), read_program(module)
    for one, other in zip(before, after, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    assert travelling(program) == 0 or not split
    assert carried <= len(program.carried) <= carried * _LAYERS


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("cuts", [(), (1,), (2,)], ids=str)
def test_joined_sums_are_what_they_were(seed: int, cuts: tuple[int, ...]) -> None:
    module = ir.Module.parse(random_step(seed), make_context())
    arguments = random_arguments(module, seed)
    before, bounds = evaluate(module, arguments), (0, *cuts, _LAYERS)
    stages = [PlacedStage(a, b - 1, f"m{a}") for a, b in pairwise(bounds)]
    with module.context:
        split = run_pipeline(module, "builtin.module(shardopt-split-sums)")
        write_stages(read_program(module).main, stages)
        carried = read_program(module).carried
        joined = run_pipeline(module, "builtin.module(shardopt-join-sums)")
    after, program = evaluate(module, arguments), read_program(module)
    for one, other in zip(before, after, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    count = joined.statistics["shardopt-join-sums", "sums joined"]
    assert len(program.carried) == len(carried) - count <= 2 * len(stages)
    if split.statistics["shardopt-split-sums", "sums split"] and not cuts:
        assert count == len(carried) - 2
