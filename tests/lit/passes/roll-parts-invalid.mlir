// The pass has no options, and leaves alone what sums up nothing of the shape of state; arguments and
// results that are no tensors are no state.
// RUN: not shardopt-opt %s --shardopt-roll-parts="all=true" 2>&1 | FileCheck %s --check-prefix=OPTION
// RUN: shardopt-opt %s --split-input-file --shardopt-roll-parts | FileCheck %s

// OPTION: error: pipeline: unknown option of shardopt-roll-parts: 'all'
// CHECK-LABEL: func.func @losses
// CHECK-NOT: stablehlo.while
func.func @losses(%w: tensor<2xf32> {tf.aliasing_output = 0 : i32}, %x: tensor<4x2xf32>) -> (tensor<2xf32>, tensor<f32>) {
  %x0 = stablehlo.slice %x [0:2, 0:2] : (tensor<4x2xf32>) -> tensor<2x2xf32>
  %y0 = stablehlo.dot_general %x0, %w, contracting_dims = [1] x [0] : (tensor<2x2xf32>, tensor<2xf32>) -> tensor<2xf32>
  %l0 = stablehlo.dot_general %y0, %y0, contracting_dims = [0] x [0] : (tensor<2xf32>, tensor<2xf32>) -> tensor<f32>
  %x1 = stablehlo.slice %x [2:4, 0:2] : (tensor<4x2xf32>) -> tensor<2x2xf32>
  %y1 = stablehlo.dot_general %x1, %w, contracting_dims = [1] x [0] : (tensor<2x2xf32>, tensor<2xf32>) -> tensor<2xf32>
  %l1 = stablehlo.dot_general %y1, %y1, contracting_dims = [0] x [0] : (tensor<2xf32>, tensor<2xf32>) -> tensor<f32>
  %l = stablehlo.add %l0, %l1 : tensor<f32>
  return %w, %l : tensor<2xf32>, tensor<f32>
}

// -----

// CHECK-LABEL: func.func @token
// CHECK-NOT: stablehlo.while
// CHECK: return %{{.*}} : !stablehlo.token, tensor<2x2xf32>
func.func @token(%t: !stablehlo.token, %x: tensor<4x2xf32>) -> (!stablehlo.token, tensor<2x2xf32>) {
  %x0 = stablehlo.slice %x [0:2, 0:2] : (tensor<4x2xf32>) -> tensor<2x2xf32>
  %x1 = stablehlo.slice %x [2:4, 0:2] : (tensor<4x2xf32>) -> tensor<2x2xf32>
  %y = stablehlo.add %x0, %x1 : tensor<2x2xf32>
  return %t, %y : !stablehlo.token, tensor<2x2xf32>
}
