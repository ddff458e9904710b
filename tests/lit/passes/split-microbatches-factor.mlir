// RUN: shardopt-opt %s --shardopt-split-microbatches="num-microbatches=2 batch-args=1" --remarks=left-out-factor --verify-diagnostics | FileCheck %s

// The root of a sum has a gradient of each row that needs the sum. Rows read 1 instead, and the
// gradient of %w is multiplied behind the loop.
// CHECK-LABEL: func.func public @main
func.func public @main(%w: tensor<4x4xf32> {tf.aliasing_output = 0 : i32}, %x: tensor<8x4xf32>) -> (tensor<4x4xf32>, tensor<f32>) {
  // CHECK: %[[LOOP:.+]]:2 = mpmd.for
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %h = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %e = stablehlo.multiply %h, %h : tensor<8x4xf32>
  %l = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<8x4xf32>, tensor<f32>) -> tensor<f32>
  // CHECK: %[[S:.+]] = stablehlo.rsqrt %[[LOOP]]#0
  %s = stablehlo.rsqrt %l : tensor<f32>
  %b = stablehlo.broadcast_in_dim %s, dims = [] : (tensor<f32>) -> tensor<8x4xf32>
  // expected-remark@+1 {{needs a number that is known when all rows are}}
  %c = stablehlo.multiply %h, %b : tensor<8x4xf32>
  %g = stablehlo.dot_general %x, %c, contracting_dims = [0] x [0] : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
  // CHECK: %[[B:.+]] = stablehlo.broadcast_in_dim %[[S]], dims = [] : (tensor<f32>) -> tensor<4x4xf32>
  // CHECK: %[[G:.+]] = stablehlo.multiply %[[LOOP]]#1, %[[B]]
  // CHECK: stablehlo.subtract %{{.*}}, %[[G]]
  %u = stablehlo.subtract %w, %g : tensor<4x4xf32>
  return %u, %s : tensor<4x4xf32>, tensor<f32>
}
// CHECK-LABEL: func.func private @microbatch
// CHECK-NOT: rsqrt
// CHECK: stablehlo.constant dense<1.000000e+00> : tensor<f32>
