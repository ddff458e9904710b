// On the meshes of stages, too, what the user demands may need padding; what goes to another mesh may not.
// RUN: shardopt-opt %s --pass-pipeline='builtin.module(shardopt-choose-shardings{cluster=cpu-test:1x8})' 2>&1 | FileCheck %s
// RUN: not shardopt-opt %s --pass-pipeline='builtin.module(shardopt-choose-shardings{cluster=cpu-test:1x8 annotations=require})' 2>&1 | FileCheck %s --check-prefix=REQUIRE

// CHECK: uneven-annotations.mlir:[[@LINE+17]]:5: warning: sharding annotations that cannot be obeyed: 2 on mesh m0[x=4]; the first is [{"a"}, {}] over a=4 of argument 1: its tiles would need padding, and it goes to another mesh
// REQUIRE: error: sharding annotations that cannot be obeyed: 2 on mesh m0[x=4]

// 10 rows over four devices are tiles of 3, 3, 3 and 1, more padding than the solver would choose.
// CHECK: func.func public @main(%arg0: !mpmd.mesh_tensor<"m0", tensor<12x8xf32>, sharding=<@m0, [{"x"}, {}]>> {shardopt.shape = array<i64: 10, 8>, tf.aliasing_output = 0 : i32}
// CHECK-SAME: %arg1: !mpmd.mesh_tensor<"m0", tensor<10x8xf32>, sharding=<@m0, [{}, {"x"}]>>
// CHECK-SAME: -> (!mpmd.mesh_tensor<"m0", tensor<12x8xf32>, sharding=<@m0, [{"x"}, {}]>> {shardopt.shape = array<i64: 10, 8>},
// CHECK: stablehlo.slice %{{.*}} [0:10, 0:8]

// Inside of a fragment, padded as well.
// CHECK: stablehlo.custom_call @Sharding(%{{.*}}) {{.*}}shardopt.strategy = "{{.*}} -> [{}, {x}]"{{.*}} : (tensor<8x10xf32>) -> tensor<8x10xf32>

// CHECK: mpmd.transfer {{.*}} : (!mpmd.mesh_tensor<"m0", tensor<10x8xf32>
// CHECK: mpmd.transfer {{.*}} : (!mpmd.mesh_tensor<"m0", tensor<8x10xf32>

func.func public @main(
    %w: !mpmd.mesh_tensor<"m0", tensor<10x8xf32>> {tf.aliasing_output = 0 : i32, shardopt.sharding = {axes = ["a"], sizes = array<i64: 4>, dims = [["a"], []]}},
    %b: !mpmd.mesh_tensor<"m0", tensor<10x8xf32>> {shardopt.sharding = {axes = ["a"], sizes = array<i64: 4>, dims = [["a"], []]}})
    -> (!mpmd.mesh_tensor<"m0", tensor<10x8xf32>>, !mpmd.mesh_tensor<"m1", tensor<10x8xf32>>, !mpmd.mesh_tensor<"m1", tensor<8x10xf32>>)
    attributes {topology = #mpmd.topology<<"m0" : <["x"=4]>>, <"m1" : <["x"=4]>>>, shardopt.devices = [array<i64: 0, 1, 2, 3>, array<i64: 4, 5, 6, 7>]} {
  %0:2 = mpmd.fragment<mesh="m0", origin=["update"]> (%w) (%a: tensor<10x8xf32>) {
    %1 = stablehlo.exponential %a : tensor<10x8xf32>
    %2 = stablehlo.transpose %a, dims = [1, 0] : (tensor<10x8xf32>) -> tensor<8x10xf32>
    %3 = stablehlo.custom_call @Sharding(%2) {shardopt.sharding = {axes = ["a"], sizes = array<i64: 4>, dims = [[], ["a"]]}} : (tensor<8x10xf32>) -> tensor<8x10xf32>
    %4 = stablehlo.tanh %3 : tensor<8x10xf32>
    %5 = stablehlo.custom_call @Sharding(%4) {shardopt.sharding = {axes = ["a"], sizes = array<i64: 4>, dims = [[], ["a"]]}} : (tensor<8x10xf32>) -> tensor<8x10xf32>
    mpmd.return %1, %5 : tensor<10x8xf32>, tensor<8x10xf32>
  } : (!mpmd.mesh_tensor<"m0", tensor<10x8xf32>>) -> (!mpmd.mesh_tensor<"m0", tensor<10x8xf32>>, !mpmd.mesh_tensor<"m0", tensor<8x10xf32>>)
  %6 = mpmd.transfer %b : (!mpmd.mesh_tensor<"m0", tensor<10x8xf32>>) -> !mpmd.mesh_tensor<"m1", tensor<10x8xf32>>
  %7 = mpmd.transfer %0#1 : (!mpmd.mesh_tensor<"m0", tensor<8x10xf32>>) -> !mpmd.mesh_tensor<"m1", tensor<8x10xf32>>
  return %0#0, %6, %7 : !mpmd.mesh_tensor<"m0", tensor<10x8xf32>>, !mpmd.mesh_tensor<"m1", tensor<10x8xf32>>, !mpmd.mesh_tensor<"m1", tensor<8x10xf32>>
}
