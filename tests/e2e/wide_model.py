"""A program whose mesh `wide` has two hosts of two devices, with a neighbour `small` on a third,
and its numbers.

Into `wide`, inside it and out of it, values change their shardings so that all pairs of hosts
exchange some of them; the product in @mix and the sum are taken over both hosts of it."""

from __future__ import annotations

import numpy as np

DEVICES_PER_HOST = 2

WHOLE, ROWS = "", ', sharding=<@small, [{"x"}, {}]>'
_BOTH, _TURNED = (
    f', sharding=<@wide, [{{"{rows}"}}, {{"{columns}"}}]>' for rows, columns in ("xy", "yx")
)


def _wide(sharding: str = WHOLE, tensor: str = "8x8xf32") -> str:
    return f'!mpmd.mesh_tensor<"wide", tensor<{tensor}>{sharding}>'


def _small(sharding: str = WHOLE) -> str:
    return f'!mpmd.mesh_tensor<"small", tensor<8x8xf32>{sharding}>'


TEXT = f"""
func.func public @main(%w: {_wide(_BOTH)} {{tf.aliasing_output = 0 : i32}}, %k: {_small(ROWS)})
    -> ({_wide(_BOTH)}, {_small(ROWS)}, {_wide(WHOLE, "f32")})
    attributes {{topology = #mpmd.topology<<"wide" : <["x"=2, "y"=2]>>, <"small" : <["x"=2]>>>,
      shardopt.devices = [array<i64: 0, 1, 2, 3>, array<i64: 4, 5>]}} {{
  %g = mpmd.transfer {{shardopt.resharding = {{strategy = "local_allgather", steps = dense<[
      [0, 4, 0, 0, 0, 4, 8], [0, 5, 3, 4, 0, 8, 8], [1, 0, 1, 0, 0, 4, 8], [1, 0, 2, 0, 0, 4, 8],
      [1, 3, 0, 4, 0, 8, 8], [1, 3, 1, 4, 0, 8, 8], [1, 3, 2, 4, 0, 8, 8], [2, 2, 3, 0, 0, 4, 8]]> : tensor<8x7xi64>}}}}
      %k : ({_small(ROWS)}) -> {_wide()}
  %t = mpmd.transfer %k : ({_small(ROWS)}) -> {_wide(_TURNED)}
  %r = mpmd.transfer %w : ({_wide(_BOTH)}) -> {_wide(_TURNED)}
  %n, %s = mpmd.fragment_call<mesh="wide", origin=["mix"]> @mix(%w, %t, %r, %g)
      {{shardopt.kind = "update", shardopt.stage = 0 : i64}}
      : ({_wide(_BOTH)}, {_wide(_TURNED)}, {_wide(_TURNED)}, {_wide()}) -> ({_wide(_BOTH)}, {_wide(WHOLE, "f32")})
  %b = mpmd.transfer %n : ({_wide(_BOTH)}) -> {_small(ROWS)}
  %o = mpmd.fragment_call<mesh="small", origin=["add"]> @add(%k, %b)
      {{shardopt.kind = "update", shardopt.stage = 1 : i64}} : ({_small(ROWS)}, {_small(ROWS)}) -> {_small(ROWS)}
  return %n, %o, %s : {_wide(_BOTH)}, {_small(ROWS)}, {_wide(WHOLE, "f32")}
}}
func.func private @mix(
    %w: tensor<8x8xf32> {{mhlo.sharding = "{{devices=[2,2]<=[4]}}", tf.aliasing_output = 0 : i32}},
    %t: tensor<8x8xf32> {{mhlo.sharding = "{{devices=[2,2]<=[2,2]T(1,0)}}"}},
    %r: tensor<8x8xf32> {{mhlo.sharding = "{{devices=[2,2]<=[2,2]T(1,0)}}"}},
    %g: tensor<8x8xf32> {{mhlo.sharding = "{{replicated}}"}})
    -> (tensor<8x8xf32> {{mhlo.sharding = "{{devices=[2,2]<=[4]}}"}}, tensor<f32> {{mhlo.sharding = "{{replicated}}"}})
    attributes {{mesh_shape = #sdy.mesh<["x"=2, "y"=2]>}} {{
  %a = stablehlo.add %t, %r {{mhlo.sharding = "{{devices=[2,2]<=[2,2]T(1,0)}}"}} : tensor<8x8xf32>
  %p = stablehlo.dot_general %a, %g, contracting_dims = [1] x [0] {{mhlo.sharding = "{{devices=[2,2]<=[4]}}"}}
      : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %n = stablehlo.add %w, %p {{mhlo.sharding = "{{devices=[2,2]<=[4]}}"}} : tensor<8x8xf32>
  %z = stablehlo.constant {{mhlo.sharding = "{{replicated}}"}} dense<0.0> : tensor<f32>
  %s = stablehlo.reduce(%n init: %z) applies stablehlo.add across dimensions = [0, 1]
      {{mhlo.sharding = "{{replicated}}"}} : (tensor<8x8xf32>, tensor<f32>) -> tensor<f32>
  return %n, %s : tensor<8x8xf32>, tensor<f32>
}}
func.func private @add(
    %k: tensor<8x8xf32> {{mhlo.sharding = "{{devices=[2,1]<=[2]}}"}},
    %b: tensor<8x8xf32> {{mhlo.sharding = "{{devices=[2,1]<=[2]}}"}})
    -> (tensor<8x8xf32> {{mhlo.sharding = "{{devices=[2,1]<=[2]}}"}}) attributes {{mesh_shape = #sdy.mesh<["x"=2]>}} {{
  %o = stablehlo.add %k, %b {{mhlo.sharding = "{{devices=[2,1]<=[2]}}"}} : tensor<8x8xf32>
  return %o : tensor<8x8xf32>
}}
"""


def inputs() -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [0.2 * random.normal(size=(8, 8)).astype(np.float32) for _ in range(2)]


def expected_step(w: np.ndarray, k: np.ndarray) -> list[np.ndarray]:
    """New w, k + new w, its sum."""
    new = w + (k + w) @ k
    return [new, k + new, np.array(new.sum())]
