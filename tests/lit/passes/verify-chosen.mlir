// The form holds of what shardopt-choose-shardings leaves, with stages and without; nothing changes.
// RUN: shardopt-opt %S/Inputs/chosen.mlir --shardopt-verify-chosen -o %t.mlir
// RUN: shardopt-opt %S/Inputs/chosen.mlir | diff %t.mlir -
// RUN: shardopt-opt %s --shardopt-choose-shardings="cluster=cpu-test:1x4 mesh=2x2" --shardopt-verify-chosen | FileCheck %s

// CHECK: shardopt.mesh = #sdy.mesh<["x"=2, "y"=2]>
// CHECK-SAME: shardopt.strategy = "[{{.*}}] -> [{{.*}}]"
// CHECK: stablehlo.tanh %arg0 {shardopt.strategy = "[{{.*}}] -> [{{.*}}]"}
func.func public @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = stablehlo.tanh %x : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}
