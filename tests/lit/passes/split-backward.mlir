// RUN: shardopt-opt %s --shardopt-cluster-layers="layers=2" --shardopt-stage="cluster=cpu-test:1x2 num-stages=2 split-backward=true" | FileCheck %s

// Nobody waits for the backward of stage 0: all of it is a second half. The fragment of stage 1, which is forward and
// backward in one, hands the gradient of its input on and keeps what the gradient of its weight needs.
// CHECK-LABEL: func.func private @microbatch
// CHECK: mpmd.fragment<mesh="m0", {{.*}} {shardopt.kind = "fwd"}
// CHECK: %[[F:.*]]:2 = mpmd.fragment<mesh="m1", {{.*}} {shardopt.kind = "fwd"}
// CHECK: %[[DY:.*]] = stablehlo.add
// CHECK: %[[DX:.*]] = stablehlo.dot_general %[[DY]], {{.*}}contracting_dims = [1] x [1]
// CHECK: mpmd.return %[[DX]], %[[DY]]
// CHECK: mpmd.fragment<mesh="m1", {{.*}}%[[F]]#1{{.*}} {shardopt.kind = "bwd_weight"}
// CHECK: stablehlo.dot_general {{.*}}contracting_dims = [0] x [0]
// CHECK: stablehlo.add
// CHECK: mpmd.transfer %[[F]]#0
// CHECK: mpmd.fragment<mesh="m0", {{.*}} {shardopt.kind = "bwd_weight"}
// CHECK-NOT: shardopt.kind = "bwd"
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
  %h = stablehlo.dot_general %x, %w0, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %y = stablehlo.dot_general %h, %w1, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %dy = stablehlo.add %y, %y : tensor<4x4xf32>
  %g1 = stablehlo.dot_general %h, %dy, contracting_dims = [0] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %dh = stablehlo.dot_general %dy, %w1, contracting_dims = [1] x [1] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %g0 = stablehlo.dot_general %x, %dh, contracting_dims = [0] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %n0 = stablehlo.add %a0, %g0 : tensor<4x4xf32>
  %n1 = stablehlo.add %a1, %g1 : tensor<4x4xf32>
  return %n0, %n1 : tensor<4x4xf32>, tensor<4x4xf32>
}
