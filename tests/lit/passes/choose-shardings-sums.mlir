// RUN: shardopt-opt %s --shardopt-shard="cluster=cpu-test:1x4 memory-fraction=0 gap=0" | FileCheck %s
// RUN: shardopt-opt %s --shardopt-shard="cluster=cpu-test:1x4 memory-fraction=0 gap=0 unreduced=off" | FileCheck %s --check-prefix=OFF

// Both weights have gradients of one shape: each accumulator starts from zeros of its own, stays open in the loop, and is
// summed up behind it, once for its two readers.

// CHECK-LABEL: func.func public @main
// CHECK: %[[INIT:.*]]:2 = mpmd.fragment<mesh="m0"
// CHECK: stablehlo.constant {mhlo.sharding = "{unreduced}"} dense<0.000000e+00>
// CHECK: stablehlo.constant {mhlo.sharding = "{unreduced}"} dense<0.000000e+00>
// CHECK: mpmd.for (%[[INIT]]#{{[01]}}, %[[INIT]]#{{[01]}}) {iterations = 4 : ui32}
// CHECK-SAME: sharding=<@m0, [{}, {}], unreduced={"x"}>>
// CHECK: mpmd.fragment<mesh="m0", origin=["update"]
// CHECK: stablehlo.custom_call @Sharding(%{{.*}}) {mhlo.sharding = "{replicated}"}
// CHECK-NEXT: %[[SUM:.*]] = stablehlo.custom_call @Sharding(%{{.*}}) {mhlo.sharding = "{replicated}"}
// CHECK-NEXT: stablehlo.multiply %[[SUM]], %[[SUM]]
// CHECK-LABEL: func.func private @microbatch
// CHECK-NOT: kind = "all_reduce"
// CHECK: stablehlo.dot_general {{.*}}mhlo.sharding = "{unreduced}"
// CHECK: stablehlo.add {{.*}}mhlo.sharding = "{unreduced}"

// OFF-NOT: unreduced

module {
  func.func public @main(%u: !mpmd.mesh_tensor<"m0", tensor<512x512xf32>> {tf.aliasing_output = 0 : i32}, %v: !mpmd.mesh_tensor<"m0", tensor<512x512xf32>> {tf.aliasing_output = 1 : i32}, %x: !mpmd.mesh_tensor<"m0", tensor<4x4096x512xf32>>) -> (!mpmd.mesh_tensor<"m0", tensor<512x512xf32>>, !mpmd.mesh_tensor<"m0", tensor<512x512xf32>>) attributes {topology = #mpmd.topology<<"m0" : <["x"=4]>>>, shardopt.devices = [array<i64: 0, 1, 2, 3>]} {
    %init = mpmd.fragment<mesh="m0", origin=["prologue"], stage=0> () {shardopt.kind = "prologue"} () {
      %z = stablehlo.constant dense<0.0> : tensor<512x512xf32>
      mpmd.return %z : tensor<512x512xf32>
    } : () -> !mpmd.mesh_tensor<"m0", tensor<512x512xf32>>
    %g:2 = mpmd.for (%init, %init) {iterations = 4 : ui32} (%a: !mpmd.mesh_tensor<"m0", tensor<512x512xf32>>, %b: !mpmd.mesh_tensor<"m0", tensor<512x512xf32>>, %i: !mpmd.mesh_tensor<"m0", tensor<ui32>>) {
      %n:2 = mpmd.call @microbatch(%u, %v, %x, %a, %b, %i) {call_counter = 0 : ui32} : (!mpmd.mesh_tensor<"m0", tensor<512x512xf32>>, !mpmd.mesh_tensor<"m0", tensor<512x512xf32>>, !mpmd.mesh_tensor<"m0", tensor<4x4096x512xf32>>, !mpmd.mesh_tensor<"m0", tensor<512x512xf32>>, !mpmd.mesh_tensor<"m0", tensor<512x512xf32>>, !mpmd.mesh_tensor<"m0", tensor<ui32>>) -> (!mpmd.mesh_tensor<"m0", tensor<512x512xf32>>, !mpmd.mesh_tensor<"m0", tensor<512x512xf32>>)
      mpmd.return %n#0, %n#1 : !mpmd.mesh_tensor<"m0", tensor<512x512xf32>>, !mpmd.mesh_tensor<"m0", tensor<512x512xf32>>
    } : !mpmd.mesh_tensor<"m0", tensor<512x512xf32>>, !mpmd.mesh_tensor<"m0", tensor<512x512xf32>>
    %n:2 = mpmd.fragment<mesh="m0", origin=["update"], stage=0> (%u, %v, %g#0, %g#1) {shardopt.kind = "update"} (%a: tensor<512x512xf32>, %b: tensor<512x512xf32>, %c: tensor<512x512xf32>, %d: tensor<512x512xf32>) {
      %0 = stablehlo.multiply %c, %c : tensor<512x512xf32>
      %1 = stablehlo.subtract %a, %0 : tensor<512x512xf32>
      %2 = stablehlo.subtract %b, %d : tensor<512x512xf32>
      mpmd.return %1, %2 : tensor<512x512xf32>, tensor<512x512xf32>
    } : (!mpmd.mesh_tensor<"m0", tensor<512x512xf32>>, !mpmd.mesh_tensor<"m0", tensor<512x512xf32>>, !mpmd.mesh_tensor<"m0", tensor<512x512xf32>>, !mpmd.mesh_tensor<"m0", tensor<512x512xf32>>) -> (!mpmd.mesh_tensor<"m0", tensor<512x512xf32>>, !mpmd.mesh_tensor<"m0", tensor<512x512xf32>>)
    return %n#0, %n#1 : !mpmd.mesh_tensor<"m0", tensor<512x512xf32>>, !mpmd.mesh_tensor<"m0", tensor<512x512xf32>>
  }
  func.func private @microbatch(%u: !mpmd.mesh_tensor<"m0", tensor<512x512xf32>>, %v: !mpmd.mesh_tensor<"m0", tensor<512x512xf32>>, %x: !mpmd.mesh_tensor<"m0", tensor<4x4096x512xf32>>, %a: !mpmd.mesh_tensor<"m0", tensor<512x512xf32>>, %b: !mpmd.mesh_tensor<"m0", tensor<512x512xf32>>, %i: !mpmd.mesh_tensor<"m0", tensor<ui32>>) -> (!mpmd.mesh_tensor<"m0", tensor<512x512xf32>>, !mpmd.mesh_tensor<"m0", tensor<512x512xf32>>) attributes {topology = #mpmd.topology<<"m0" : <["x"=4]>>>} {
    %n:2 = mpmd.fragment<mesh="m0", origin=["step"], stage=0> (%u, %v, %x, %a, %b, %i) {shardopt.kind = "fwd"} (%p: tensor<512x512xf32>, %q: tensor<512x512xf32>, %y: tensor<4x4096x512xf32>, %c: tensor<512x512xf32>, %d: tensor<512x512xf32>, %k: tensor<ui32>) {
      %zero = stablehlo.constant dense<0> : tensor<ui32>
      %cut = stablehlo.dynamic_slice %y, %k, %zero, %zero, sizes = [1, 4096, 512] : (tensor<4x4096x512xf32>, tensor<ui32>, tensor<ui32>, tensor<ui32>) -> tensor<1x4096x512xf32>
      %row = stablehlo.reshape %cut : (tensor<1x4096x512xf32>) -> tensor<4096x512xf32>
      %h = stablehlo.dot_general %row, %p, contracting_dims = [1] x [0] : (tensor<4096x512xf32>, tensor<512x512xf32>) -> tensor<4096x512xf32>
      %t = stablehlo.tanh %h : tensor<4096x512xf32>
      %o = stablehlo.dot_general %t, %q, contracting_dims = [1] x [0] : (tensor<4096x512xf32>, tensor<512x512xf32>) -> tensor<4096x512xf32>
      %e = stablehlo.dot_general %o, %q, contracting_dims = [1] x [1] : (tensor<4096x512xf32>, tensor<512x512xf32>) -> tensor<4096x512xf32>
      %f = stablehlo.multiply %e, %t : tensor<4096x512xf32>
      %gq = stablehlo.dot_general %t, %o, contracting_dims = [0] x [0] : (tensor<4096x512xf32>, tensor<4096x512xf32>) -> tensor<512x512xf32>
      %gp = stablehlo.dot_general %row, %f, contracting_dims = [0] x [0] : (tensor<4096x512xf32>, tensor<4096x512xf32>) -> tensor<512x512xf32>
      %1 = stablehlo.add %c, %gp : tensor<512x512xf32>
      %2 = stablehlo.add %d, %gq : tensor<512x512xf32>
      mpmd.return %1, %2 : tensor<512x512xf32>, tensor<512x512xf32>
    } : (!mpmd.mesh_tensor<"m0", tensor<512x512xf32>>, !mpmd.mesh_tensor<"m0", tensor<512x512xf32>>, !mpmd.mesh_tensor<"m0", tensor<4x4096x512xf32>>, !mpmd.mesh_tensor<"m0", tensor<512x512xf32>>, !mpmd.mesh_tensor<"m0", tensor<512x512xf32>>, !mpmd.mesh_tensor<"m0", tensor<ui32>>) -> (!mpmd.mesh_tensor<"m0", tensor<512x512xf32>>, !mpmd.mesh_tensor<"m0", tensor<512x512xf32>>)
    return %n#0, %n#1 : !mpmd.mesh_tensor<"m0", tensor<512x512xf32>>, !mpmd.mesh_tensor<"m0", tensor<512x512xf32>>
  }
}
