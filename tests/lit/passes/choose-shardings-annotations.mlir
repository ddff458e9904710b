// What users ask for is obeyed: on arguments, on results, on values, in loops, on the meshes of stages.
// RUN: split-file %s %t
// RUN: shardopt-opt %t/values.mlir --pass-pipeline='builtin.module(shardopt-intra{cluster=cpu-test:1x8 mesh=2x4 annotations=require})' | FileCheck %t/values.mlir
// RUN: shardopt-opt %t/values.mlir --pass-pipeline='builtin.module(shardopt-intra{cluster=cpu-test:1x8 mesh=2x2x2 annotations=require})' | FileCheck %t/values.mlir
// RUN: shardopt-opt %t/values.mlir --pass-pipeline='builtin.module(shardopt-intra{cluster=cpu-test:1x8 mesh=4x2})' -o %t/other.mlir 2>&1 | FileCheck %t/values.mlir --check-prefix=OTHER
// RUN: not shardopt-opt %t/values.mlir --pass-pipeline='builtin.module(shardopt-intra{cluster=cpu-test:1x8 mesh=4x2 annotations=require})' 2>&1 | FileCheck %t/values.mlir --check-prefix=REQUIRE
// RUN: shardopt-opt %t/values.mlir --shardopt-import --shardopt-shard="cluster=cpu-test:1x8 mesh=8 annotations=drop" | FileCheck %t/values.mlir --check-prefix=DROP
// RUN: shardopt-opt %t/order.mlir --pass-pipeline='builtin.module(shardopt-intra{cluster=cpu-test:1x4 mesh=2x2 annotations=require})' | FileCheck %t/order.mlir
// RUN: shardopt-opt %t/loop.mlir --pass-pipeline='builtin.module(shardopt-intra{cluster=cpu-test:1x4 mesh=4 annotations=require})' | FileCheck %t/loop.mlir
// RUN: shardopt-opt %t/stages.mlir --shardopt-shard="cluster=cpu-test:1x4" 2>&1 | FileCheck %t/stages.mlir

// The same tiles, however the mesh is cut into axes. A matrix product of two whole matrices is none of the cheapest
// ways to an odd sharding: the value is moved behind it.
//--- values.mlir
// OTHER: values.mlir:[[@LINE+16]]:24: warning: sharding annotations that cannot be obeyed: 2 on mesh mesh[x=4, y=2]; the first is [{"mp"}, {}] over dp=2, mp=4 of argument 0: its tiles are not those of axes of mesh mesh[x=4, y=2]
// REQUIRE: values.mlir:[[@LINE+15]]:24: error: sharding annotations that cannot be obeyed: 2 on mesh mesh[x=4, y=2]; the first is
// DROP-NOT: shardopt.sharding
// CHECK-NOT: warning
// CHECK-LABEL: func.func public @main
// CHECK-SAME: %arg0: tensor<8x8xf32> {mhlo.sharding = "{devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}", tf.aliasing_output = 0 : i32}
// CHECK-SAME: %arg1: tensor<8x8xf32> {mhlo.sharding = "{replicated}"}
// CHECK-SAME: -> (tensor<8x8xf32> {mhlo.sharding = "{devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}"}, tensor<8x8xf32> {mhlo.sharding = "{devices=[2,4]<=[8]}"})
// CHECK: %[[D:.*]] = stablehlo.dot_general
// CHECK: stablehlo.custom_call @Sharding(%{{.*}}) {mhlo.sharding = "{devices=[2,4]<=[8]}"}
// CHECK-NOT: shardopt.sharding

// The argument is donated: the result that replaces it is kept as it is, without saying so itself.

sdy.mesh @mesh = <["dp"=2, "mp"=4]>

func.func public @main(%w: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"mp"}, {}]>, tf.aliasing_output = 0 : i32}, %x: tensor<8x8xf32> {mhlo.sharding = "{replicated}"}) -> (tensor<8x8xf32>, tensor<8x8xf32>) {
  %0 = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %1 = sdy.sharding_constraint %0 <@mesh, [{"dp"}, {"mp"}]> : tensor<8x8xf32>
  %2 = stablehlo.transpose %x, dims = [1, 0] : (tensor<8x8xf32>) -> tensor<8x8xf32>
  return %2, %1 : tensor<8x8xf32>, tensor<8x8xf32>
}

// Axes of one dimension in another order than the planner ever chooses.
//--- order.mlir
// CHECK: func.func public @main(%arg0: tensor<8xf32> {mhlo.sharding = "{devices=[4]<=[2,2]T(1,0)}"}) -> (tensor<8xf32> {mhlo.sharding = "{devices=[4]<=[4]}"})
func.func public @main(%x: tensor<8xf32> {mhlo.sharding = "{devices=[4]<=[2,2]T(1,0)}"}) -> (tensor<8xf32> {mhlo.sharding = "{devices=[4]<=[4]}"}) {
  return %x : tensor<8xf32>
}

// A constraint in a loop that stays rolled.
//--- loop.mlir
// CHECK: stablehlo.while
// CHECK: do
// CHECK: stablehlo.dot_general
// CHECK: stablehlo.custom_call @Sharding(%{{.*}}) {mhlo.sharding = "{devices=[1,4]<=[4]}"}
func.func public @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %r:2 = stablehlo.while(%i = %zero, %v = %x) : tensor<i32>, tensor<8x8xf32>
  cond {
    %n = stablehlo.constant dense<2> : tensor<i32>
    %c = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %j = stablehlo.add %i, %one : tensor<i32>
    %d = stablehlo.dot_general %v, %v, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    %w = stablehlo.custom_call @Sharding(%d) {mhlo.sharding = "{devices=[1,4]<=[4]}"} : (tensor<8x8xf32>) -> tensor<8x8xf32>
    stablehlo.return %j, %w : tensor<i32>, tensor<8x8xf32>
  }
  return %r#1 : tensor<8x8xf32>
}

// Two stages of two devices: what is meant for two is obeyed on each, what is meant for four is not.
//--- stages.mlir
// CHECK: stages.mlir:[[@LINE+8]]:24: warning: sharding annotations that cannot be obeyed: 1 on mesh m1[x=2]; the first is [{"a"}] over a=4 of argument 1: it is over 4 devices, mesh m1[x=2] has 2
// CHECK-LABEL: func.func public @main
// CHECK-SAME: %arg0: !mpmd.mesh_tensor<"m0", tensor<8x8xf32>, sharding=<@m0, [{}, {"x"}]>>
// CHECK-SAME: -> !mpmd.mesh_tensor<"m1", tensor<8x8xf32>, sharding=<@m1, [{}, {"x"}]>>
// CHECK: mpmd.fragment<mesh="m0"
// CHECK: stablehlo.custom_call @Sharding(%{{.*}}) {mhlo.sharding = "{devices=[2,1]<=[2]}"}
// CHECK: mpmd.fragment<mesh="m1"
func.func public @main(%w: !mpmd.mesh_tensor<"m0", tensor<8x8xf32>> {shardopt.sharding = {axes = ["a"], sizes = array<i64: 2>, dims = [[], ["a"]]}},
                       %b: !mpmd.mesh_tensor<"m1", tensor<8xf32>> {shardopt.sharding = {axes = ["a"], sizes = array<i64: 4>, dims = [["a"]]}})
    -> (!mpmd.mesh_tensor<"m1", tensor<8x8xf32>> {shardopt.sharding = {axes = ["a"], sizes = array<i64: 2>, dims = [[], ["a"]]}})
    attributes {topology = #mpmd.topology<<"m0" : <["x"=2]>>, <"m1" : <["x"=2]>>>} {
  %0 = mpmd.fragment<mesh="m0", origin=["a"]> (%w) (%a: tensor<8x8xf32>) {
    %1 = stablehlo.tanh %a : tensor<8x8xf32>
    %2 = stablehlo.custom_call @Sharding(%1) {shardopt.sharding = {axes = ["a"], sizes = array<i64: 2>, dims = [["a"], []]}} : (tensor<8x8xf32>) -> tensor<8x8xf32>
    mpmd.return %2 : tensor<8x8xf32>
  } : (!mpmd.mesh_tensor<"m0", tensor<8x8xf32>>) -> !mpmd.mesh_tensor<"m0", tensor<8x8xf32>>
  %3 = mpmd.transfer %0 : (!mpmd.mesh_tensor<"m0", tensor<8x8xf32>>) -> !mpmd.mesh_tensor<"m1", tensor<8x8xf32>>
  %4 = mpmd.fragment<mesh="m1", origin=["b"]> (%3, %b) (%a: tensor<8x8xf32>, %c: tensor<8xf32>) {
    %5 = stablehlo.broadcast_in_dim %c, dims = [1] : (tensor<8xf32>) -> tensor<8x8xf32>
    %6 = stablehlo.add %a, %5 : tensor<8x8xf32>
    mpmd.return %6 : tensor<8x8xf32>
  } : (!mpmd.mesh_tensor<"m1", tensor<8x8xf32>>, !mpmd.mesh_tensor<"m1", tensor<8xf32>>) -> !mpmd.mesh_tensor<"m1", tensor<8x8xf32>>
  return %4 : !mpmd.mesh_tensor<"m1", tensor<8x8xf32>>
}
