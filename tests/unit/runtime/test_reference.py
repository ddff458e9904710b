"""The check of a run: what cannot be run on one device is said."""

from __future__ import annotations

import pytest
from jaxlib.mlir import ir

from shardopt.ir.context import make_context
from shardopt.runtime.reference import Reference
from shardopt.support.errors import UserError


def test_what_only_other_devices_have_is_a_user_error() -> None:
    """`chlo.ragged_dot` is for GPUs and TPUs; XLA has it on no CPU, whatever it is written out as."""
    text = """func.func public @main(%x: tensor<6x3xf32>, %w: tensor<4x3x2xf32>, %n: tensor<4xi32>) -> tensor<6x2xf32> {
      %0 = stablehlo.composite "chlo.ragged_dot" %x, %w, %n {composite_attributes = {
        precision_config = ["DEFAULT", "DEFAULT"], ragged_dot_dimension_numbers = [
          dense<> : tensor<0xi64>, dense<> : tensor<0xi64>, dense<1> : tensor<1xi64>,
          dense<1> : tensor<1xi64>, dense<0> : tensor<1xi64>, dense<0> : tensor<1xi64>]},
        decomposition = @dense, version = 1 : i32}
        : (tensor<6x3xf32>, tensor<4x3x2xf32>, tensor<4xi32>) -> tensor<6x2xf32>
      return %0 : tensor<6x2xf32>
    }
    func.func private @dense(%x: tensor<6x3xf32>, %w: tensor<4x3x2xf32>, %n: tensor<4xi32>) -> tensor<6x2xf32> {
      %0 = stablehlo.constant dense<0.0> : tensor<6x2xf32>
      return %0 : tensor<6x2xf32>
    }"""
    with make_context():
        module = ir.Module.parse(text)
        with pytest.raises(UserError, match="cannot be run as a reference on a CPU: UNIMPLEMENTED"):
            Reference(module)
