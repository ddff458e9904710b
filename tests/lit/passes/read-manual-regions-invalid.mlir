// RUN: split-file %s %t
// RUN: not shardopt-opt %t/order.mlir --shardopt-read-manual-regions 2>&1 | FileCheck %t/order.mlir
// RUN: not shardopt-opt %t/other.mlir --shardopt-intra='mesh=4 cluster=cpu-test:1x4' 2>&1 | FileCheck %t/other.mlir
// RUN: not shardopt-opt %t/other.mlir --to=microbatch 2>&1 | FileCheck %t/other.mlir --check-prefix=STAGES

//--- order.mlir
sdy.mesh @mesh = <["x"=2], device_ids=[1, 0]>
func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  // CHECK: order.mlir:[[@LINE+1]]:8: error: expected the devices of the mesh of 'sdy.manual_computation' in order, found #sdy.mesh<["x"=2], device_ids=[1, 0]>
  %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"x"}]>] out_shardings=[<@mesh, [{"x"}]>] manual_axes={"x"} (%a: tensor<4xf32>) {
    sdy.return %a : tensor<4xf32>
  } : (tensor<8xf32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}

//--- other.mlir
sdy.mesh @mesh = <["x"=2, "y"=2]>
func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  // CHECK: other.mlir:[[@LINE+2]]:8: error: expected a mesh with the axes that 'sdy.manual_computation' is written for (x=2, y=2), found mesh[x=4]
  // STAGES: other.mlir:[[@LINE+1]]:8: error: expected no code for one device of a mesh in a step with microbatches and stages, found 'sdy.manual_computation'
  %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"x"}]>] out_shardings=[<@mesh, [{"x"}]>] manual_axes={"x"} (%a: tensor<4xf32>) {
    sdy.return %a : tensor<4xf32>
  } : (tensor<8xf32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}
