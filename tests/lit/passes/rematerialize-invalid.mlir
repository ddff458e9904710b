// Modules in which no shardings were chosen.
// RUN: split-file %s %t
// RUN: not shardopt-opt %t/none.mlir --shardopt-rematerialize 2>&1 | FileCheck %t/none.mlir
// RUN: not shardopt-opt %t/staged.mlir --shardopt-rematerialize 2>&1 | FileCheck %t/staged.mlir
// RUN: not shardopt-opt %t/strategy.mlir --shardopt-rematerialize 2>&1 | FileCheck %t/strategy.mlir

//--- none.mlir
// CHECK: error: expected a topology or 'shardopt.mesh' on '@main' (run shardopt-choose-shardings first), found none
func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  return %x : tensor<8xf32>
}

//--- staged.mlir
// CHECK: error: expected a mesh tensor with a sharding (run shardopt-choose-shardings first), found !mpmd.mesh_tensor<"m0", tensor<8xf32>>
func.func public @main(%x: !mpmd.mesh_tensor<"m0", tensor<8xf32>>) -> !mpmd.mesh_tensor<"m0", tensor<8xf32>> attributes {topology = #mpmd.topology<<"m0" : <["x"=2]>>>} {
  %f = mpmd.fragment<mesh="m0", origin=["a"]> (%x) {shardopt.rematerialize = []} (%a: tensor<8xf32>) {
    mpmd.return %a : tensor<8xf32>
  } : (!mpmd.mesh_tensor<"m0", tensor<8xf32>>) -> !mpmd.mesh_tensor<"m0", tensor<8xf32>>
  return %f : !mpmd.mesh_tensor<"m0", tensor<8xf32>>
}

//--- strategy.mlir
// CHECK: error: expected attribute 'shardopt.strategy' on 'stablehlo.tanh', found none
func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> attributes {shardopt.mesh = #sdy.mesh<["x"=2]>, shardopt.strategy = "[{}] -> [{}]", shardopt.rematerialize = []} {
  %0 = stablehlo.tanh %x : tensor<8xf32>
  return %0 : tensor<8xf32>
}
