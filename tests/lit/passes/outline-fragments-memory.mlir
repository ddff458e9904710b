// What only the backward of a stage reads is computed there when its operands are kept for it anyway: here `1 - h`.
// RUN: shardopt-opt %s --shardopt-verify-clustered --shardopt-stage="cluster=cpu-test:1x2 num-stages=2" | FileCheck %s

// CHECK-LABEL: func.func private @microbatch
// CHECK: shardopt.kind = "fwd"
// CHECK: %[[H:.*]] = stablehlo.tanh
// CHECK-NEXT: mpmd.return %[[H]] : tensor<4x4xf32>
// CHECK: shardopt.kind = "bwd"
// CHECK: stablehlo.subtract
func.func @main(%w0: tensor<4x4xf32> {shardopt.layer = 0 : i64, tf.aliasing_output = 0 : i32}, %w1: tensor<4x4xf32> {shardopt.layer = 1 : i64, tf.aliasing_output = 1 : i32},
                %x: tensor<4x4xf32> {shardopt.layer = 0 : i64})
    -> (tensor<4x4xf32>, tensor<4x4xf32>) {
  %zeros = stablehlo.constant {shardopt.layer = -1 : i64} dense<0.0> : tensor<4x4xf32>
  %r:2 = mpmd.for (%zeros, %zeros) {iterations = 2 : ui32} (%a0: tensor<4x4xf32>, %a1: tensor<4x4xf32>, %i: tensor<ui32>) {
    %n:2 = mpmd.call @microbatch(%w0, %w1, %x, %a0, %a1) {call_counter = 0 : ui32}
      : (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>)
    mpmd.return %n#0, %n#1 : tensor<4x4xf32>, tensor<4x4xf32>
  } : tensor<4x4xf32>, tensor<4x4xf32>
  %u0 = stablehlo.subtract %w0, %r#0 {shardopt.layer = 0 : i64} : tensor<4x4xf32>
  %u1 = stablehlo.subtract %w1, %r#1 {shardopt.layer = 1 : i64} : tensor<4x4xf32>
  return %u0, %u1 : tensor<4x4xf32>, tensor<4x4xf32>
}

func.func private @microbatch(%w0: tensor<4x4xf32>, %w1: tensor<4x4xf32>, %x: tensor<4x4xf32>, %a0: tensor<4x4xf32>, %a1: tensor<4x4xf32>)
    -> (tensor<4x4xf32>, tensor<4x4xf32>) {
  %one = stablehlo.constant {shardopt.layer = -1 : i64} dense<1.0> : tensor<4x4xf32>
  %z = stablehlo.dot_general %x, %w0, contracting_dims = [1] x [0] {shardopt.layer = 0 : i64} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %h = stablehlo.tanh %z {shardopt.layer = 0 : i64} : tensor<4x4xf32>
  %slope = stablehlo.subtract %one, %h {shardopt.layer = 0 : i64} : tensor<4x4xf32>
  %y = stablehlo.dot_general %h, %w1, contracting_dims = [1] x [0] {shardopt.layer = 1 : i64} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %g1 = stablehlo.dot_general %h, %y, contracting_dims = [0] x [0] {shardopt.layer = 1 : i64} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %dh = stablehlo.dot_general %y, %w1, contracting_dims = [1] x [1] {shardopt.layer = 1 : i64} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %dz = stablehlo.multiply %dh, %slope {shardopt.layer = 0 : i64} : tensor<4x4xf32>
  %d2 = stablehlo.multiply %dz, %h {shardopt.layer = 0 : i64} : tensor<4x4xf32>
  %g0 = stablehlo.dot_general %x, %d2, contracting_dims = [0] x [0] {shardopt.layer = 0 : i64} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %n0 = stablehlo.add %a0, %g0 {shardopt.layer = 0 : i64} : tensor<4x4xf32>
  %n1 = stablehlo.add %a1, %g1 {shardopt.layer = 1 : i64} : tensor<4x4xf32>
  return %n0, %n1 : tensor<4x4xf32>, tensor<4x4xf32>
}
