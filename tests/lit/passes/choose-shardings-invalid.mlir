// RUN: split-file %s %t
// RUN: not shardopt-opt %t/plain.mlir --shardopt-shard=cluster=cpu-test 2>&1 | FileCheck %t/plain.mlir
// RUN: not shardopt-opt %t/plain.mlir --shardopt-shard="cluster=cpu-test mesh=2y2" 2>&1 | FileCheck %t/plain.mlir --check-prefix=SHAPE
// RUN: not shardopt-opt %t/plain.mlir --shardopt-shard="cluster=cpu-test mesh=4x4" 2>&1 | FileCheck %t/plain.mlir --check-prefix=COUNT
// RUN: not shardopt-opt %t/plain.mlir --shardopt-shard=mesh=4 2>&1 | FileCheck %t/plain.mlir --check-prefix=CLUSTER
// RUN: not shardopt-opt %t/plain.mlir --shardopt-shard="cluster=cpu-test mesh=4 intra-op=zero" 2>&1 | FileCheck %t/plain.mlir --check-prefix=PRESET
// RUN: not shardopt-opt %t/plain.mlir --shardopt-shard="cluster=cpu-test mesh=4 memory-fraction=2" 2>&1 | FileCheck %t/plain.mlir --check-prefix=FRACTION
// RUN: not shardopt-opt %t/large.mlir --shardopt-shard="cluster=cpu-test mesh=4" 2>&1 | FileCheck %t/large.mlir
// RUN: not shardopt-opt %t/large.mlir --shardopt-shard="cluster=cpu-test mesh=4 memory-budget=1.5GB" 2>&1 | FileCheck %t/large.mlir --check-prefix=BUDGET
// RUN: not shardopt-opt %t/plain.mlir --shardopt-shard="cluster=cpu-test mesh=4 memory-budget=lots" 2>&1 | FileCheck %t/plain.mlir --check-prefix=BYTES
// RUN: not shardopt-opt %t/mesh.mlir --shardopt-shard=cluster=cpu-test 2>&1 | FileCheck %t/mesh.mlir
// RUN: not shardopt-opt %t/none.mlir --shardopt-shard=cluster=cpu-test 2>&1 | FileCheck %t/none.mlir
// RUN: not shardopt-opt %t/dynamic.mlir --shardopt-shard="cluster=cpu-test mesh=4" 2>&1 | FileCheck %t/dynamic.mlir
// RUN: not shardopt-opt %t/token.mlir --shardopt-shard="cluster=cpu-test mesh=4" 2>&1 | FileCheck %t/token.mlir

//--- dynamic.mlir
// CHECK: dynamic.mlir:[[@LINE+2]]:8: error: expected ranked tensors of static shape, found tensor<?xf32>
func.func public @main(%x: tensor<8xf32>, %n: tensor<1xi32>) -> tensor<8xf32> {
  %0 = stablehlo.dynamic_iota %n, dim = 0 : (tensor<1xi32>) -> tensor<?xf32>
  return %x : tensor<8xf32>
}

//--- token.mlir
// CHECK: token.mlir:[[@LINE+2]]:8: error: expected ranked tensors of static shape, found !stablehlo.token
func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  %t = stablehlo.create_token : !stablehlo.token
  return %x : tensor<8xf32>
}

//--- plain.mlir
// CHECK: plain.mlir:[[@LINE+7]]:1: error: expected a topology on '@main' or a mesh option such as '2x2', found none
// SHAPE: error: expected the shape of a mesh with one to four axes, such as '2x2' or 'data:2,model:2', found '2y2'
// COUNT: error: mesh 4x4 needs 16 devices, cluster cpu-test:1x4 has 4
// CLUSTER: error: expected attribute 'shardopt.cluster' on the module
// PRESET: option 'intra-op' of shardopt-rotate-keys expects auto | ilp | data | {{.*}}, found 'zero'
// BYTES: expected bytes such as 1073741824, 512MiB or 1.5GB, found 'lots'
// FRACTION: memory-fraction must lie between 0 and 1, found 2.0
func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  return %x : tensor<8xf32>
}

//--- large.mlir
// CHECK: large.mlir:[[@LINE+6]]:8: error: mesh 'mesh' does not fit into 1932735283 bytes (1.80 GiB) a device (at least 2067264717 bytes too few)
// CHECK-SAME: the smallest budget found to work is 4000000000 bytes (3.73 GiB), and none below does
// CHECK: note: the smallest peak is reached at 'negate', where a device holds
// BUDGET: error: mesh 'mesh' does not fit into 1500000000 bytes (1.40 GiB) a device (at least 2500000000 bytes too few)
// CHECK-SAME: 2000000000 bytes of argument 1 (tensor<8000000000xi8>, [{"x"}])
func.func public @main(%x: tensor<4000000000xi8>, %y: tensor<8000000000xi8>) -> tensor<4000000000xi8> {
  %0 = stablehlo.negate %x : tensor<4000000000xi8>
  return %0 : tensor<4000000000xi8>
}

//--- mesh.mlir
// CHECK: error: expected a mesh of the topology (m0), found 'm1'
func.func public @main(%x: !mpmd.mesh_tensor<"m0", tensor<8xf32>>, %y: !mpmd.mesh_tensor<"m1", tensor<8xf32>>) -> !mpmd.mesh_tensor<"m0", tensor<8xf32>> attributes {topology = #mpmd.topology<<"m0" : <["x"=2]>>>} {
  return %x : !mpmd.mesh_tensor<"m0", tensor<8xf32>>
}

//--- none.mlir
// CHECK: error: expected a function '@main', found none
func.func private @other()
