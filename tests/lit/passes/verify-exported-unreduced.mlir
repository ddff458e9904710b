// Stage 1 sums up an accumulator whose type says that it is unreduced, and nothing inside of its function does.
// RUN: not shardopt-opt %s --shardopt-verify-exported 2>&1 | FileCheck %s

// CHECK: :[[@LINE+42]]:3: error: result 0 is unreduced along 'x' and what the function returns is not
module attributes {shardopt.cluster = {device = {memory_bandwidth = 1.000000e+09 : f64, memory_bytes = 1000 : i64, name = "cpu", peak_flops = {f32 = 1.000000e+09 : f64}}, devices_per_host = 4 : i64, dispatch_seconds = 0.000000e+00 : f64, hosts = 1 : i64, inter_host = {bandwidth_bytes_per_second = 6.400000e+01 : f64, latency_seconds = 1.000000e+00 : f64}, intra_host = {bandwidth_bytes_per_second = 6.400000e+01 : f64, latency_seconds = 1.000000e+00 : f64}, name = "test"}} {
  func.func public @main(%arg0: !mpmd.mesh_tensor<"m0", tensor<4x4xf32>, sharding=<@m0, [{"x"}, {}]>> {tf.aliasing_output = 0 : i32}, %arg1: !mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@m1, [{}, {}]>> {tf.aliasing_output = 1 : i32}, %arg2: !mpmd.mesh_tensor<"m0", tensor<4x4xf32>, sharding=<@m0, [{"x"}, {}]>>) -> (!mpmd.mesh_tensor<"m0", tensor<4x4xf32>, sharding=<@m0, [{"x"}, {}]>>, !mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@m1, [{}, {}]>>) attributes {shardopt.devices = [array<i64: 0, 1>, array<i64: 2, 3>], topology = #mpmd.topology<<"m0" : <["x"=2]>>, <"m1" : <["x"=2]>>>} {
    %0 = mpmd.fragment_call<mesh="m0", origin=["prologue"]> @stage0_prologue() {shardopt.cost = {seconds = 5.000000e-01 : f64}, shardopt.kind = "prologue", shardopt.stage = 0 : i64} : () -> !mpmd.mesh_tensor<"m0", tensor<4x4xf32>, sharding=<@m0, [{"x"}, {}]>>
    %1 = mpmd.fragment_call<mesh="m1", origin=["prologue"]> @stage1_prologue() {shardopt.cost = {seconds = 5.000000e-01 : f64}, shardopt.kind = "prologue", shardopt.stage = 1 : i64} : () -> !mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@m1, [{}, {}], unreduced={"x"}>>
    %2:2 = mpmd.for (%0, %1) {iterations = 2 : ui32, shardopt.schedule = {bubble = 4.800000e-01 : f64, makespan_seconds = 1.350000e+01 : f64, name = "1f1b", peak_bytes = array<i64: 192, 192>}} (%arg3: !mpmd.mesh_tensor<"m0", tensor<4x4xf32>, sharding=<@m0, [{"x"}, {}]>>, %arg4: !mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@m1, [{}, {}], unreduced={"x"}>>, %index: !mpmd.mesh_tensor<"m0", tensor<ui32>, sharding=<@m0, []>>) {
      %5:2 = mpmd.call @microbatch(%arg0, %arg1, %arg2, %arg3, %arg4, %index) {call_counter = 0 : ui32} : (!mpmd.mesh_tensor<"m0", tensor<4x4xf32>, sharding=<@m0, [{"x"}, {}]>>, !mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@m1, [{}, {}]>>, !mpmd.mesh_tensor<"m0", tensor<4x4xf32>, sharding=<@m0, [{"x"}, {}]>>, !mpmd.mesh_tensor<"m0", tensor<4x4xf32>, sharding=<@m0, [{"x"}, {}]>>, !mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@m1, [{}, {}], unreduced={"x"}>>, !mpmd.mesh_tensor<"m0", tensor<ui32>, sharding=<@m0, []>>) -> (!mpmd.mesh_tensor<"m0", tensor<4x4xf32>, sharding=<@m0, [{"x"}, {}]>>, !mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@m1, [{}, {}], unreduced={"x"}>>)
      mpmd.return %5#0, %5#1 : !mpmd.mesh_tensor<"m0", tensor<4x4xf32>, sharding=<@m0, [{"x"}, {}]>>, !mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@m1, [{}, {}], unreduced={"x"}>>
    } : !mpmd.mesh_tensor<"m0", tensor<4x4xf32>, sharding=<@m0, [{"x"}, {}]>>, !mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@m1, [{}, {}], unreduced={"x"}>>
    %3 = mpmd.fragment_call<mesh="m0", origin=["layer_0"]> @stage0_update(%arg0, %2#0) {shardopt.cost = {seconds = 5.000000e-01 : f64}, shardopt.kind = "update", shardopt.stage = 0 : i64} : (!mpmd.mesh_tensor<"m0", tensor<4x4xf32>, sharding=<@m0, [{"x"}, {}]>>, !mpmd.mesh_tensor<"m0", tensor<4x4xf32>, sharding=<@m0, [{"x"}, {}]>>) -> !mpmd.mesh_tensor<"m0", tensor<4x4xf32>, sharding=<@m0, [{"x"}, {}]>>
    %4 = mpmd.fragment_call<mesh="m1", origin=["layer_1"]> @stage1_update(%arg1, %2#1) {shardopt.cost = {seconds = 5.000000e-01 : f64}, shardopt.kind = "update", shardopt.stage = 1 : i64} : (!mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@m1, [{}, {}]>>, !mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@m1, [{}, {}], unreduced={"x"}>>) -> !mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@m1, [{}, {}]>>
    return %3, %4 : !mpmd.mesh_tensor<"m0", tensor<4x4xf32>, sharding=<@m0, [{"x"}, {}]>>, !mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@m1, [{}, {}]>>
  }
  func.func private @microbatch(%arg0: !mpmd.mesh_tensor<"m0", tensor<4x4xf32>, sharding=<@m0, [{"x"}, {}]>>, %arg1: !mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@m1, [{}, {}]>>, %arg2: !mpmd.mesh_tensor<"m0", tensor<4x4xf32>, sharding=<@m0, [{"x"}, {}]>>, %arg3: !mpmd.mesh_tensor<"m0", tensor<4x4xf32>, sharding=<@m0, [{"x"}, {}]>>, %arg4: !mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@m1, [{}, {}], unreduced={"x"}>>, %arg5: !mpmd.mesh_tensor<"m0", tensor<ui32>, sharding=<@m0, []>>) -> (!mpmd.mesh_tensor<"m0", tensor<4x4xf32>, sharding=<@m0, [{"x"}, {}]>>, !mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@m1, [{}, {}], unreduced={"x"}>>) attributes {topology = #mpmd.topology<<"m0" : <["x"=2]>>, <"m1" : <["x"=2]>>>} {
    %0 = mpmd.fragment_call<mesh="m0", origin=["layer_0"]> @stage0_fwd(%arg2, %arg0) {shardopt.cost = {seconds = 2.000000e+00 : f64}, shardopt.kind = "fwd", shardopt.stage = 0 : i64} : (!mpmd.mesh_tensor<"m0", tensor<4x4xf32>, sharding=<@m0, [{"x"}, {}]>>, !mpmd.mesh_tensor<"m0", tensor<4x4xf32>, sharding=<@m0, [{"x"}, {}]>>) -> !mpmd.mesh_tensor<"m0", tensor<4x4xf32>, sharding=<@m0, [{"x"}, {}]>>
    %1 = mpmd.transfer {shardopt.resharding = {bytes = 128 : i64, seconds = 2.000000e+00 : f64, steps = dense<[[0, 0, 2, 0, 0, 2, 4], [0, 1, 2, 2, 0, 4, 4], [0, 0, 3, 0, 0, 2, 4], [0, 1, 3, 2, 0, 4, 4]]> : tensor<4x7xi64>, strategy = "send_recv"}} %0 : (!mpmd.mesh_tensor<"m0", tensor<4x4xf32>, sharding=<@m0, [{"x"}, {}]>>) -> !mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@m1, [{}, {}]>>
    %2 = mpmd.transfer %arg5 : (!mpmd.mesh_tensor<"m0", tensor<ui32>, sharding=<@m0, []>>) -> !mpmd.mesh_tensor<"m1", tensor<ui32>, sharding=<@m1, []>>
    %3:2 = mpmd.fragment_call<mesh="m1", origin=["layer_1"]> @stage1_fwd(%1, %arg1, %arg4, %2) {shardopt.cost = {seconds = 3.000000e+00 : f64}, shardopt.kind = "fwd", shardopt.stage = 1 : i64} : (!mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@m1, [{}, {}]>>, !mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@m1, [{}, {}]>>, !mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@m1, [{}, {}], unreduced={"x"}>>, !mpmd.mesh_tensor<"m1", tensor<ui32>, sharding=<@m1, []>>) -> (!mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@m1, [{}, {}], unreduced={"x"}>>, !mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@m1, [{}, {}]>>)
    %4 = mpmd.transfer {shardopt.resharding = {bytes = 64 : i64, seconds = 1.500000e+00 : f64, steps = dense<[[0, 2, 0, 0, 0, 2, 4], [0, 3, 1, 2, 0, 4, 4]]> : tensor<2x7xi64>, strategy = "send_recv"}} %3#1 : (!mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@m1, [{}, {}]>>) -> !mpmd.mesh_tensor<"m0", tensor<4x4xf32>, sharding=<@m0, [{"x"}, {}]>>
    %5 = mpmd.fragment_call<mesh="m0", origin=["layer_0"]> @stage0_bwd(%4, %0, %arg3) {shardopt.cost = {seconds = 2.000000e+00 : f64}, shardopt.kind = "bwd", shardopt.stage = 0 : i64} : (!mpmd.mesh_tensor<"m0", tensor<4x4xf32>, sharding=<@m0, [{"x"}, {}]>>, !mpmd.mesh_tensor<"m0", tensor<4x4xf32>, sharding=<@m0, [{"x"}, {}]>>, !mpmd.mesh_tensor<"m0", tensor<4x4xf32>, sharding=<@m0, [{"x"}, {}]>>) -> !mpmd.mesh_tensor<"m0", tensor<4x4xf32>, sharding=<@m0, [{"x"}, {}]>>
    return %5, %3#0 : !mpmd.mesh_tensor<"m0", tensor<4x4xf32>, sharding=<@m0, [{"x"}, {}]>>, !mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@m1, [{}, {}], unreduced={"x"}>>
  }
  func.func private @stage0_prologue() -> (tensor<4x4xf32> {mhlo.sharding = "{devices=[2,1]<=[2]}"}) attributes {mesh_shape = #sdy.mesh<["x"=2]>} {
    %cst = stablehlo.constant {mhlo.sharding = "{devices=[2,1]<=[2]}"} dense<0.000000e+00> : tensor<4x4xf32>
    return %cst : tensor<4x4xf32>
  }
  func.func private @stage1_prologue() -> (tensor<4x4xf32> {mhlo.sharding = "{unreduced}"}) attributes {mesh_shape = #sdy.mesh<["x"=2]>} {
    %cst = stablehlo.constant {mhlo.sharding = "{replicated}"} dense<0.000000e+00> : tensor<4x4xf32>
    return %cst : tensor<4x4xf32>
  }
  func.func private @stage0_update(%arg0: tensor<4x4xf32> {mhlo.sharding = "{devices=[2,1]<=[2]}", tf.aliasing_output = 0 : i32}, %arg1: tensor<4x4xf32> {mhlo.sharding = "{devices=[2,1]<=[2]}"}) -> (tensor<4x4xf32> {mhlo.sharding = "{devices=[2,1]<=[2]}"}) attributes {mesh_shape = #sdy.mesh<["x"=2]>} {
    %0 = stablehlo.subtract %arg0, %arg1 {mhlo.sharding = "{devices=[2,1]<=[2]}"} : tensor<4x4xf32>
    return %0 : tensor<4x4xf32>
  }
  func.func private @stage1_update(%arg0: tensor<4x4xf32> {mhlo.sharding = "{replicated}", tf.aliasing_output = 0 : i32}, %arg1: tensor<4x4xf32> {mhlo.sharding = "{unreduced}"}) -> (tensor<4x4xf32> {mhlo.sharding = "{replicated}"}) attributes {mesh_shape = #sdy.mesh<["x"=2]>} {
    %0 = stablehlo.subtract %arg0, %arg1 {mhlo.sharding = "{replicated}"} : tensor<4x4xf32>
    return %0 : tensor<4x4xf32>
  }
  func.func private @stage0_fwd(%arg0: tensor<4x4xf32> {mhlo.sharding = "{devices=[2,1]<=[2]}"}, %arg1: tensor<4x4xf32> {mhlo.sharding = "{devices=[2,1]<=[2]}"}) -> (tensor<4x4xf32> {mhlo.sharding = "{devices=[2,1]<=[2]}"}) attributes {mesh_shape = #sdy.mesh<["x"=2]>} {
    %0 = stablehlo.add %arg0, %arg1 {mhlo.sharding = "{devices=[2,1]<=[2]}"} : tensor<4x4xf32>
    return %0 : tensor<4x4xf32>
  }
  func.func private @stage1_fwd(%arg0: tensor<4x4xf32> {mhlo.sharding = "{replicated}", tf.aliasing_output = 1 : i32}, %arg1: tensor<4x4xf32> {mhlo.sharding = "{replicated}"}, %arg2: tensor<4x4xf32> {mhlo.sharding = "{unreduced}", tf.aliasing_output = 0 : i32}, %arg3: tensor<ui32> {mhlo.sharding = "{replicated}"}) -> (tensor<4x4xf32> {mhlo.sharding = "{unreduced}"}, tensor<4x4xf32> {mhlo.sharding = "{replicated}"}) attributes {mesh_shape = #sdy.mesh<["x"=2]>} {
    %0 = stablehlo.multiply %arg0, %arg1 {mhlo.sharding = "{replicated}"} : tensor<4x4xf32>
    %1 = stablehlo.add %arg2, %arg0 {mhlo.sharding = "{replicated}"} : tensor<4x4xf32>
    return %1, %0 : tensor<4x4xf32>, tensor<4x4xf32>
  }
  func.func private @stage0_bwd(%arg0: tensor<4x4xf32> {mhlo.sharding = "{devices=[2,1]<=[2]}"}, %arg1: tensor<4x4xf32> {mhlo.sharding = "{devices=[2,1]<=[2]}"}, %arg2: tensor<4x4xf32> {mhlo.sharding = "{devices=[2,1]<=[2]}", tf.aliasing_output = 0 : i32}) -> (tensor<4x4xf32> {mhlo.sharding = "{devices=[2,1]<=[2]}"}) attributes {mesh_shape = #sdy.mesh<["x"=2]>} {
    %0 = stablehlo.multiply %arg0, %arg1 {mhlo.sharding = "{devices=[2,1]<=[2]}"} : tensor<4x4xf32>
    %1 = stablehlo.add %arg2, %0 {mhlo.sharding = "{devices=[2,1]<=[2]}"} : tensor<4x4xf32>
    return %1 : tensor<4x4xf32>
  }
}
