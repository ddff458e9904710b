"""Programs with parts on no mesh compute on meshes what they compute on one device."""

from __future__ import annotations

import random
from itertools import count

import numpy as np
import pytest
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from benchmarks.tools.upstream_programs import on_one_device
from shardopt.forms.exported_verify import verify_exported
from shardopt.ir.context import make_context
from shardopt.ir.rewriting import functions, operations
from shardopt.tools.run.entry import make_runnable

T = "tensor<4xf32>"
MESHES = ("m0", "m1", "m2")
TOPOLOGY = '#mpmd.topology<<"m0": <["x"=2]>>, <"m1": <["x"=2]>>, <"m2": <["x"=1]>>>'
CALLEE = f"""
func.func private @callee(%x: {T}, %y: {T}) -> ({T}, {T}) {{
  %0 = stablehlo.subtract %x, %y : {T}
  return %0, %x : {T}, {T}
}}
"""


def on(mesh: str) -> str:
    return f'!mpmd.mesh_tensor<"{mesh}", {T}>'


class Writer:
    """A random program, operation by operation. `plain` are values on no mesh, `there` the others
    with their meshes."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.numbers = count()
        self.lines: list[str] = []
        self.plain = ["%a0", "%a1"]
        self.there = [("%a2", "m0"), ("%a3", "m2")]

    def text(self, length: int) -> str:
        kinds = (self.operation, self.constant, self.named, self.named_tensor, self.broadcast)
        kinds += (self.reduce, self.assign, self.unassign, self.fragment, self.call, self.loop)
        for _ in range(length):
            self.random.choice(kinds)()
        plain = [self.random.choice(self.plain) for _ in range(3)]
        value, mesh = self.random.choice(self.there)
        types = ", ".join([T] * 3 + [on(mesh)])
        return f"""
func.func @main(%a0: {T}, %a1: {T}, %a2: {on("m0")}, %a3: {on("m2")}) -> ({types})
    attributes {{topology = {TOPOLOGY}}} {{
{chr(10).join(self.lines)}
  return {", ".join([*plain, value])} : {types}
}}{CALLEE}"""

    def new(self, text: str) -> str:
        name = f"%{next(self.numbers)}"
        self.lines.append(f"  {name} = {text}")
        return name

    def pick(self) -> str:
        return self.random.choice(self.plain[-6:] if self.random.random() < 0.7 else self.plain)

    def operation(self) -> None:
        name = self.random.choice(("add", "maximum", "subtract"))
        self.plain.append(self.new(f"stablehlo.{name} {self.pick()}, {self.pick()} : {T}"))

    def constant(self) -> None:
        self.plain.append(self.new(f"stablehlo.constant dense<{self.random.random():.3f}> : {T}"))

    def named(self) -> None:
        name, (x, y) = self.random.choice("fgh"), (self.pick(), self.pick())
        if self.random.random() < 0.3:
            self.plain.append(self.new(f'mpmd.named_computation<"{name}"> ({x}) (%p: {T}) {{'))
            self.lines.append(f"    mpmd.return %p : {T}\n  }} : ({T}) -> {T}")
            return
        self.plain.append(
            self.new(f'mpmd.named_computation<"{name}"(1)> ({x}, {y}) (%p: {T}, %q: {T}) {{')
        )
        self.lines += [
            f"    %c = stablehlo.constant dense<0.5> : {T}",
            f"    %r = stablehlo.multiply %p, %c : {T}",
            f"    %s = stablehlo.add %r, %q : {T}",
            f"    mpmd.return %s : {T}\n  }} : ({T}, {T}) -> {T}",
        ]

    def named_tensor(self) -> None:
        self.plain.append(self.new(f'mpmd.named_tensor {self.pick()} name="t" : {T}'))

    def broadcast(self) -> None:
        self.plain.append(self.new(f"mpmd.broadcast {self.pick()} : {T}"))

    def reduce(self) -> None:
        many = self.random.randint(1, 5)
        kind = "none" if many == 1 else self.random.choice(("add", "max", "min", "mul"))
        values = ", ".join(self.pick() for _ in range(many))
        types = ", ".join([T] * many)
        self.plain.append(self.new(f"mpmd.reduce<{kind}> {values} : ({types}) -> {T}"))

    def assign(self) -> None:
        mesh = self.random.choice(MESHES)
        value = self.new(f"mpmd.assign {self.pick()} : ({T}) -> {on(mesh)}")
        self.there.append((value, mesh))

    def unassign(self) -> None:
        value, mesh = self.random.choice(self.there)
        self.plain.append(self.new(f"mpmd.unassign {value} : ({on(mesh)}) -> {T}"))

    def fragment(self) -> None:
        value, mesh = self.random.choice(self.there)
        name = self.new(f'mpmd.fragment<mesh="{mesh}", origin=["u"]> ({value}) (%p: {T}) {{')
        self.lines += [
            f"    %r = stablehlo.negate %p : {T}",
            f"    mpmd.return %r : {T}\n  }} : ({on(mesh)}) -> {on(mesh)}",
        ]
        self.there.append((name, mesh))

    def call(self) -> None:
        types = f"({T}, {T}) -> ({T}, {T})"
        name = f"%{next(self.numbers)}"
        call = self.random.choice(("mpmd.call", "func.call"))
        self.lines.append(f"  {name}:2 = {call} @callee({self.pick()}, {self.pick()}) : {types}")
        self.plain += [f"{name}#0", f"{name}#1"]

    def loop(self) -> None:
        name = f"%{next(self.numbers)}"
        self.lines += [
            f"  {name} = mpmd.for ({self.pick()}) {{iterations = 3 : ui32}}"
            f" (%c: {T}, %i: tensor<ui32>) {{",
            "    %k = stablehlo.convert %i : (tensor<ui32>) -> tensor<f32>",
            f"    %b = stablehlo.broadcast_in_dim %k, dims = [] : (tensor<f32>) -> {T}",
            f"    %z = stablehlo.add %c, %b : {T}",
            f"    mpmd.return %z : {T}\n  }} : {T}",
        ]
        self.plain.append(name)


def evaluated(module: ir.Module) -> list[np.ndarray]:
    """The results of `@main` on one device."""
    generator = np.random.default_rng(0)
    plain = on_one_device(module, "main")
    main = next(
        f for f in functions(plain) if ir.StringAttr(f.attributes["sym_name"]).value == "main"
    )
    arguments = [
        ir.DenseElementsAttr.get(generator.random((4,), dtype=np.float32))
        for _ in main.regions[0].blocks[0].arguments
    ]
    return [np.array(value) for value in stablehlo.eval_module(plain, arguments)]


@pytest.mark.parametrize("seed", range(40))
def test_random_programs_compute_the_same(seed: int) -> None:
    text = Writer(seed).text(3 + seed)
    with make_context() as context, ir.Location.unknown():
        expected = evaluated(ir.Module.parse(text, context))
        module = ir.Module.parse(text, context)
        make_runnable(module)
        assert verify_exported(module) == []
        assert not operations(module.operation, ("mpmd.assign", "mpmd.reduce", "mpmd.for"))
        for value, number in zip(evaluated(module), expected, strict=True):
            np.testing.assert_allclose(value, number, rtol=1e-5, atol=1e-6)


def test_equal_bodies_of_other_shardings_are_other_functions() -> None:
    split = f'!mpmd.mesh_tensor<"m0", {T}, sharding=<@m0, [{{"x"}}]>>'
    text = "\n".join(
        f'  %{k} = mpmd.fragment<mesh="m0", origin=["f"]> ({value}) (%p: {T}) {{\n'
        f"    %r = stablehlo.negate %p : {T}\n    mpmd.return %r : {T}\n"
        f"  }} : ({type_}) -> {type_}"
        for k, (value, type_) in enumerate([("%x", split), ("%y", on("m0")), ("%0", split)])
    )
    with make_context() as context:
        module = ir.Module.parse(
            f"func.func @main(%x: {split}, %y: {on('m0')}) -> ({split}, {on('m0')})"
            f" attributes {{topology = {TOPOLOGY}}} {{\n{text}\n"
            f"  return %2, %1 : {split}, {on('m0')}\n}}",
            context,
        )
        make_runnable(module)
        assert len(list(functions(module))) == 4  # @main, the whole, the first and the last half
        assert verify_exported(module) == []
