// State that a mesh does not divide has its padding in its type; the fragment cuts it off and puts it on again.
// RUN: shardopt-opt %s --pass-pipeline='builtin.module(shardopt-choose-shardings{cluster=cpu-test:1x8})' | FileCheck %s
// RUN: shardopt-opt %s --shardopt-shard="cluster=cpu-test:1x8" | FileCheck %s --check-prefix=SHARDED

// 1003 rows over four devices are tiles of 251, 251, 251 and 250.
// CHECK: func.func public @main(%arg0: !mpmd.mesh_tensor<"m0", tensor<1004x1005xf32>, sharding=<@m0, [{"x"}, {}]>> {shardopt.shape = array<i64: 1003, 1005>, tf.aliasing_output = 0 : i32}
// CHECK-SAME: -> (!mpmd.mesh_tensor<"m0", tensor<1004x1005xf32>, sharding=<@m0, [{"x"}, {}]>> {shardopt.shape = array<i64: 1003, 1005>},
// CHECK-SAME: !mpmd.mesh_tensor<"m1", tensor<1003x1005xf32>, sharding=<@m1, [{}, {}]>>)
// CHECK: mpmd.fragment<mesh="m0", origin=["update"]> (%arg0)
// CHECK-SAME: (%[[P:.*]]: tensor<1004x1005xf32>)
// CHECK: %[[W:.*]] = stablehlo.slice %[[P]] [0:1003, 0:1005] {shardopt.strategy = "[{x}, {}] -> [{x}, {}]"}
// CHECK: %[[N:.*]] = stablehlo.exponential %[[W]] {shardopt.strategy = "[{x}, {}] -> [{x}, {}]"} : tensor<1003x1005xf32>
// CHECK: %[[Z:.*]] = stablehlo.constant {shardopt.strategy = "-> []"} dense<0.000000e+00> : tensor<f32>
// CHECK: %[[Q:.*]] = stablehlo.pad %[[N]], %[[Z]], low = [0, 0], high = [1, 0], interior = [0, 0] {shardopt.strategy = "[{x}, {}], [] -> [{x}, {}]"}
// CHECK: mpmd.return %[[Q]] : tensor<1004x1005xf32>

// What goes to another mesh stays even.
// CHECK: mpmd.transfer {{.*}} : (!mpmd.mesh_tensor<"m0", tensor<1003x1005xf32>, sharding=<@m0, [{}, {}]>>)

// SHARDED: stablehlo.slice %{{.*}} [0:1003, 0:1005] {mhlo.sharding = "{devices=[4,1]<=[4]}"}
// SHARDED: stablehlo.pad {{.*}}{mhlo.sharding = "{devices=[4,1]<=[4]}"}

func.func public @main(%w: !mpmd.mesh_tensor<"m0", tensor<1003x1005xf32>> {tf.aliasing_output = 0 : i32}, %b: !mpmd.mesh_tensor<"m0", tensor<1003x1005xf32>>)
    -> (!mpmd.mesh_tensor<"m0", tensor<1003x1005xf32>>, !mpmd.mesh_tensor<"m1", tensor<1003x1005xf32>>)
    attributes {topology = #mpmd.topology<<"m0" : <["x"=4]>>, <"m1" : <["x"=4]>>>, shardopt.devices = [array<i64: 0, 1, 2, 3>, array<i64: 4, 5, 6, 7>]} {
  %0 = mpmd.fragment<mesh="m0", origin=["update"]> (%w) (%a: tensor<1003x1005xf32>) {
    %1 = stablehlo.exponential %a : tensor<1003x1005xf32>
    mpmd.return %1 : tensor<1003x1005xf32>
  } : (!mpmd.mesh_tensor<"m0", tensor<1003x1005xf32>>) -> !mpmd.mesh_tensor<"m0", tensor<1003x1005xf32>>
  %t = mpmd.transfer %b : (!mpmd.mesh_tensor<"m0", tensor<1003x1005xf32>>) -> !mpmd.mesh_tensor<"m1", tensor<1003x1005xf32>>
  return %0, %t : !mpmd.mesh_tensor<"m0", tensor<1003x1005xf32>>, !mpmd.mesh_tensor<"m1", tensor<1003x1005xf32>>
}
