// The imported form passes unchanged: Shardy's annotations, loops with regions and custom calls belong to it.
// RUN: shardopt-opt %s --shardopt-verify-imported | FileCheck %s

// CHECK: sdy.mesh @mesh
sdy.mesh @mesh = <["x"=2]>
// CHECK-LABEL: func.func public @main
func.func public @main(%x: tensor<4x4xf32> {tf.aliasing_output = 0 : i32}) -> (tensor<4x4xf32>, tensor<4xf32>) {
  // CHECK: sdy.sharding_constraint
  %0 = sdy.sharding_constraint %x <@mesh, [{"x"}, {}]> : tensor<4x4xf32>
  // CHECK: stablehlo.custom_call @Sharding
  %1 = stablehlo.custom_call @Sharding(%0) {mhlo.sharding = "{replicated}"} : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  // CHECK: stablehlo.reduce
  %2 = stablehlo.reduce(%1 init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<4x4xf32>, tensor<f32>) -> tensor<4xf32>
  return %1, %2 : tensor<4x4xf32>, tensor<4xf32>
}
