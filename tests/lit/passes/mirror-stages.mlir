// RUN: shardopt-opt %s --shardopt-mirror-stages --shardopt-verify-placed | FileCheck %s
// RUN: shardopt-opt %s --shardopt-mirror-stages --shardopt-outline-fragments --shardopt-verify-staged | FileCheck %s --check-prefix=STAGED

// The other half of the batch goes through stages 2 and 3, which are stages 0 and 1 on the other's mesh. A sum begins
// with zero a second time; a maximum with its least value; rows are halved; of what is neither, the last counts.
// CHECK-LABEL: func.func public @main
// CHECK-SAME: shardopt.stages = [{layers = array<i64: 0, 0>, mesh = "m0"}, {layers = array<i64: 1, 1>, mesh = "m1"}, {layers = array<i64: 2, 2>, mesh = "m1"}, {layers = array<i64: 3, 3>, mesh = "m0"}]
// CHECK-DAG: %[[X0:.*]] = stablehlo.slice %arg2 [0:2, 0:4] {shardopt.layer = 0 : i64}
// CHECK-DAG: %[[X1:.*]] = stablehlo.slice %arg2 [2:4, 0:4] {shardopt.layer = 0 : i64}
// CHECK-DAG: stablehlo.constant {shardopt.layer = -1 : i64} dense<0xFF800000>
// CHECK: %[[R:.*]]:8 = mpmd.for
// CHECK-SAME: iterations = 2 : ui32, shardopt.in_flight = array<i64: 1, 1, 1, 1>, shardopt.streams = 2 : i64
// CHECK: mpmd.call @microbatch(%arg0, %arg1, %[[X0]], %[[X1]],
// CHECK-DAG: stablehlo.add %[[R]]#0, %[[R]]#1 {shardopt.layer = 0 : i64}
// CHECK-DAG: stablehlo.concatenate %[[R]]#2, %[[R]]#3, dim = 0 {shardopt.layer = 1 : i64}
// CHECK-DAG: stablehlo.maximum %[[R]]#4, %[[R]]#5 {shardopt.layer = 1 : i64}
// CHECK: return {{.*}}, %[[R]]#7 :
// CHECK-LABEL: func.func private @microbatch(
// CHECK-SAME: %[[B0:arg2]]: tensor<2x4xf32>, %[[B1:arg3]]: tensor<2x4xf32>
// CHECK-SAME: %[[I:arg12]]: tensor<ui32>
// CHECK: stablehlo.dynamic_slice %[[B0]], %[[I]],
// CHECK: stablehlo.convert %[[I]] {shardopt.layer = 0 : i64}
// CHECK: stablehlo.tanh {{.*}} {shardopt.layer = 1 : i64}
// The row of the second half has the same number, the microbatch another one.
// CHECK: %[[HALF:.*]] = stablehlo.constant {shardopt.layer = -1 : i64} dense<2> : tensor<ui32>
// CHECK: %[[LATER:.*]] = stablehlo.add %[[I]], %[[HALF]] {shardopt.layer = -1 : i64}
// CHECK: stablehlo.dynamic_slice %[[B1]], %[[I]], {{.*}} {shardopt.layer = 2 : i64}
// CHECK: stablehlo.convert %[[LATER]] {shardopt.layer = 2 : i64}
// CHECK: stablehlo.tanh {{.*}} {shardopt.layer = 3 : i64}
// CHECK: stablehlo.dynamic_update_slice {{.*}}, %[[I]], {{.*}} : (tensor<2x4xf32>,

// Weights go to the mesh of the copy before the loop, its sum comes back behind it.
// STAGED: mpmd.transfer %arg0 : {{.*}}"m0", tensor<4x4xf32>>) -> !mpmd.mesh_tensor<"m1"
// STAGED: %[[R:.*]]:8 = mpmd.for
// STAGED: mpmd.transfer %[[R]]#1 : {{.*}}"m1", tensor<4x4xf32>>) -> !mpmd.mesh_tensor<"m0"
// STAGED-LABEL: func.func private @microbatch
// STAGED: mpmd.fragment<mesh="m0", origin=["layer_0"], stage=0>
// STAGED: mpmd.fragment<mesh="m1", origin=["layer_1"], stage=1>
// STAGED: mpmd.fragment<mesh="m1", origin=["layer_2"], stage=2>
// STAGED: mpmd.fragment<mesh="m0", origin=["layer_3"], stage=3>
!t = tensor<4x4xf32>
!r = tensor<4xf32>
!s = tensor<1x4xf32>
!f = tensor<f32>
module attributes {shardopt.cluster = {device = {memory_bandwidth = 1.000000e+10 : f64, memory_bytes = 2147483648 : i64, name = "cpu", peak_flops = {bf16 = 2.500000e+10 : f64, f16 = 2.500000e+10 : f64, f32 = 5.000000e+10 : f64, f64 = 2.500000e+10 : f64}}, devices_per_host = 2 : i64, dispatch_seconds = 2.000000e-05 : f64, hosts = 1 : i64, inter_host = {bandwidth_bytes_per_second = 1.000000e+09 : f64, latency_seconds = 2.000000e-04 : f64}, intra_host = {bandwidth_bytes_per_second = 2.000000e+09 : f64, latency_seconds = 5.000000e-05 : f64}, name = "cpu-test"}} {
  func.func public @main(%w0: !t {shardopt.layer = 0 : i64, tf.aliasing_output = 0 : i32}, %w1: !t {shardopt.layer = 1 : i64}, %x: !t {shardopt.layer = 0 : i64}) -> (!t, !t, !f, !f)
      attributes {shardopt.devices = [array<i64: 0>, array<i64: 1>], shardopt.stages = [{layers = array<i64: 0, 0>, mesh = "m0"}, {layers = array<i64: 1, 1>, mesh = "m1"}], topology = #mpmd.topology<<"m0" : <["x"=1]>>, <"m1" : <["x"=1]>>>} {
    %zeros = stablehlo.constant {shardopt.layer = -1 : i64} dense<0.0> : !t
    %least = stablehlo.constant {shardopt.layer = -1 : i64} dense<0xFF800000> : !f
    %r:4 = mpmd.for (%zeros, %zeros, %least, %least) {iterations = 4 : ui32, shardopt.in_flight = array<i64: 2, 1>} (%a0: !t, %a1: !t, %a2: !f, %a3: !f, %i: tensor<ui32>) {
      %n:4 = mpmd.call @microbatch(%w0, %w1, %x, %a0, %a1, %a2, %a3, %i) {call_counter = 0 : ui32} : (!t, !t, !t, !t, !t, !f, !f, tensor<ui32>) -> (!t, !t, !f, !f)
      mpmd.return %n#0, %n#1, %n#2, %n#3 : !t, !t, !f, !f
    } : !t, !t, !f, !f
    %u0 = stablehlo.subtract %w0, %r#0 {shardopt.layer = 0 : i64} : !t
    return %u0, %r#1, %r#2, %r#3 : !t, !t, !f, !f
  }
  func.func private @microbatch(%w0: !t, %w1: !t, %x: !t, %a0: !t, %a1: !t, %a2: !f, %a3: !f, %i: tensor<ui32>) -> (!t, !t, !f, !f) {
    %c = stablehlo.constant {shardopt.layer = -1 : i64} dense<0> : tensor<ui32>
    %row = stablehlo.dynamic_slice %x, %i, %c, sizes = [1, 4] {shardopt.layer = 0 : i64} : (!t, tensor<ui32>, tensor<ui32>) -> !s
    %number = stablehlo.convert %i {shardopt.layer = 0 : i64} : (tensor<ui32>) -> !f
    %all = stablehlo.broadcast_in_dim %number, dims = [] {shardopt.layer = 0 : i64} : (!f) -> !s
    %in = stablehlo.add %row, %all {shardopt.layer = 0 : i64} : !s
    %h = stablehlo.dot_general %in, %w0, contracting_dims = [1] x [0] {shardopt.layer = 0 : i64} : (!s, !t) -> !s
    %y = stablehlo.tanh %h {shardopt.layer = 1 : i64} : !s
    %z = stablehlo.dot_general %y, %w1, contracting_dims = [1] x [0] {shardopt.layer = 1 : i64} : (!s, !t) -> !s
    %g0 = stablehlo.dot_general %in, %z, contracting_dims = [0] x [0] {shardopt.layer = 0 : i64} : (!s, !s) -> !t
    %n0 = stablehlo.add %a0, %g0 {shardopt.layer = 0 : i64} : !t
    %n1 = stablehlo.dynamic_update_slice %a1, %z, %i, %c {shardopt.layer = 1 : i64} : (!t, !s, tensor<ui32>, tensor<ui32>) -> !t
    %part = stablehlo.slice %z [0:1, 0:1] {shardopt.layer = 1 : i64} : (!s) -> tensor<1x1xf32>
    %one = stablehlo.reshape %part {shardopt.layer = 1 : i64} : (tensor<1x1xf32>) -> !f
    %n2 = stablehlo.maximum %a2, %one {shardopt.layer = 1 : i64} : !f
    %n3 = stablehlo.negate %one {shardopt.layer = 1 : i64} : !f
    return %n0, %n1, %n2, %n3 : !t, !t, !f, !f
  }
}
