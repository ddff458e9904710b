// RUN: shardopt-opt %s --shardopt-cluster-layers="layers=2" --shardopt-stage="cluster=cpu-test:1x2 num-stages=2" | FileCheck %s
// RUN: shardopt-opt %s --shardopt-cluster-layers="layers=2" --shardopt-stage="cluster=cpu-test:1x1 num-stages=1" | FileCheck %s --check-prefix=ONE

// A stage ends inside of what is computed again: stage 1 reads what stage 0 has sent it in the forward pass, and its
// barrier holds nothing of stage 0, which computes its part again when the gradient arrives.
// CHECK-LABEL: func.func private @microbatch
// CHECK: %[[F:[0-9]+]] = mpmd.fragment<mesh="m0", origin=["layer_0"], stage=0> {{.*}} {shardopt.kind = "fwd"}
// CHECK: %[[T:.*]] = mpmd.transfer %[[F]]
// CHECK: mpmd.fragment<mesh="m1", {{.*}} (%[[T]]) {shardopt.backward, shardopt.kind = "fwd"} (%[[Y:.*]]: tensor<4x4xf32>)
// CHECK: %[[G:.*]] = stablehlo.multiply
// CHECK: %[[B:.*]] = stablehlo.optimization_barrier %[[G]]
// CHECK: %[[C:.*]] = stablehlo.cosine %[[Y]]
// CHECK: stablehlo.multiply %[[B]], %[[C]]
// CHECK: mpmd.fragment<mesh="m0", origin=["layer_0"], stage=0> {{.*}} {shardopt.kind = "bwd"}
// CHECK-NOT: stablehlo.optimization_barrier
// CHECK: stablehlo.tanh

// One stage runs what the user has written.
// ONE: stablehlo.optimization_barrier
// ONE: stablehlo.tanh
func.func public @main(%w0: tensor<4x4xf32> {tf.aliasing_output = 0 : i32},
                       %w1: tensor<4x4xf32> {tf.aliasing_output = 1 : i32}, %x: tensor<4x4xf32>)
    -> (tensor<4x4xf32>, tensor<4x4xf32>) {
  %zeros = stablehlo.constant dense<0.0> : tensor<4x4xf32>
  %r:2 = mpmd.for (%zeros, %zeros) {iterations = 2 : ui32}
      (%a0: tensor<4x4xf32>, %a1: tensor<4x4xf32>, %i: tensor<ui32>) {
    %n:2 = mpmd.call @microbatch(%w0, %w1, %x, %a0, %a1) {call_counter = 0 : ui32}
      : (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>)
      -> (tensor<4x4xf32>, tensor<4x4xf32>)
    mpmd.return %n#0, %n#1 : tensor<4x4xf32>, tensor<4x4xf32>
  } : tensor<4x4xf32>, tensor<4x4xf32>
  %u0 = stablehlo.subtract %w0, %r#0 : tensor<4x4xf32>
  %u1 = stablehlo.subtract %w1, %r#1 : tensor<4x4xf32>
  return %u0, %u1 : tensor<4x4xf32>, tensor<4x4xf32>
}

func.func private @microbatch(%w0: tensor<4x4xf32>, %w1: tensor<4x4xf32>, %x: tensor<4x4xf32>,
                              %a0: tensor<4x4xf32>, %a1: tensor<4x4xf32>)
    -> (tensor<4x4xf32>, tensor<4x4xf32>) {
  %z = stablehlo.dot_general %x, %w0, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %t = stablehlo.tanh %z : tensor<4x4xf32>
  %y = stablehlo.dot_general %t, %w1, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %s = stablehlo.sine %y : tensor<4x4xf32>
  %g = stablehlo.multiply %s, %s : tensor<4x4xf32>
  %b:4 = stablehlo.optimization_barrier %x, %w0, %w1, %g : tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>
  %z2 = stablehlo.dot_general %b#0, %b#1, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %t2 = stablehlo.tanh %z2 : tensor<4x4xf32>
  %y2 = stablehlo.dot_general %t2, %b#2, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %c2 = stablehlo.cosine %y2 : tensor<4x4xf32>
  %dy = stablehlo.multiply %b#3, %c2 : tensor<4x4xf32>
  %d1 = stablehlo.dot_general %t2, %dy, contracting_dims = [0] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %dt = stablehlo.dot_general %dy, %b#2, contracting_dims = [1] x [1] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %dz = stablehlo.multiply %dt, %t2 : tensor<4x4xf32>
  %d0 = stablehlo.dot_general %b#0, %dz, contracting_dims = [0] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %n0 = stablehlo.add %a0, %d0 : tensor<4x4xf32>
  %n1 = stablehlo.add %a1, %d1 : tensor<4x4xf32>
  return %n0, %n1 : tensor<4x4xf32>, tensor<4x4xf32>
}
