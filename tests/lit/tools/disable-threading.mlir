// Scripts written for mlir-opt may pass the flag; it changes nothing.
// RUN: shardopt-opt %s --cse --mlir-disable-threading | FileCheck %s

// CHECK-LABEL: func.func @main
// CHECK: stablehlo.add
// CHECK-NOT: stablehlo.add
func.func @main(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %0 = stablehlo.add %x, %x : tensor<4xf32>
  %1 = stablehlo.add %x, %x : tensor<4xf32>
  return %0, %1 : tensor<4xf32>, tensor<4xf32>
}
