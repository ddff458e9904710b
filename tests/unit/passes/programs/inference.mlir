// The forward pass of a three-layer MLP: outputs are collected microbatch by microbatch.
module @inference {
  func.func public @main(%arg0: tensor<4x4xf32>, %arg1: tensor<4x4xf32>, %arg2: tensor<4x4xf32>, %arg3: tensor<8x4xf32>) -> (tensor<8x4xf32> {jax.result_info = "result"}) {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<2x4x4xf32>
    %0 = stablehlo.reshape %arg3 : (tensor<8x4xf32>) -> tensor<2x4x4xf32>
    %1 = mpmd.for (%cst) {iterations = 2 : ui32} (%arg4: tensor<2x4x4xf32>, %index: tensor<ui32>) {
      %3 = mpmd.call @microbatch(%arg0, %arg1, %arg2, %0, %arg4, %index) {call_counter = 0 : ui32} : (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<2x4x4xf32>, tensor<2x4x4xf32>, tensor<ui32>) -> tensor<2x4x4xf32>
      mpmd.return %3 : tensor<2x4x4xf32>
    } : tensor<2x4x4xf32>
    %2 = stablehlo.reshape %1 : (tensor<2x4x4xf32>) -> tensor<8x4xf32>
    return %2 : tensor<8x4xf32>
  }
  func.func private @microbatch(%arg0: tensor<4x4xf32>, %arg1: tensor<4x4xf32>, %arg2: tensor<4x4xf32>, %arg3: tensor<2x4x4xf32>, %arg4: tensor<2x4x4xf32>, %arg5: tensor<ui32>) -> tensor<2x4x4xf32> {
    %c = stablehlo.constant dense<0> : tensor<ui32>
    %0 = stablehlo.dynamic_slice %arg3, %arg5, %c, %c, sizes = [1, 4, 4] : (tensor<2x4x4xf32>, tensor<ui32>, tensor<ui32>, tensor<ui32>) -> tensor<1x4x4xf32>
    %1 = stablehlo.reshape %0 : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
    %2 = stablehlo.dot_general %1, %arg0, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %3 = stablehlo.tanh %2 : tensor<4x4xf32>
    %4 = stablehlo.dot_general %3, %arg1, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %5 = stablehlo.tanh %4 : tensor<4x4xf32>
    %6 = stablehlo.dot_general %5, %arg2, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %7 = stablehlo.reshape %6 : (tensor<4x4xf32>) -> tensor<1x4x4xf32>
    %8 = stablehlo.dynamic_update_slice %arg4, %7, %arg5, %c, %c : (tensor<2x4x4xf32>, tensor<1x4x4xf32>, tensor<ui32>, tensor<ui32>, tensor<ui32>) -> tensor<2x4x4xf32>
    return %8 : tensor<2x4x4xf32>
  }
}
