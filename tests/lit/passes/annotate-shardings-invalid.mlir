// RUN: split-file %s %t
// RUN: not shardopt-opt %t/none.mlir --shardopt-annotate-shardings 2>&1 | FileCheck %t/none.mlir
// RUN: not shardopt-opt %t/early.mlir --shardopt-annotate-shardings 2>&1 | FileCheck %t/early.mlir
// RUN: not shardopt-opt %t/early.mlir --shardopt-annotate-shardings="sharding-format=xla" 2>&1 | FileCheck %t/early.mlir --check-prefix=OPTION

//--- none.mlir
// CHECK: error: expected a function '@main', found none
func.func private @other()

// The negation wants what the tangent does not make: the annotations alone would leave the way to the partitioner.
//--- early.mlir
// CHECK: early.mlir:[[@LINE+4]]:8: error: expected operand 0 of 'stablehlo.negate' as [{}], found [{"x"}] (run shardopt-insert-reshards first)
// OPTION: option 'sharding-format' of shardopt-annotate-shardings expects mhlo | sdy | collectives, found 'xla'
func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> attributes {shardopt.mesh = #sdy.mesh<["x"=2]>, shardopt.strategy = "[{x}] -> [{}]"} {
  %0 = stablehlo.tanh %x {shardopt.strategy = "[{x}] -> [{x}]"} : tensor<8xf32>
  %1 = stablehlo.negate %0 {shardopt.strategy = "[{}] -> [{}]"} : tensor<8xf32>
  return %1 : tensor<8xf32>
}
