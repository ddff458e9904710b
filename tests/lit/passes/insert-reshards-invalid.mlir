// RUN: split-file %s %t
// RUN: not shardopt-opt %t/none.mlir --shardopt-insert-reshards 2>&1 | FileCheck %t/none.mlir
// RUN: not shardopt-opt %t/early.mlir --shardopt-insert-reshards 2>&1 | FileCheck %t/early.mlir
// RUN: not shardopt-opt %t/text.mlir --shardopt-insert-reshards 2>&1 | FileCheck %t/text.mlir

//--- none.mlir
// CHECK: error: expected a topology or 'shardopt.mesh' on '@main' (run shardopt-choose-shardings first), found none
func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  return %x : tensor<8xf32>
}

//--- early.mlir
// CHECK: early.mlir:[[@LINE+1]]:1: error: expected no 'shardopt.rematerialize' (run shardopt-rematerialize first), found some
func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> attributes {shardopt.mesh = #sdy.mesh<["x"=2]>, shardopt.strategy = "[{}] -> [{}]", shardopt.rematerialize = [{operand = 0 : i64, readers = array<i64: 0>}]} {
  %0 = stablehlo.tanh %x {shardopt.strategy = "[{}] -> [{}]"} : tensor<8xf32>
  return %0 : tensor<8xf32>
}

//--- text.mlir
// CHECK: error: expected 1 shardings behind 'from', found '[{}] -> [{}] from [{}], [{}]'
func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> attributes {shardopt.mesh = #sdy.mesh<["x"=2]>, shardopt.strategy = "[{}] -> [{}]"} {
  %0 = stablehlo.tanh %x {shardopt.strategy = "[{}] -> [{}] from [{}], [{}]"} : tensor<8xf32>
  return %0 : tensor<8xf32>
}
