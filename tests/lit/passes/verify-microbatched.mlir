// RUN: shardopt-opt %s --shardopt-verify-microbatched | FileCheck %s

// CHECK-LABEL: func.func public @main
func.func public @main(%w: tensor<2xf32>) -> tensor<2xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<2xf32>
  // CHECK: mpmd.for
  %r = mpmd.for (%zero) {iterations = 2 : ui32} (%acc: tensor<2xf32>, %i: tensor<ui32>) {
    %n = mpmd.call @microbatch(%w, %acc, %i) {call_counter = 0 : ui32} : (tensor<2xf32>, tensor<2xf32>, tensor<ui32>) -> tensor<2xf32>
    mpmd.return %n : tensor<2xf32>
  } : tensor<2xf32>
  return %r : tensor<2xf32>
}
// CHECK-LABEL: func.func private @microbatch
func.func private @microbatch(%w: tensor<2xf32>, %acc: tensor<2xf32>, %i: tensor<ui32>) -> tensor<2xf32> {
  %0 = stablehlo.add %acc, %w : tensor<2xf32>
  return %0 : tensor<2xf32>
}
