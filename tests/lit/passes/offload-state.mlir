// RUN: shardopt-opt %s --shardopt-offload-state --shardopt-verify-placed | FileCheck %s
// RUN: shardopt-opt %s --shardopt-offload-state --shardopt-outline-fragments --shardopt-verify-staged | FileCheck %s --check-prefix=PIECES
// RUN: sed -e 's/, offload = "optimizer"//' %s > %t.none
// RUN: shardopt-opt %t.none -o %t.before
// RUN: shardopt-opt %t.none --shardopt-offload-state | diff %t.before -

// What only the update of layer 0 uses lies on the host: not the weights, which the loop reads, nor the number of the
// step, a scalar. Layer 1 keeps its state. Broadcasts of something small are shared.
// CHECK-LABEL: func.func public @main(
// CHECK-SAME: %[[W0:[a-z0-9]+]]: tensor<4x4xf32> {shardopt.layer = 0 : i64, tf.aliasing_output = 0 : i32},
// CHECK-SAME: %[[M0:[a-z0-9]+]]: tensor<4x4xf32> {shardopt.layer = 0 : i64, shardopt.memory = "host", tf.aliasing_output = 1 : i32},
// CHECK-SAME: %[[N0:[a-z0-9]+]]: tensor<4x4xf32> {shardopt.layer = 0 : i64, shardopt.memory = "host", tf.aliasing_output = 2 : i32},
// CHECK-SAME: %[[M1:[a-z0-9]+]]: tensor<4x4xf32> {shardopt.layer = 1 : i64, tf.aliasing_output = 3 : i32},
// CHECK-SAME: %[[K:[a-z0-9]+]]: tensor<f32> {shardopt.layer = 0 : i64, tf.aliasing_output = 4 : i32}
// CHECK-SAME: shardopt.stages = [{layers = array<i64: 0, 0>, mesh = "m0"}, {layers = array<i64: 1, 1>, mesh = "m1"}]
// CHECK: mpmd.for {{.*}}shardopt.offload = ["optimizer", "none"]
// CHECK: stablehlo.broadcast_in_dim {{.*}} {shardopt.layer = -1 : i64}

// Each of the two is updated in a piece of its own, which makes the broadcast; what needs neither comes first.
// PIECES-LABEL: func.func public @main
// PIECES: mpmd.for
// PIECES: mpmd.fragment<mesh="m0", {{.*}}stage=0> (%arg4
// PIECES-NOT: broadcast_in_dim
// PIECES: mpmd.fragment<mesh="m0", {{.*}}stage=0> (%arg4, %arg1,
// PIECES-NEXT: broadcast_in_dim
// PIECES: mpmd.fragment<mesh="m0", {{.*}}stage=0> (%arg4, %arg2)
// PIECES-NEXT: broadcast_in_dim
// PIECES: mpmd.fragment<mesh="m1"
!t = tensor<4x4xf32>
module attributes {shardopt.cluster = {device = {memory_bandwidth = 1.000000e+10 : f64, memory_bytes = 2147483648 : i64, name = "cpu", peak_flops = {f32 = 5.000000e+10 : f64}}, devices_per_host = 2 : i64, dispatch_seconds = 2.000000e-05 : f64, hosts = 1 : i64, inter_host = {bandwidth_bytes_per_second = 1.000000e+09 : f64, latency_seconds = 2.000000e-04 : f64}, intra_host = {bandwidth_bytes_per_second = 2.000000e+09 : f64, latency_seconds = 5.000000e-05 : f64}, name = "cpu-test"}} {
  func.func public @main(%w0: !t {shardopt.layer = 0 : i64, tf.aliasing_output = 0 : i32}, %m0: !t {shardopt.layer = 0 : i64, tf.aliasing_output = 1 : i32}, %n0: !t {shardopt.layer = 0 : i64, tf.aliasing_output = 2 : i32}, %m1: !t {shardopt.layer = 1 : i64, tf.aliasing_output = 3 : i32}, %k: tensor<f32> {shardopt.layer = 0 : i64, tf.aliasing_output = 4 : i32}) -> (!t, !t, !t, !t, tensor<f32>)
      attributes {shardopt.devices = [array<i64: 0>, array<i64: 1>], shardopt.stages = [{layers = array<i64: 0, 0>, mesh = "m0", offload = "optimizer"}, {layers = array<i64: 1, 1>, mesh = "m1"}], topology = #mpmd.topology<<"m0" : <["x"=1]>>, <"m1" : <["x"=1]>>>} {
    %zeros = stablehlo.constant {shardopt.layer = -1 : i64} dense<0.0> : !t
    %r:2 = mpmd.for (%zeros, %zeros) {iterations = 2 : ui32, shardopt.in_flight = array<i64: 2, 1>} (%a0: !t, %a1: !t, %i: tensor<ui32>) {
      %n:2 = mpmd.call @microbatch(%w0, %a0, %a1) {call_counter = 0 : ui32} : (!t, !t, !t) -> (!t, !t)
      mpmd.return %n#0, %n#1 : !t, !t
    } : !t, !t
    %j = stablehlo.add %k, %k {shardopt.layer = 0 : i64} : tensor<f32>
    %b = stablehlo.broadcast_in_dim %k, dims = [] {shardopt.layer = 0 : i64} : (tensor<f32>) -> !t
    %d0 = stablehlo.multiply %m0, %b {shardopt.layer = 0 : i64} : !t
    %p0 = stablehlo.add %d0, %r#0 {shardopt.layer = 0 : i64} : !t
    %u0 = stablehlo.subtract %w0, %p0 {shardopt.layer = 0 : i64} : !t
    %q0 = stablehlo.multiply %n0, %b {shardopt.layer = 0 : i64} : !t
    %p1 = stablehlo.add %m1, %r#1 {shardopt.layer = 1 : i64} : !t
    return %u0, %p0, %q0, %p1, %j : !t, !t, !t, !t, tensor<f32>
  }
  func.func private @microbatch(%w0: !t, %a0: !t, %a1: !t) -> (!t, !t) {
    %y = stablehlo.tanh %w0 {shardopt.layer = 0 : i64} : !t
    %z = stablehlo.sine %y {shardopt.layer = 1 : i64} : !t
    %g = stablehlo.multiply %z, %y {shardopt.layer = 0 : i64} : !t
    %n0 = stablehlo.add %a0, %g {shardopt.layer = 0 : i64} : !t
    %n1 = stablehlo.add %a1, %z {shardopt.layer = 1 : i64} : !t
    return %n0, %n1 : !t, !t
  }
}
