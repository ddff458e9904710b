// RUN: shardopt-opt %S/cluster-layers.mlir --shardopt-cluster-layers="layers=2" -o %t.mlir
// RUN: shardopt-opt %t.mlir --shardopt-verify-clustered -o %t.same.mlir
// RUN: cmp %t.mlir %t.same.mlir
// RUN: shardopt-opt %s --shardopt-verify-clustered | FileCheck %s

// In the body a shared operation may read captured values and the microbatch index, around the loop anything.
// CHECK-LABEL: func.func private @microbatch
// CHECK: stablehlo.convert %arg2 {shardopt.layer = -1 : i64}
func.func @main(%x: tensor<f32> {shardopt.layer = 0 : i64}) -> tensor<f32> {
  %zero = stablehlo.constant {shardopt.layer = -1 : i64} dense<0.0> : tensor<f32>
  %twice = stablehlo.add %x, %x {shardopt.layer = -1 : i64} : tensor<f32>
  %r = mpmd.for (%zero) {iterations = 2 : ui32} (%a: tensor<f32>, %i: tensor<ui32>) {
    %n = mpmd.call @microbatch(%twice, %a, %i) {call_counter = 0 : ui32} : (tensor<f32>, tensor<f32>, tensor<ui32>) -> tensor<f32>
    mpmd.return %n : tensor<f32>
  } : tensor<f32>
  return %r : tensor<f32>
}
func.func private @microbatch(%x: tensor<f32>, %a: tensor<f32>, %i: tensor<ui32>) -> tensor<f32> {
  %k = stablehlo.convert %i {shardopt.layer = -1 : i64} : (tensor<ui32>) -> tensor<f32>
  %v = stablehlo.multiply %x, %k {shardopt.layer = 0 : i64} : tensor<f32>
  %n = stablehlo.add %a, %v {shardopt.layer = 0 : i64} : tensor<f32>
  return %n : tensor<f32>
}
