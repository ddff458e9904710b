// Modules in which no shardings were chosen, or others than a rule has.
// RUN: split-file %s %t
// RUN: not shardopt-opt %t/none.mlir --shardopt-localize-calls 2>&1 | FileCheck %t/none.mlir
// RUN: not shardopt-opt %t/rule.mlir --shardopt-localize-calls 2>&1 | FileCheck %t/rule.mlir

//--- none.mlir
// CHECK: error: expected a topology or 'shardopt.mesh' on '@main' (run shardopt-choose-shardings first), found none
func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  return %x : tensor<8xf32>
}

//--- rule.mlir
// CHECK: rule.mlir:[[@LINE+2]]:8: error: '@mine' cannot be split as chosen: its operands and results are split in different ways
func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> attributes {shardopt.mesh = #sdy.mesh<["x"=2]>, shardopt.strategy = "[{x}] -> [{}]"} {
  %0 = stablehlo.custom_call @mine(%x) {sdy.sharding_rule = #sdy.op_sharding_rule<([i])->([i]) {i=8}, custom>, shardopt.strategy = "[{x}] -> [{}]"} : (tensor<8xf32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}
