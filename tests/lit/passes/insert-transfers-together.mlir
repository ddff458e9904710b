// RUN: shardopt-opt %s --shardopt-insert-transfers="strategy=broadcast" --shardopt-verify-transferred | FileCheck %s
// RUN: shardopt-opt %s --shardopt-insert-transfers="strategy=local_allgather" --shardopt-verify-transferred | FileCheck %s --check-prefix=GATHER
// RUN: shardopt-opt %s --shardopt-insert-transfers="strategy=send_recv" --shardopt-verify-transferred | FileCheck %s --check-prefix=SEND
// RUN: shardopt-opt %s --shardopt-insert-transfers --shardopt-verify-transferred | FileCheck %s --check-prefix=AUTO
// RUN: shardopt-opt %s --shardopt-insert-transfers --mlir-pass-statistics -o %t 2>&1 | FileCheck %s --check-prefix=STATISTICS

// 64 bytes are 4 s on a link, and latency is 1 s. One device of m0 has it all. %h goes to all four devices of m1: it
// crosses once and is handed on in two chunks, so that a device sends the first while it receives the second. %s goes to
// m1 in rows. Both leave one fragment and are first read by one: in phase 0 device 0 sends 128 bytes, 9 s, and the four
// phases behind take 3 s each.
// CHECK-LABEL: func.func private @microbatch
// CHECK: %[[F:.*]]:3 = mpmd.fragment<mesh="m0"
// CHECK: mpmd.transfer {shardopt.resharding = {bytes = 64 : i64, seconds = 2.100000e+01 : f64
// CHECK-SAME{LITERAL}: steps = dense<[[0, 0, 1, 0, 0, 4, 4], [1, 1, 2, 0, 0, 2, 4], [2, 1, 2, 2, 0, 4, 4], [2, 2, 3, 0, 0, 2, 4], [3, 2, 3, 2, 0, 4, 4], [3, 3, 4, 0, 0, 2, 4], [4, 3, 4, 2, 0, 4, 4]]> : tensor<7x7xi64>
// CHECK-SAME: strategy = "broadcast"}} %[[F]]#0
// CHECK: mpmd.transfer {shardopt.resharding = {bytes = 64 : i64, seconds = 2.100000e+01 : f64
// CHECK-SAME: %[[F]]#1
// %k is needed later, and travels alone.
// CHECK: mpmd.transfer {shardopt.resharding = {bytes = 64 : i64, seconds = 5.000000e+00 : f64
// CHECK-SAME: %[[F]]#2

// Each device of m1 fetches a row of %h, and in three rounds each passes on to the next what it got last.
// GATHER: mpmd.transfer {shardopt.resharding = {bytes = 64 : i64, seconds = 1.500000e+01 : f64
// GATHER-SAME: tensor<16x7xi64>, strategy = "local_allgather"

// AUTO: strategy = "local_allgather"
// AUTO: strategy = "send_recv"

// SEND: mpmd.transfer {shardopt.resharding = {bytes = 256 : i64, seconds = 2.100000e+01 : f64

// STATISTICS-DAG: 2 messages
// STATISTICS-DAG: 3 transfers
!a = !mpmd.mesh_tensor<"m0", tensor<4x4xf32>, sharding=<@m0, [{}, {}]>>
!all = !mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@m1, [{}, {}]>>
!rows = !mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@m1, [{"x"}, {}]>>
module attributes {shardopt.cluster = {
    name = "test", hosts = 1 : i64, devices_per_host = 5 : i64, dispatch_seconds = 0.0 : f64,
    device = {name = "cpu", peak_flops = {f32 = 1.0e9 : f64}, memory_bytes = 1000 : i64, memory_bandwidth = 1.0e9 : f64},
    intra_host = {latency_seconds = 1.0 : f64, bandwidth_bytes_per_second = 16.0 : f64},
    inter_host = {latency_seconds = 1.0 : f64, bandwidth_bytes_per_second = 16.0 : f64}}} {
  func.func public @main(%x: !a, %g: !rows) -> !rows
      attributes {topology = #mpmd.topology<<"m0" : <["x"=1]>>, <"m1" : <["x"=4]>>>,
                  shardopt.devices = [array<i64: 0>, array<i64: 1, 2, 3, 4>]} {
    %r = mpmd.for (%g) {iterations = 2 : ui32} (%acc: !rows, %i: !mpmd.mesh_tensor<"m0", tensor<ui32>, sharding=<@m0, []>>) {
      %n = mpmd.call @microbatch(%x, %acc) {call_counter = 0 : ui32} : (!a, !rows) -> !rows
      mpmd.return %n : !rows
    } : !rows
    return %r : !rows
  }

  func.func private @microbatch(%x: !a, %acc: !rows) -> !rows
      attributes {topology = #mpmd.topology<<"m0" : <["x"=1]>>, <"m1" : <["x"=4]>>>} {
    %f:3 = mpmd.fragment<mesh="m0", origin=["layer_0"], stage=0> (%x) {shardopt.cost = {seconds = 1.0 : f64}, shardopt.kind = "fwd"} (%p: tensor<4x4xf32>) {
      %s = stablehlo.add %p, %p {mhlo.sharding = "{replicated}"} : tensor<4x4xf32>
      mpmd.return %p, %s, %s : tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>
    } : (!a) -> (!a, !a, !a)
    %h = mpmd.transfer %f#0 : (!a) -> !all
    %s = mpmd.transfer %f#1 : (!a) -> !rows
    %k = mpmd.transfer %f#2 : (!a) -> !rows
    %y = mpmd.fragment<mesh="m1", origin=["layer_1"], stage=1> (%h, %s) {shardopt.cost = {seconds = 1.0 : f64}, shardopt.kind = "fwd"} (%p: tensor<4x4xf32>, %q: tensor<4x4xf32>) {
      %t = stablehlo.multiply %p, %q {mhlo.sharding = "{devices=[4,1]<=[4]}"} : tensor<4x4xf32>
      mpmd.return %t : tensor<4x4xf32>
    } : (!all, !rows) -> !rows
    %n = mpmd.fragment<mesh="m1", origin=["layer_1"], stage=1> (%y, %k, %acc) {shardopt.cost = {seconds = 1.0 : f64}, shardopt.kind = "bwd"} (%p: tensor<4x4xf32>, %q: tensor<4x4xf32>, %g: tensor<4x4xf32>) {
      %t = stablehlo.multiply %p, %q {mhlo.sharding = "{devices=[4,1]<=[4]}"} : tensor<4x4xf32>
      %u = stablehlo.add %t, %g {mhlo.sharding = "{devices=[4,1]<=[4]}"} : tensor<4x4xf32>
      mpmd.return %u : tensor<4x4xf32>
    } : (!rows, !rows, !rows) -> !rows
    return %n : !rows
  }
}
