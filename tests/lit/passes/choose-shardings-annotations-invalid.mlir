// RUN: split-file %s %t
// RUN: not shardopt-opt %t/form.mlir --shardopt-shard="cluster=cpu-test:1x4 mesh=4" 2>&1 | FileCheck %t/form.mlir
// RUN: not shardopt-opt %t/donated.mlir --shardopt-shard="cluster=cpu-test:1x4 mesh=4" 2>&1 | FileCheck %t/donated.mlir
// RUN: not shardopt-opt %t/large.mlir --shardopt-shard="cluster=cpu-test:1x4 mesh=4" 2>&1 | FileCheck %t/large.mlir
// RUN: not shardopt-opt %t/staged.mlir --shardopt-shard="cluster=cpu-test:1x4 sharding-format=sdy" 2>&1 | FileCheck %t/staged.mlir
// RUN: not shardopt-opt %t/staged.mlir --shardopt-shard="cluster=cpu-test:1x4 annotations=all" 2>&1 | FileCheck %t/staged.mlir --check-prefix=OPTION

//--- form.mlir
// CHECK: form.mlir:[[@LINE+2]]:8: error: expected 'shardopt.sharding' to be {axes = ["x"], sizes = array<i64: 2>, dims = {{\[}}["x"], []]} (and open, replicated, devices), found {axes = ["a"], dims = {{\[}}["b"]], sizes = array<i64: 4>}: expected axes of the mesh (a), found 'b'
func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = stablehlo.custom_call @Sharding(%x) {shardopt.sharding = {axes = ["a"], sizes = array<i64: 4>, dims = [["b"]]}} : (tensor<8xf32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}

// An argument and the result that replaces it are one buffer.
//--- donated.mlir
// CHECK: donated.mlir:[[@LINE+2]]:24: error: the annotation [{"a"}] over a=4 and the annotation [{}] contradict each other for argument 0 on mesh mesh[x=4]
// CHECK: donated.mlir:[[@LINE+1]]:1: note: the other stands here
func.func public @main(%x: tensor<8xf32> {shardopt.sharding = {axes = ["a"], sizes = array<i64: 4>, dims = [["a"]]}, tf.aliasing_output = 0 : i32}) -> (tensor<8xf32> {shardopt.sharding = {axes = [], sizes = array<i64>, dims = [[]]}}) {
  %0 = stablehlo.negate %x : tensor<8xf32>
  return %0 : tensor<8xf32>
}

// It would fit if it were split.
//--- large.mlir
// CHECK: error: mesh 'mesh' does not fit into
// CHECK: large.mlir:[[@LINE+1]]:1: note: the user constrains 1 of the values and operations of this mesh
func.func public @main(%x: tensor<4000000000xi8> {shardopt.sharding = {axes = [], sizes = array<i64>, dims = [[]]}}) -> tensor<4000000000xi8> {
  %0 = stablehlo.negate %x : tensor<4000000000xi8>
  return %0 : tensor<4000000000xi8>
}

//--- staged.mlir
// CHECK: error: expected sharding-format=mhlo for a module with stages, found sdy
// OPTION: option 'annotations' of shardopt-choose-shardings expects keep | require | drop, found 'all'
func.func public @main(%x: !mpmd.mesh_tensor<"m0", tensor<8xf32>>) -> !mpmd.mesh_tensor<"m0", tensor<8xf32>> attributes {topology = #mpmd.topology<<"m0" : <["x"=2]>>>} {
  return %x : !mpmd.mesh_tensor<"m0", tensor<8xf32>>
}
