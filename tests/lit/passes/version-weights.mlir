// RUN: sed -e 's/, recompute = "full"//' %S/Inputs/placed.mlir > %t.placed
// RUN: shardopt-opt %t.placed --shardopt-version-weights="schedule=pipedream" --shardopt-verify-placed | FileCheck %s --check-prefix=STASH
// RUN: shardopt-opt %t.placed --shardopt-version-weights="schedule=pipedream-2bw" --shardopt-verify-placed | FileCheck %s --check-prefix=TWO
// RUN: shardopt-opt %t.placed --shardopt-version-weights="schedule=pipedream-2bw" --shardopt-outline-fragments --shardopt-verify-staged | FileCheck %s --check-prefix=STAGED
// RUN: shardopt-opt %s --shardopt-version-weights="schedule=pipedream-2bw" --shardopt-verify-placed | FileCheck %s

// The weight of stage 0 has an older version, which the loop reads and the weight of this step replaces; that of stage 1,
// the last one, has none.
// STASH-LABEL: func.func public @main
// STASH-SAME: %arg3: tensor<4x4xf32> {shardopt.layer = 0 : i64, shardopt.version_of = 0 : i64, tf.aliasing_output = 2 : i32})
// STASH: mpmd.call @microbatch(%arg3, %arg1, %arg2,
// STASH: %[[U:.*]] = stablehlo.subtract %arg0,
// STASH: return %[[U]], %{{.*}}, %arg0 :

// TWO-LABEL: func.func public @main
// TWO-SAME: %arg4: tensor<4x4xf32> {shardopt.layer = 1 : i64, shardopt.version_of = 1 : i64, tf.aliasing_output = 3 : i32})
// TWO: mpmd.call @microbatch(%arg3, %arg4, %arg2,
// TWO: return %{{.*}}, %{{.*}}, %arg0, %arg1 :

// STAGED: %arg4: !mpmd.mesh_tensor<"m1", tensor<4x4xf32>> {shardopt.version_of = 1 : i64, tf.aliasing_output = 3 : i32}

// What the prologue makes of weights is made of the old ones; the update has a copy of its own, of the newest. A shared
// operation of the body is as old as its readers; numbers have no versions, nor has what comes back as it is.
// CHECK-LABEL: func.func public @main
// CHECK-SAME: %arg3: tensor<4xf32> {shardopt.layer = 0 : i64, shardopt.version_of = 0 : i64, tf.aliasing_output = 3 : i32})
// CHECK-NEXT: stablehlo.constant
// CHECK-NEXT: %[[OLD:.*]] = stablehlo.tanh %arg3 {shardopt.layer = 0 : i64}
// CHECK: mpmd.call @microbatch(%[[OLD]], %arg1, %arg2,
// CHECK: %[[NEW:.*]] = stablehlo.tanh %arg0 {shardopt.layer = 0 : i64}
// CHECK: %[[U:.*]] = stablehlo.subtract %[[NEW]],
// CHECK: return %[[U]], %{{.*}}, %arg2, %arg0 :
!t = tensor<4xf32>
!n = tensor<i32>
module attributes {shardopt.cluster = {device = {memory_bandwidth = 1.000000e+10 : f64, memory_bytes = 2147483648 : i64, name = "cpu", peak_flops = {bf16 = 2.500000e+10 : f64, f16 = 2.500000e+10 : f64, f32 = 5.000000e+10 : f64, f64 = 2.500000e+10 : f64}}, devices_per_host = 2 : i64, dispatch_seconds = 2.000000e-05 : f64, hosts = 1 : i64, inter_host = {bandwidth_bytes_per_second = 1.000000e+09 : f64, latency_seconds = 2.000000e-04 : f64}, intra_host = {bandwidth_bytes_per_second = 2.000000e+09 : f64, latency_seconds = 5.000000e-05 : f64}, name = "cpu-test"}} {
  func.func public @main(%w: !t {shardopt.layer = 0 : i64, tf.aliasing_output = 0 : i32}, %k: !n {shardopt.layer = 0 : i64, tf.aliasing_output = 1 : i32}, %c: !t {shardopt.layer = 0 : i64, tf.aliasing_output = 2 : i32}) -> (!t, !n, !t)
      attributes {shardopt.devices = [array<i64: 0>, array<i64: 1>], shardopt.stages = [{layers = array<i64: 0, 0>, mesh = "m0"}, {layers = array<i64: 1, 1>, mesh = "m1"}], topology = #mpmd.topology<<"m0" : <["x"=1]>>, <"m1" : <["x"=1]>>>} {
    %zeros = stablehlo.constant {shardopt.layer = -1 : i64} dense<0.0> : !t
    %v = stablehlo.tanh %w {shardopt.layer = 0 : i64} : !t
    %r = mpmd.for (%zeros) {iterations = 2 : ui32, shardopt.in_flight = array<i64: 2, 1>} (%a: !t, %i: tensor<ui32>) {
      %n = mpmd.call @microbatch(%v, %k, %c, %a) {call_counter = 0 : ui32} : (!t, !n, !t, !t) -> !t
      mpmd.return %n : !t
    } : !t
    %u = stablehlo.subtract %v, %r {shardopt.layer = 0 : i64} : !t
    %l = stablehlo.add %k, %k {shardopt.layer = 0 : i64} : !n
    return %u, %l, %c : !t, !n, !t
  }
  func.func private @microbatch(%v: !t, %k: !n, %c: !t, %a: !t) -> !t {
    %s = stablehlo.negate %v {shardopt.layer = -1 : i64} : !t
    %f = stablehlo.convert %k {shardopt.layer = 0 : i64} : (!n) -> tensor<f32>
    %g = stablehlo.broadcast_in_dim %f, dims = [] {shardopt.layer = 0 : i64} : (tensor<f32>) -> !t
    %h = stablehlo.multiply %s, %g {shardopt.layer = 1 : i64} : !t
    %q = stablehlo.multiply %h, %c {shardopt.layer = 1 : i64} : !t
    %m = stablehlo.add %a, %q {shardopt.layer = 1 : i64} : !t
    return %m : !t
  }
}
