// RUN: shardopt-opt %s --shardopt-cluster-layers="layers=2" | FileCheck %s --check-prefixes=CHECK,TWO
// RUN: shardopt-opt %s --shardopt-cluster-layers="layers=1" | FileCheck %s --check-prefixes=CHECK,ONE
// RUN: shardopt-opt %s --shardopt-cluster-layers="layers=2 method=equal-layer" | FileCheck %s --check-prefixes=CHECK,TWO
// RUN: shardopt-opt %s --shardopt-cluster-layers="layers=2 layer-balance=seconds cluster=cpu-test:1x2" | FileCheck %s --check-prefixes=CHECK,TWO

// A backward operation has the layer of its forward, an update and the state that of the parameter; constants have none.

// CHECK-LABEL: func.func public @main
// TWO-SAME: shardopt.layer = 0 : i64, tf.aliasing_output = 0
// TWO-SAME: shardopt.layer = 1 : i64, tf.aliasing_output = 1
// TWO-SAME: shardopt.layer = 0 : i64
// CHECK: stablehlo.constant {shardopt.layer = -1 : i64}
// TWO: stablehlo.subtract %arg0, {{.*}} {shardopt.layer = 0 : i64}
// TWO: stablehlo.subtract %arg1, {{.*}} {shardopt.layer = 1 : i64}

// CHECK-LABEL: func.func private @microbatch
// CHECK: stablehlo.constant {shardopt.layer = -1 : i64}
// CHECK: %[[H:.*]] = stablehlo.dot_general %arg2, %arg0, {{.*}} {shardopt.layer = 0 : i64}
// TWO: %[[Y:.*]] = stablehlo.dot_general %[[H]], %arg1, {{.*}} {shardopt.layer = 1 : i64}
// TWO: %[[LOSS:.*]] = stablehlo.reduce{{.*}} {shardopt.layer = 1 : i64}
// TWO: %[[DY:.*]] = stablehlo.add %[[Y]], %[[Y]] {shardopt.layer = 1 : i64}
// TWO: stablehlo.dot_general %[[H]], %[[DY]], {{.*}} {shardopt.layer = 1 : i64}
// TWO: %[[DH:.*]] = stablehlo.dot_general %[[DY]], %arg1, {{.*}} {shardopt.layer = 1 : i64}
// TWO: %[[G0:.*]] = stablehlo.dot_general %arg2, %[[DH]], {{.*}} {shardopt.layer = 0 : i64}
// TWO: stablehlo.add %arg3, %[[G0]] {shardopt.layer = 0 : i64}
// TWO: stablehlo.add %arg5, %[[LOSS]] {shardopt.layer = 1 : i64}
// ONE-NOT: shardopt.layer = 1
func.func public @main(%w0: tensor<4x4xf32> {tf.aliasing_output = 0 : i32},
                       %w1: tensor<4x4xf32> {tf.aliasing_output = 1 : i32}, %x: tensor<4x4xf32>)
    -> (tensor<4x4xf32>, tensor<4x4xf32>, tensor<f32>) {
  %zeros = stablehlo.constant dense<0.0> : tensor<4x4xf32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %r:3 = mpmd.for (%zeros, %zeros, %zero) {iterations = 2 : ui32}
      (%a0: tensor<4x4xf32>, %a1: tensor<4x4xf32>, %l: tensor<f32>, %i: tensor<ui32>) {
    %n:3 = mpmd.call @microbatch(%w0, %w1, %x, %a0, %a1, %l) {call_counter = 0 : ui32}
      : (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<f32>)
      -> (tensor<4x4xf32>, tensor<4x4xf32>, tensor<f32>)
    mpmd.return %n#0, %n#1, %n#2 : tensor<4x4xf32>, tensor<4x4xf32>, tensor<f32>
  } : tensor<4x4xf32>, tensor<4x4xf32>, tensor<f32>
  %u0 = stablehlo.subtract %w0, %r#0 : tensor<4x4xf32>
  %u1 = stablehlo.subtract %w1, %r#1 : tensor<4x4xf32>
  return %u0, %u1, %r#2 : tensor<4x4xf32>, tensor<4x4xf32>, tensor<f32>
}

func.func private @microbatch(%w0: tensor<4x4xf32>, %w1: tensor<4x4xf32>, %x: tensor<4x4xf32>,
                              %a0: tensor<4x4xf32>, %a1: tensor<4x4xf32>, %l: tensor<f32>)
    -> (tensor<4x4xf32>, tensor<4x4xf32>, tensor<f32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %h = stablehlo.dot_general %x, %w0, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %y = stablehlo.dot_general %h, %w1, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %yy = stablehlo.multiply %y, %y : tensor<4x4xf32>
  %loss = stablehlo.reduce(%yy init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x4xf32>, tensor<f32>) -> tensor<f32>
  %dy = stablehlo.add %y, %y : tensor<4x4xf32>
  %g1 = stablehlo.dot_general %h, %dy, contracting_dims = [0] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %dh = stablehlo.dot_general %dy, %w1, contracting_dims = [1] x [1] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %g0 = stablehlo.dot_general %x, %dh, contracting_dims = [0] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %n0 = stablehlo.add %a0, %g0 : tensor<4x4xf32>
  %n1 = stablehlo.add %a1, %g1 : tensor<4x4xf32>
  %nl = stablehlo.add %l, %loss : tensor<f32>
  return %n0, %n1, %nl : tensor<4x4xf32>, tensor<4x4xf32>, tensor<f32>
}
