// RUN: split-file %s %t
// RUN: not shardopt-opt %t/plain.mlir --shardopt-shard-stages=cluster=cpu-test 2>&1 | FileCheck %t/plain.mlir
// RUN: not shardopt-opt %t/plain.mlir --shardopt-shard-stages="cluster=cpu-test mesh=2y2" 2>&1 | FileCheck %t/plain.mlir --check-prefix=SHAPE
// RUN: not shardopt-opt %t/plain.mlir --shardopt-shard-stages="cluster=cpu-test mesh=4x4" 2>&1 | FileCheck %t/plain.mlir --check-prefix=COUNT
// RUN: not shardopt-opt %t/plain.mlir --shardopt-shard-stages=mesh=4 2>&1 | FileCheck %t/plain.mlir --check-prefix=CLUSTER
// RUN: not shardopt-opt %t/plain.mlir --shardopt-shard-stages="cluster=cpu-test mesh=4 intra-op=zero" 2>&1 | FileCheck %t/plain.mlir --check-prefix=PRESET
// RUN: not shardopt-opt %t/plain.mlir --shardopt-shard-stages="cluster=cpu-test mesh=4 memory-fraction=2" 2>&1 | FileCheck %t/plain.mlir --check-prefix=FRACTION
// RUN: not shardopt-opt %t/large.mlir --shardopt-shard-stages="cluster=cpu-test mesh=4" 2>&1 | FileCheck %t/large.mlir
// RUN: not shardopt-opt %t/mesh.mlir --shardopt-shard-stages=cluster=cpu-test 2>&1 | FileCheck %t/mesh.mlir
// RUN: not shardopt-opt %t/none.mlir --shardopt-shard-stages=cluster=cpu-test 2>&1 | FileCheck %t/none.mlir

//--- plain.mlir
// CHECK: plain.mlir:[[@LINE+6]]:1: error: expected a topology on '@main' or a mesh option such as '2x2', found none
// SHAPE: error: expected the shape of a mesh with one to three axes, such as '2x2', found '2y2'
// COUNT: error: mesh 4x4 needs 16 devices, cluster cpu-test:1x4 has 4
// CLUSTER: error: expected attribute 'shardopt.cluster' on the module
// PRESET: option 'intra-op' of shardopt-shard-stages expects ilp | data | {{.*}}, found 'zero'
// FRACTION: memory-fraction must lie between 0 and 1, found 2.0
func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  return %x : tensor<8xf32>
}

//--- large.mlir
// CHECK: error: no sharding found on mesh mesh[x=4]: memory: every assignment needs at least 4000000000 bytes at some time, the limit is 1932735283 bytes
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
