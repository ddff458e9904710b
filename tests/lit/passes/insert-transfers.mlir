// RUN: shardopt-opt %s --shardopt-insert-transfers --shardopt-verify-transferred | FileCheck %s
// RUN: shardopt-opt %s --shardopt-insert-transfers="strategy=local_allgather" --shardopt-verify-transferred | FileCheck %s --check-prefix=GATHER
// RUN: shardopt-opt %s --shardopt-insert-transfers="cluster=cpu-test:1x4" --shardopt-verify-transferred | FileCheck %s --check-prefix=CLUSTER

// Rows on m0, replicas on m1: each device of m1 receives both halves, one from each device of m0 at a time. Two transfers
// of one value to one mesh become one.
// CHECK-LABEL: func.func private @microbatch
// CHECK: %[[H:.*]] = mpmd.fragment<mesh="m0"
// CHECK: %[[ONE:.*]] = mpmd.transfer
// CHECK-SAME: shardopt.resharding = {bytes = 128 : i64, seconds = 2.000000e+00 : f64
// CHECK-SAME{LITERAL}: steps = dense<[[0, 0, 2, 0, 0, 2, 4], [0, 1, 3, 2, 0, 4, 4], [0, 1, 2, 2, 0, 4, 4], [0, 0, 3, 0, 0, 2, 4]]> : tensor<4x7xi64>
// CHECK-SAME: strategy = "send_recv"}} %[[H]] :
// CHECK-NOT: mpmd.transfer {{.*}}%[[H]] :
// The index is known everywhere and needs no plan.
// CHECK: mpmd.transfer %arg{{[0-9]+}} : (!mpmd.mesh_tensor<"m0", tensor<ui32>
// CHECK: mpmd.fragment<mesh="m1", {{.*}} (%[[ONE]], %[[ONE]], %arg
// CHECK: mpmd.transfer
// CHECK-SAME{LITERAL}: steps = dense<[[0, 2, 0, 0, 0, 2, 4], [0, 3, 1, 2, 0, 4, 4]]> : tensor<2x7xi64>

// Half crosses to each device of m1, which then exchange their halves: phase 1.
// GATHER-LABEL: func.func private @microbatch
// GATHER: bytes = 64 : i64
// GATHER-SAME{LITERAL}: dense<[[0, 0, 2, 0, 0, 2, 4], [0, 1, 3, 2, 0, 4, 4], [1, 2, 3, 0, 0, 2, 4], [1, 3, 2, 2, 0, 4, 4]]>
// GATHER-SAME: strategy = "local_allgather"

// CLUSTER-LABEL: func.func private @microbatch
// CLUSTER: seconds = 5.00{{[0-9]*}}E-5
!a = !mpmd.mesh_tensor<"m0", tensor<4x4xf32>, sharding=<@m0, [{"x"}, {}]>>
!b = !mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@m1, [{}, {}]>>
!index = !mpmd.mesh_tensor<"m0", tensor<ui32>, sharding=<@m0, []>>
!index1 = !mpmd.mesh_tensor<"m1", tensor<ui32>, sharding=<@m1, []>>
module attributes {shardopt.cluster = {
    name = "test", hosts = 1 : i64, devices_per_host = 4 : i64, dispatch_seconds = 0.0 : f64,
    device = {name = "cpu", peak_flops = {f32 = 1.0e9 : f64}, memory_bytes = 1000 : i64, memory_bandwidth = 1.0e9 : f64},
    intra_host = {latency_seconds = 1.0 : f64, bandwidth_bytes_per_second = 64.0 : f64},
    inter_host = {latency_seconds = 1.0 : f64, bandwidth_bytes_per_second = 64.0 : f64}}} {
  func.func public @main(%w0: !a {tf.aliasing_output = 0 : i32}, %w1: !b {tf.aliasing_output = 1 : i32}, %x: !a) -> (!a, !b)
      attributes {topology = #mpmd.topology<<"m0" : <["x"=2]>>, <"m1" : <["x"=2]>>>,
                  shardopt.devices = [array<i64: 0, 1>, array<i64: 2, 3>]} {
    %z0 = mpmd.fragment<mesh="m0", origin=["prologue"], stage=0> () {shardopt.cost = {seconds = 0.5 : f64}, shardopt.kind = "prologue"} () {
      %z = stablehlo.constant {mhlo.sharding = "{devices=[2,1]<=[2]}"} dense<0.0> : tensor<4x4xf32>
      mpmd.return %z : tensor<4x4xf32>
    } : () -> !a
    %z1 = mpmd.fragment<mesh="m1", origin=["prologue"], stage=1> () {shardopt.cost = {seconds = 0.5 : f64}, shardopt.kind = "prologue"} () {
      %z = stablehlo.constant {mhlo.sharding = "{replicated}"} dense<0.0> : tensor<4x4xf32>
      mpmd.return %z : tensor<4x4xf32>
    } : () -> !b
    %r:2 = mpmd.for (%z0, %z1) {iterations = 2 : ui32}
        (%g0: !a, %g1: !b, %i: !index) {
      %n:2 = mpmd.call @microbatch(%w0, %w1, %x, %g0, %g1, %i) {call_counter = 0 : ui32} : (!a, !b, !a, !a, !b, !index) -> (!a, !b)
      mpmd.return %n#0, %n#1 : !a, !b
    } : !a, !b
    %u0 = mpmd.fragment<mesh="m0", origin=["layer_0"], stage=0> (%w0, %r#0) {shardopt.cost = {seconds = 0.5 : f64}, shardopt.kind = "update"} (%w: tensor<4x4xf32>, %g: tensor<4x4xf32>) {
      %u = stablehlo.subtract %w, %g {mhlo.sharding = "{devices=[2,1]<=[2]}"} : tensor<4x4xf32>
      mpmd.return %u : tensor<4x4xf32>
    } : (!a, !a) -> !a
    %u1 = mpmd.fragment<mesh="m1", origin=["layer_1"], stage=1> (%w1, %r#1) {shardopt.cost = {seconds = 0.5 : f64}, shardopt.kind = "update"} (%w: tensor<4x4xf32>, %g: tensor<4x4xf32>) {
      %u = stablehlo.subtract %w, %g {mhlo.sharding = "{replicated}"} : tensor<4x4xf32>
      mpmd.return %u : tensor<4x4xf32>
    } : (!b, !b) -> !b
    return %u0, %u1 : !a, !b
  }

  func.func private @microbatch(%w0: !a, %w1: !b, %x: !a, %g0: !a, %g1: !b, %i: !index) -> (!a, !b)
      attributes {topology = #mpmd.topology<<"m0" : <["x"=2]>>, <"m1" : <["x"=2]>>>} {
    %h = mpmd.fragment<mesh="m0", origin=["layer_0"], stage=0> (%x, %w0) {shardopt.cost = {seconds = 2.0 : f64}, shardopt.kind = "fwd"} (%p: tensor<4x4xf32>, %q: tensor<4x4xf32>) {
      %s = stablehlo.add %p, %q {mhlo.sharding = "{devices=[2,1]<=[2]}"} : tensor<4x4xf32>
      mpmd.return %s : tensor<4x4xf32>
    } : (!a, !a) -> !a
    %h1 = mpmd.transfer %h : (!a) -> !b
    %h2 = mpmd.transfer %h : (!a) -> !b
    %i1 = mpmd.transfer %i : (!index) -> !index1
    %n1, %d = mpmd.fragment<mesh="m1", origin=["layer_1"], stage=1> (%h1, %h2, %g1, %i1) {shardopt.cost = {seconds = 3.0 : f64}, shardopt.kind = "fwd"} (%p: tensor<4x4xf32>, %q: tensor<4x4xf32>, %g: tensor<4x4xf32>, %k: tensor<ui32>) {
      %s = stablehlo.multiply %p, %q {mhlo.sharding = "{replicated}"} : tensor<4x4xf32>
      %t = stablehlo.add %g, %p {mhlo.sharding = "{replicated}"} : tensor<4x4xf32>
      mpmd.return %t, %s : tensor<4x4xf32>, tensor<4x4xf32>
    } : (!b, !b, !b, !index1) -> (!b, !b)
    %d0 = mpmd.transfer %d : (!b) -> !a
    %n0 = mpmd.fragment<mesh="m0", origin=["layer_0"], stage=0> (%d0, %h, %g0) {shardopt.cost = {seconds = 2.0 : f64}, shardopt.kind = "bwd"} (%p: tensor<4x4xf32>, %q: tensor<4x4xf32>, %g: tensor<4x4xf32>) {
      %s = stablehlo.multiply %p, %q {mhlo.sharding = "{devices=[2,1]<=[2]}"} : tensor<4x4xf32>
      %t = stablehlo.add %g, %s {mhlo.sharding = "{devices=[2,1]<=[2]}"} : tensor<4x4xf32>
      mpmd.return %t : tensor<4x4xf32>
    } : (!a, !a, !a) -> !a
    return %n0, %n1 : !a, !b
  }
}
