// RUN: shardopt-opt %s --shardopt-cluster-layers="layers=2" --shardopt-outline-stages="cluster=cpu-test:1x2 num-stages=2" --shardopt-verify-staged | FileCheck %s
// RUN: shardopt-opt %s --shardopt-cluster-layers="layers=2" --shardopt-outline-stages="cluster=cpu-test:1x2 inter-op=intra-only" --shardopt-verify-staged | FileCheck %s --check-prefix=ONE
// RUN: shardopt-opt %s --shardopt-cluster-layers="layers=2" --shardopt-outline-stages="cluster=cpu-test:1x2 num-stages=2 schedule=gpipe" --shardopt-verify-staged | FileCheck %s --check-prefix=GPIPE
// RUN: shardopt-opt %s --shardopt-cluster-layers="layers=2" --shardopt-outline-stages="cluster=cpu-test:1x2 num-stages=2" --remarks -o %t 2>&1 | FileCheck %s --check-prefix=REMARK
// RUN: shardopt-opt %s --shardopt-cluster-layers="layers=2" --shardopt-outline-stages="cluster=cpu-test:1x4 num-stages=2 submesh=1x2 inter-op=equal-layer" --shardopt-verify-staged | FileCheck %s --check-prefix=EQUAL

// CHECK: module attributes {{.*}}shardopt.cluster = {
// CHECK-LABEL: func.func public @main
// CHECK-SAME: %[[W0:[a-z0-9]+]]: !mpmd.mesh_tensor<"m0", tensor<4x4xf32>> {tf.aliasing_output = 0 : i32}
// CHECK-SAME: %[[W1:[a-z0-9]+]]: !mpmd.mesh_tensor<"m1", tensor<4x4xf32>> {tf.aliasing_output = 1 : i32}
// CHECK-SAME: shardopt.devices = [array<i64: 0>, array<i64: 1>]
// CHECK-SAME: topology = #mpmd.topology<<"m0" : <["x"=1, "y"=1]>>, <"m1" : <["x"=1, "y"=1]>>>

// Each stage makes its own zeros; the constant that both need is copied.
// CHECK: %[[Z0:.*]] = mpmd.fragment<mesh="m0", origin=["prologue"], stage=0> () {shardopt.kind = "prologue"}
// CHECK: %[[Z1:.*]]:2 = mpmd.fragment<mesh="m1", origin=["prologue"], stage=1> () {shardopt.kind = "prologue"}
// CHECK: %[[R:.*]]:3 = mpmd.for (%[[Z0]], %[[Z1]]#0, %[[Z1]]#1) {iterations = 2 : ui32, shardopt.in_flight = array<i64: 2, 1>,
// CHECK-SAME: shardopt.predicted = {formula_bound = [[BOUND:.*]] : f64, formula_seconds = [[BOUND]] : f64, schedule = "1f1b", step_seconds = {{.*}} : f64}}
// CHECK: mpmd.fragment<mesh="m0", origin=["layer_0"], stage=0> (%[[W0]], %[[R]]#0) {shardopt.kind = "update"}
// CHECK: mpmd.fragment<mesh="m1", origin=["layer_1"], stage=1> (%[[W1]], %[[R]]#1) {shardopt.kind = "update"}

// The last stage has one fragment for forward and backward; activations go forward, their gradients back.
// CHECK-LABEL: func.func private @microbatch
// CHECK: %[[H:.*]] = mpmd.fragment<mesh="m0", origin=["layer_0"], stage=0> {{.*}} {shardopt.kind = "fwd"}
// CHECK: %[[H1:.*]] = mpmd.transfer %[[H]] : (!mpmd.mesh_tensor<"m0", tensor<4x4xf32>>) -> !mpmd.mesh_tensor<"m1", tensor<4x4xf32>>
// CHECK: %[[LAST:.*]]:3 = mpmd.fragment<mesh="m1", origin=["layer_1"], stage=1> (%[[H1]], {{.*}} {shardopt.kind = "fwd"}
// CHECK: %[[DH:.*]] = mpmd.transfer %[[LAST]]#0 : (!mpmd.mesh_tensor<"m1", tensor<4x4xf32>>) -> !mpmd.mesh_tensor<"m0", tensor<4x4xf32>>
// CHECK: mpmd.fragment<mesh="m0", origin=["layer_0"], stage=0> ({{.*}}%[[DH]]{{.*}}) {shardopt.kind = "bwd"}
// CHECK-NOT: shardopt.layer

// A schedule that is asked for is the one that counts the microbatches in flight.
// GPIPE: shardopt.in_flight = array<i64: 2, 2>, {{.*}} schedule = "gpipe"

// REMARK-DAG: schedule 1f1b: steps are 1f1b {{[0-9.e-]+}} s
// REMARK-DAG: stage 0: layers 0 to 0 run on submesh 1x1 as 1x1

// ONE: topology = #mpmd.topology<<"m0" : <["x"=1, "y"=2]>>>
// ONE-LABEL: func.func private @microbatch
// ONE: mpmd.fragment<mesh="m0", origin=["layer_0", "layer_1"], stage=0>
// ONE-NOT: mpmd.transfer

// EQUAL: shardopt.devices = [array<i64: 0, 1>, array<i64: 2, 3>]
// EQUAL-SAME: topology = #mpmd.topology<<"m0" : <["x"=1, "y"=2]>>, <"m1" : <["x"=1, "y"=2]>>>
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
