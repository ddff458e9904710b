// RUN: shardopt-opt %s --shardopt-cluster-layers="layers=2" -o %t.mlir
// RUN: shardopt-opt %t.mlir --shardopt-choose-stages="cluster=cpu-test:1x2 num-stages=2" --shardopt-verify-placed | FileCheck %s
// RUN: shardopt-opt %t.mlir --shardopt-choose-stages="cluster=cpu-test:1x2 inter-op=intra-only" | FileCheck %s --check-prefix=ONE
// RUN: shardopt-opt %t.mlir --shardopt-choose-stages="cluster=cpu-test:1x2 num-stages=2 schedule=gpipe recompute=full" | FileCheck %s --check-prefix=GPIPE
// RUN: shardopt-opt %t.mlir --shardopt-choose-stages="cluster=cpu-test:1x2 num-stages=2" --remarks -o %t 2>&1 | FileCheck %s --check-prefix=REMARK
// RUN: shardopt-opt %t.mlir --shardopt-choose-stages="cluster=cpu-test:1x4 num-stages=2 submesh=1x2 inter-op=equal-layer" | FileCheck %s --check-prefix=EQUAL
// RUN: shardopt-opt %t.mlir --shardopt-stage="cluster=cpu-test:1x2 num-stages=2" | FileCheck %s --check-prefix=PHASE

// What was decided are attributes; no operation is another.
// CHECK: module attributes {{.*}}shardopt.cluster = {
// CHECK-LABEL: func.func public @main
// CHECK-SAME: shardopt.devices = [array<i64: 0>, array<i64: 1>]
// CHECK-SAME: shardopt.stages = [{layers = array<i64: 0, 0>, mesh = "m0"}, {layers = array<i64: 1, 1>, mesh = "m1"}]
// CHECK-SAME: topology = #mpmd.topology<<"m0" : <["x"=1, "y"=1]>>, <"m1" : <["x"=1, "y"=1]>>>
// CHECK: mpmd.for {{.*}} {iterations = 2 : ui32, shardopt.in_flight = array<i64: 2, 1>,
// CHECK-SAME: shardopt.predicted = {formula_bound = {{.*}} : f64, formula_seconds = {{.*}} : f64, schedule = "1f1b", step_seconds = {{.*}} : f64}}
// CHECK: stablehlo.subtract {{.*}} {shardopt.layer = 0 : i64}
// CHECK-NOT: mpmd.fragment

// A schedule that is asked for is the one that counts the microbatches in flight.
// GPIPE: {layers = array<i64: 0, 0>, mesh = "m0", recompute = "full"}
// GPIPE: shardopt.in_flight = array<i64: 2, 2>, {{.*}} schedule = "gpipe"

// REMARK-DAG: schedule 1f1b: steps are 1f1b {{[0-9.e-]+}} s
// REMARK-DAG: stage 0: layers 0 to 0 run on submesh 1x1 as 1x1

// ONE: shardopt.stages = [{layers = array<i64: 0, 1>, mesh = "m0"}], topology = #mpmd.topology<<"m0" : <["x"=1, "y"=2]>>>

// EQUAL: shardopt.devices = [array<i64: 0, 1>, array<i64: 2, 3>]
// EQUAL-SAME: topology = #mpmd.topology<<"m0" : <["x"=1, "y"=2]>>, <"m1" : <["x"=1, "y"=2]>>>

// The phase obeys all of it, and carries on what later phases read. Each stage makes its own zeros.
// PHASE: %[[Z0:.*]] = mpmd.fragment<mesh="m0", origin=["prologue"], stage=0> () {shardopt.kind = "prologue"}
// PHASE: %[[Z1:.*]]:2 = mpmd.fragment<mesh="m1", origin=["prologue"], stage=1> () {shardopt.kind = "prologue"}
// PHASE: mpmd.for (%[[Z0]], %[[Z1]]#0, %[[Z1]]#1) {iterations = 2 : ui32, shardopt.in_flight = array<i64: 2, 1>, shardopt.predicted
// PHASE-NOT: shardopt.layer
// PHASE-NOT: shardopt.stages
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
