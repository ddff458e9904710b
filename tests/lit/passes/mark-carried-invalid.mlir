// The pass has no options, and leaves straight lines and scalars alone.
// RUN: not shardopt-opt %s --shardopt-mark-carried="all=true" 2>&1 | FileCheck %s --check-prefix=OPTION
// RUN: shardopt-opt %s --shardopt-mark-carried | FileCheck %s

// OPTION: error: pipeline: unknown option of shardopt-mark-carried: 'all'
// CHECK-LABEL: func.func @scalar
// CHECK-NOT: custom_call
func.func @scalar(%p: tensor<i1>, %x: tensor<f32>) -> tensor<f32> {
  %0 = stablehlo.tanh %x : tensor<f32>
  %1 = "stablehlo.if"(%p) ({
    stablehlo.return %0 : tensor<f32>
  }, {
    stablehlo.return %x : tensor<f32>
  }) : (tensor<i1>) -> tensor<f32>
  return %1 : tensor<f32>
}
