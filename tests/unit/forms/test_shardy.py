"""The way from `mhlo.sharding` annotations to Shardy's form."""

from __future__ import annotations

from itertools import permutations, product

import pytest
from jaxlib.mlir import ir

from shardopt.dialect.sharding import from_mhlo, to_mhlo
from shardopt.forms.sharded_form import violations
from shardopt.forms.shardy import to_shardy
from shardopt.forms.shardy_form import signature_shardings
from shardopt.ir.context import make_context
from shardopt.ir.rewriting import functions
from shardopt.mesh.mesh import Mesh, Sharding, parse_mesh

ANNOTATED = """
module attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(
      %a: tensor<8x4xf32> {mhlo.sharding = "{devices=[2,1,2]<=[4] last_tile_dim_replicate}",
                           tf.aliasing_output = 0 : i32}
    )
      -> (tensor<8x4xf32> {mhlo.sharding = "{devices=[2,2]<=[4]}"}) {
    %c = stablehlo.constant {mhlo.sharding = "{replicated}"} dense<1.0> : tensor<8x4xf32>
    %0 = stablehlo.add %a, %c {mhlo.sharding = "{devices=[4,1]<=[4]}"} : tensor<8x4xf32>
    %1 = stablehlo.custom_call @Sharding(%0)
        {mhlo.sharding = "{devices=[1,2,2]<=[2,2]T(1,0) last_tile_dim_replicate}"}
        : (tensor<8x4xf32>) -> tensor<8x4xf32>
    return %1 : tensor<8x4xf32>
  }
}
"""


def all_shardings(mesh: Mesh, rank: int) -> list[Sharding]:
    """Every way to give some axes, in any order, to the dimensions of a tensor."""
    shardings = {Sharding.replicated(rank)}
    for count in range(1, len(mesh.axes) + 1):
        for axes, dims in product(
            permutations(mesh.axis_names, count), product(range(rank), repeat=count)
        ):
            shardings.add(
                Sharding(
                    tuple(
                        tuple(a for a, d in zip(axes, dims, strict=True) if d == dim)
                        for dim in range(rank)
                    )
                )
            )
    return sorted(shardings, key=str)


@pytest.mark.parametrize("shape", ["2", "2x2", "2x4", "4x2", "2x2x2", "2x3x2"])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_texts_read_back(shape: str, rank: int) -> None:
    mesh = parse_mesh(shape)
    for sharding in all_shardings(mesh, rank):
        text = to_mhlo(sharding, mesh)
        assert to_mhlo(from_mhlo(text, rank, mesh), mesh) == text


def test_axes_are_named() -> None:
    mesh = parse_mesh("2x1x4")
    assert from_mhlo(to_mhlo(Sharding((("z", "x"), ())), mesh), 2, mesh) == Sharding(
        (("z", "x"), ())
    )
    assert from_mhlo("{devices=[2,1,4]<=[8] last_tile_dim_replicate}", 2, mesh) == Sharding(
        (("x",), ())
    )


@pytest.mark.parametrize(
    "text", ["{maximal device=0}", "{devices=[3,1]<=[3]}", "{devices=[2]0,1}", ""]
)
def test_foreign_texts(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        from_mhlo(text, 2, parse_mesh("2x2"))


def test_annotations_become_constraints() -> None:
    with make_context() as context:
        module = ir.Module.parse(ANNOTATED, context)
        to_shardy(module, parse_mesh("2x2"))
        assert module.operation.verify()
        [main] = functions(module)
        inputs, outputs = (signature_shardings(main, which) for which in ("arg_attrs", "res_attrs"))
        assert list(violations(module)) == []
        text = str(module)
    assert (inputs, outputs) == ((Sharding((("x",), ())),), (Sharding((("x",), ("y",))),))
    assert "mhlo" not in text and "custom_call" not in text
    assert 'sdy.mesh @mesh = <["x"=2, "y"=2]>' in text
    assert 'sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>, tf.aliasing_output = 0 : i32' in text
    constraints = [
        line.split(" = ", 1)[1] for line in text.splitlines() if "sharding_constraint" in line
    ]
    assert constraints == [
        'sdy.sharding_constraint %0 <@mesh, [{"x", "y"}, {}]> : tensor<8x4xf32>',
        'sdy.sharding_constraint %1 <@mesh, [{}, {"y"}]> : tensor<8x4xf32>',
    ]
