// RUN: shardopt-opt %s --cse --canonicalize --mlir-print-ir-after-change -o %t 2>&1 | FileCheck %s --check-prefix=CHANGE
// RUN: shardopt-opt %s --cse --canonicalize --mlir-print-ir-before-all -o %t 2>&1 | FileCheck %s --check-prefix=BEFORE
// RUN: shardopt-opt %s --cse --canonicalize --mlir-print-ir-after-all -o %t 2>&1 | FileCheck %s --check-prefix=ALL
// RUN: shardopt-opt %s --cse --canonicalize --mlir-print-ir-after=canonicalize -o %t 2>&1 | FileCheck %s --check-prefix=ONE
// RUN: not shardopt-opt %s --cse --mlir-print-ir-after=csee -o %t 2>&1 | FileCheck %s --check-prefix=WRONG
// RUN: shardopt-opt %s --cse --canonicalize --mlir-print-ir-before=canonicalize -o %t 2>&1 | FileCheck %s --check-prefix=AHEAD
// RUN: shardopt-opt %s --cse --canonicalize --mlir-print-ir-after-all --mlir-print-ir-after-change -o %t 2>&1 | FileCheck %s --check-prefix=CHANGE
// RUN: shardopt-opt %s --cse --canonicalize --mlir-print-ir-after=canonicalize --mlir-print-ir-after-change -o %t 2>&1 | FileCheck %s --check-prefix=NEITHER --allow-empty

// NEITHER-NOT: IR Dump

// CHANGE: IR Dump After cse
// CHANGE: stablehlo.add
// CHANGE-NOT: stablehlo.add
// CHANGE-NOT: IR Dump

// BEFORE: IR Dump Before cse
// BEFORE-COUNT-2: stablehlo.add
// BEFORE: IR Dump Before canonicalize
// BEFORE: stablehlo.add
// BEFORE-NOT: stablehlo.add

// ALL: IR Dump After cse
// ALL: IR Dump After canonicalize

// ONE-NOT: After cse
// ONE: IR Dump After canonicalize

// AHEAD-NOT: Dump Before cse
// AHEAD: IR Dump Before canonicalize

// WRONG: --mlir-print-ir-after: unknown pass of this pipeline: 'csee'; did you mean 'cse'?
func.func @main(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %0 = stablehlo.add %x, %x : tensor<4xf32>
  %1 = stablehlo.add %x, %x : tensor<4xf32>
  return %0, %1 : tensor<4xf32>, tensor<4xf32>
}
