// RUN: split-file %s %t
// RUN: not shardopt-opt %t/recursion.mlir --shardopt-inline-calls 2>&1 | FileCheck %t/recursion.mlir
// RUN: not shardopt-opt %t/blocks.mlir --shardopt-inline-calls 2>&1 | FileCheck %t/blocks.mlir
// RUN: not shardopt-opt %t/declaration.mlir --shardopt-inline-calls 2>&1 | FileCheck %t/declaration.mlir

//--- recursion.mlir
func.func @main(%x: tensor<f32>) -> tensor<f32> {
  %0 = call @even(%x) : (tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}
// CHECK: recursion.mlir:[[@LINE+1]]:1: error: expected no recursive calls, found the cycle @even -> @odd -> @even
func.func private @even(%x: tensor<f32>) -> tensor<f32> {
  %0 = call @odd(%x) : (tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}
func.func private @odd(%x: tensor<f32>) -> tensor<f32> {
  %0 = call @even(%x) : (tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}

//--- blocks.mlir
func.func @main(%x: tensor<f32>) -> tensor<f32> {
  // CHECK: blocks.mlir:[[@LINE+1]]:8: error: expected a callee of one block, found '@jumps' with 2 blocks
  %0 = call @jumps(%x) : (tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}
// CHECK: blocks.mlir:[[@LINE+1]]:1: note: '@jumps' is defined here
func.func private @jumps(%x: tensor<f32>) -> tensor<f32> {
  cf.br ^next(%x : tensor<f32>)
^next(%y: tensor<f32>):
  return %y : tensor<f32>
}

//--- declaration.mlir
func.func private @elsewhere(tensor<f32>) -> tensor<f32>
func.func @main(%x: tensor<f32>) -> tensor<f32> {
  // CHECK: declaration.mlir:[[@LINE+1]]:8: error: expected a callee of one block, found '@elsewhere' with 0 blocks
  %0 = call @elsewhere(%x) : (tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}
