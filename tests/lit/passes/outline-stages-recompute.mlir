// RUN: shardopt-opt %s --shardopt-cluster-layers="layers=2" --shardopt-outline-stages="cluster=cpu-test:1x2 num-stages=2 recompute=full" --shardopt-verify-staged | FileCheck %s
// RUN: shardopt-opt %s --shardopt-cluster-layers="layers=2" --shardopt-outline-stages="cluster=cpu-test:1x1 num-stages=1 recompute=layer" --shardopt-verify-staged | FileCheck %s --check-prefix=LAYER

// The forward of stage 0 keeps nothing for its backward, which computes the activation again behind a barrier that
// waits for the gradient; also what the backward program makes of it late, from a constant that stands there.
// CHECK: mpmd.for {{.*}}shardopt.recompute = ["full", "full"]
// CHECK-LABEL: func.func private @microbatch
// CHECK: %[[H:[0-9]+]] = mpmd.fragment<mesh="m0", origin=["layer_0"], stage=0> {{.*}} {shardopt.kind = "fwd"}
// CHECK: mpmd.fragment<mesh="m1", {{.*}} {shardopt.kind = "fwd"}
// CHECK: mpmd.fragment<mesh="m0", origin=["layer_0"], stage=0> {{.*}} {shardopt.kind = "bwd"} (
// CHECK: %[[B:.*]]:{{[0-9]}} = stablehlo.optimization_barrier
// CHECK: %[[Z:.*]] = stablehlo.dot_general %[[B]]#0,
// CHECK: %[[T:.*]] = stablehlo.tanh %[[Z]]
// CHECK: stablehlo.subtract %{{.*}}, %[[T]]

// One stage has one fragment: its first layer is computed twice in it, the last one once.
// LAYER-LABEL: func.func private @microbatch
// LAYER: stablehlo.tanh
// LAYER: stablehlo.optimization_barrier
// LAYER: stablehlo.tanh
// LAYER-NOT: stablehlo.optimization_barrier
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
  %h = stablehlo.tanh %z : tensor<4x4xf32>
  %y = stablehlo.dot_general %h, %w1, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %dy = stablehlo.add %y, %y : tensor<4x4xf32>
  %g1 = stablehlo.dot_general %h, %dy, contracting_dims = [0] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %dh = stablehlo.dot_general %dy, %w1, contracting_dims = [1] x [1] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %dt = stablehlo.multiply %dh, %z : tensor<4x4xf32>
  %one = stablehlo.constant dense<1.0> : tensor<4x4xf32>
  %hh = stablehlo.subtract %one, %h : tensor<4x4xf32>
  %dz = stablehlo.multiply %dt, %hh : tensor<4x4xf32>
  %g0 = stablehlo.dot_general %x, %dz, contracting_dims = [0] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %n0 = stablehlo.add %a0, %g0 : tensor<4x4xf32>
  %n1 = stablehlo.add %a1, %g1 : tensor<4x4xf32>
  return %n0, %n1 : tensor<4x4xf32>, tensor<4x4xf32>
}
