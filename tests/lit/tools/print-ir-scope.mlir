// Nested passes print their functions, or on request the module around them; after-failure works alone.
// RUN: shardopt-opt %s --pass-pipeline='builtin.module(func.func(cse))' --mlir-print-ir-after-all -o %t 2>&1 | FileCheck %s --check-prefix=FUNC
// RUN: shardopt-opt %s --pass-pipeline='builtin.module(func.func(cse))' --mlir-print-ir-after-change -o %t 2>&1 | FileCheck %s --check-prefix=CHANGE
// RUN: shardopt-opt %s --pass-pipeline='builtin.module(func.func(cse))' --mlir-print-ir-after-all --mlir-print-ir-module-scope -o %t 2>&1 | FileCheck %s --check-prefix=MODULE
// RUN: not shardopt-opt %s --cse --shardopt-verify-imported --mlir-print-ir-after-failure -o %t 2>&1 | FileCheck %s --check-prefix=FAILURE

// FUNC: IR Dump After cse ('func.func' operation: @main)
// FUNC-NEXT: {{^}}func.func @main
// FUNC: IR Dump After cse ('func.func' operation: @other)
// FUNC-NEXT: {{^}}func.func @other
// CHANGE: operation: @main
// CHANGE-NOT: operation: @other
// MODULE: IR Dump After cse //----- //
// MODULE-NEXT: module {
// FAILURE-NOT: After cse
// FAILURE: IR Dump After shardopt-verify-imported Failed
// FAILURE: @other
// FAILURE: error:
func.func @main(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %0 = stablehlo.add %x, %x : tensor<4xf32>
  %1 = stablehlo.add %x, %x : tensor<4xf32>
  return %0, %1 : tensor<4xf32>, tensor<4xf32>
}

func.func @other(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}
