// RUN: shardopt-opt %s --shardopt-shard="cluster=cpu-test memory-fraction=0" | FileCheck %s
// RUN: shardopt-opt %s --shardopt-shard="cluster=cpu-test intra-op=replicate" | FileCheck %s --check-prefix=WHOLE

// Two stages, a loop with an accumulator. Accumulators and donated arguments have one sharding before and after.

// CHECK-LABEL: func.func public @main
// CHECK-SAME: %arg0: !mpmd.mesh_tensor<"m0", tensor<1024x1024xf32>, sharding=<@m0, [[W0:\[.*"x".*\]]]>> {tf.aliasing_output = 0 : i32}
// CHECK-SAME: %arg1: !mpmd.mesh_tensor<"m1", tensor<1024x1024xf32>, sharding=<@m1, [[W1:\[.*"x".*\]]]>> {tf.aliasing_output = 1 : i32}
// CHECK-SAME: -> (!mpmd.mesh_tensor<"m0", tensor<1024x1024xf32>, sharding=<@m0, [[W0]]>>, !mpmd.mesh_tensor<"m1", tensor<1024x1024xf32>, sharding=<@m1, [[W1]]>>)
// CHECK: %[[INIT:.*]] = mpmd.fragment<mesh="m1"
// CHECK-SAME: shardopt.cost = {collectives = [], communication_bytes = 0 : i64, {{.*}}peak_bytes = {{[0-9]+}} : i64, seconds = {{.*}} : f64}
// CHECK: stablehlo.constant {mhlo.sharding = "{devices=
// CHECK: mpmd.return
// CHECK: sharding=<@m1, [[ACC:\[.*"x".*\]]]>>
// CHECK: mpmd.for (%[[INIT]]) {iterations = 4 : ui32} (%{{.*}}: !mpmd.mesh_tensor<"m1", tensor<1024x1024xf32>, sharding=<@m1, [[ACC]]>>
// CHECK-SAME: %index: !mpmd.mesh_tensor<"m0", tensor<ui32>, sharding=<@m0, []>>
// CHECK: mpmd.fragment<mesh="m1", origin=["update"], stage=1>
// CHECK-LABEL: func.func private @microbatch
// CHECK: stablehlo.dot_general {{.*}}mhlo.sharding = "{devices=
// CHECK: mpmd.transfer {{.*}}sharding=<@m0, [[H:\[.*\]]]>>) -> !mpmd.mesh_tensor<"m1", tensor<64x1024xf32>, sharding=<@m1,

// With replicate every value is whole.
// WHOLE-NOT: {devices=
// WHOLE-NOT: {"x"}
// WHOLE: stablehlo.dot_general {{.*}}mhlo.sharding = "{replicated}"

module {
  func.func public @main(%w0: !mpmd.mesh_tensor<"m0", tensor<1024x1024xf32>> {tf.aliasing_output = 0 : i32}, %w1: !mpmd.mesh_tensor<"m1", tensor<1024x1024xf32>> {tf.aliasing_output = 1 : i32}, %x: !mpmd.mesh_tensor<"m0", tensor<4x64x1024xf32>>) -> (!mpmd.mesh_tensor<"m0", tensor<1024x1024xf32>>, !mpmd.mesh_tensor<"m1", tensor<1024x1024xf32>>) attributes {topology = #mpmd.topology<<"m0" : <["x"=2]>>, <"m1" : <["x"=2]>>>, shardopt.devices = [array<i64: 0, 1>, array<i64: 2, 3>]} {
    %init = mpmd.fragment<mesh="m1", origin=["prologue"], stage=1> () {shardopt.kind = "prologue"} () {
      %z = stablehlo.constant dense<0.0> : tensor<1024x1024xf32>
      mpmd.return %z : tensor<1024x1024xf32>
    } : () -> !mpmd.mesh_tensor<"m1", tensor<1024x1024xf32>>
    %g = mpmd.for (%init) {iterations = 4 : ui32} (%acc: !mpmd.mesh_tensor<"m1", tensor<1024x1024xf32>>, %i: !mpmd.mesh_tensor<"m0", tensor<ui32>>) {
      %n = mpmd.call @microbatch(%w0, %w1, %x, %acc, %i) {call_counter = 0 : ui32} : (!mpmd.mesh_tensor<"m0", tensor<1024x1024xf32>>, !mpmd.mesh_tensor<"m1", tensor<1024x1024xf32>>, !mpmd.mesh_tensor<"m0", tensor<4x64x1024xf32>>, !mpmd.mesh_tensor<"m1", tensor<1024x1024xf32>>, !mpmd.mesh_tensor<"m0", tensor<ui32>>) -> !mpmd.mesh_tensor<"m1", tensor<1024x1024xf32>>
      mpmd.return %n : !mpmd.mesh_tensor<"m1", tensor<1024x1024xf32>>
    } : !mpmd.mesh_tensor<"m1", tensor<1024x1024xf32>>
    %u = mpmd.fragment<mesh="m1", origin=["update"], stage=1> (%w1, %g) {shardopt.kind = "update"} (%a: tensor<1024x1024xf32>, %b: tensor<1024x1024xf32>) {
      %s = stablehlo.subtract %a, %b : tensor<1024x1024xf32>
      mpmd.return %s : tensor<1024x1024xf32>
    } : (!mpmd.mesh_tensor<"m1", tensor<1024x1024xf32>>, !mpmd.mesh_tensor<"m1", tensor<1024x1024xf32>>) -> !mpmd.mesh_tensor<"m1", tensor<1024x1024xf32>>
    return %w0, %u : !mpmd.mesh_tensor<"m0", tensor<1024x1024xf32>>, !mpmd.mesh_tensor<"m1", tensor<1024x1024xf32>>
  }
  func.func private @microbatch(%w0: !mpmd.mesh_tensor<"m0", tensor<1024x1024xf32>>, %w1: !mpmd.mesh_tensor<"m1", tensor<1024x1024xf32>>, %x: !mpmd.mesh_tensor<"m0", tensor<4x64x1024xf32>>, %acc: !mpmd.mesh_tensor<"m1", tensor<1024x1024xf32>>, %i: !mpmd.mesh_tensor<"m0", tensor<ui32>>) -> !mpmd.mesh_tensor<"m1", tensor<1024x1024xf32>> attributes {topology = #mpmd.topology<<"m0" : <["x"=2]>>, <"m1" : <["x"=2]>>>} {
    %h = mpmd.fragment<mesh="m0", origin=["forward"], stage=0> (%w0, %x, %i) {shardopt.kind = "fwd"} (%w: tensor<1024x1024xf32>, %b: tensor<4x64x1024xf32>, %k: tensor<ui32>) {
      %zero = stablehlo.constant dense<0> : tensor<ui32>
      %cut = stablehlo.dynamic_slice %b, %k, %zero, %zero, sizes = [1, 64, 1024] : (tensor<4x64x1024xf32>, tensor<ui32>, tensor<ui32>, tensor<ui32>) -> tensor<1x64x1024xf32>
      %row = stablehlo.reshape %cut : (tensor<1x64x1024xf32>) -> tensor<64x1024xf32>
      %d = stablehlo.dot_general %row, %w, contracting_dims = [1] x [0] : (tensor<64x1024xf32>, tensor<1024x1024xf32>) -> tensor<64x1024xf32>
      mpmd.return %d : tensor<64x1024xf32>
    } : (!mpmd.mesh_tensor<"m0", tensor<1024x1024xf32>>, !mpmd.mesh_tensor<"m0", tensor<4x64x1024xf32>>, !mpmd.mesh_tensor<"m0", tensor<ui32>>) -> !mpmd.mesh_tensor<"m0", tensor<64x1024xf32>>
    %t = mpmd.transfer %h : (!mpmd.mesh_tensor<"m0", tensor<64x1024xf32>>) -> !mpmd.mesh_tensor<"m1", tensor<64x1024xf32>>
    %n = mpmd.fragment<mesh="m1", origin=["forward"], stage=1> (%w1, %t, %acc) {shardopt.kind = "fwd"} (%w: tensor<1024x1024xf32>, %r: tensor<64x1024xf32>, %a: tensor<1024x1024xf32>) {
      %y = stablehlo.dot_general %r, %w, contracting_dims = [1] x [0] : (tensor<64x1024xf32>, tensor<1024x1024xf32>) -> tensor<64x1024xf32>
      %p = stablehlo.dot_general %r, %y, contracting_dims = [0] x [0] : (tensor<64x1024xf32>, tensor<64x1024xf32>) -> tensor<1024x1024xf32>
      %s = stablehlo.add %a, %p : tensor<1024x1024xf32>
      mpmd.return %s : tensor<1024x1024xf32>
    } : (!mpmd.mesh_tensor<"m1", tensor<1024x1024xf32>>, !mpmd.mesh_tensor<"m1", tensor<64x1024xf32>>, !mpmd.mesh_tensor<"m1", tensor<1024x1024xf32>>) -> !mpmd.mesh_tensor<"m1", tensor<1024x1024xf32>>
    return %n : !mpmd.mesh_tensor<"m1", tensor<1024x1024xf32>>
  }
}
