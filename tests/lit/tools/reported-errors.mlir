// C++ passes that report an error and go on: the error is printed, the run fails and leaves no output, and
// --verify-diagnostics counts it, once expected and once more where it is not.
// RUN: not shardopt-opt %s --stablehlo-canonicalize-dynamism --split-input-file -o %t.out 2>&1 | FileCheck %s
// RUN: not ls %t.out
// RUN: shardopt-opt %s -stablehlo-canonicalize-dynamism -split-input-file -verify-diagnostics
// RUN: sed -e 's/expected-error/expected/' %s > %t.silent
// RUN: not shardopt-opt %t.silent -stablehlo-canonicalize-dynamism -split-input-file -verify-diagnostics 2>&1 | FileCheck %s --check-prefix=SILENT

// CHECK: reported-errors.mlir:[[@LINE+6]]:8: error: indices_of_shape_operands: must have rank = 1
// SILENT: error: unexpected error: indices_of_shape_operands: must have rank = 1
// SILENT: error: unexpected error: indices_of_shape_operands: refinement #0 ([3, 1]) must be compatible
func.func @rank(%x: tensor<2xf32>) -> tensor<3x2xf32> {
  %shape = stablehlo.constant dense<[3, 2]> : tensor<2xi64>
  // expected-error@+1 {{indices_of_shape_operands: must have rank = 1}}
  %y = stablehlo.custom_call @grow(%x, %shape) {indices_of_shape_operands = dense<[[1]]> : tensor<1x1xi64>} : (tensor<2xf32>, tensor<2xi64>) -> tensor<3x2xf32>
  return %y : tensor<3x2xf32>
}

// -----

// CHECK: reported-errors.mlir:[[@LINE+4]]:8: error: indices_of_shape_operands: refinement #0 ([3, 1]) must be compatible with operation result
func.func @shape(%x: tensor<2xf32>) -> tensor<3x2xf32> {
  %shape = stablehlo.constant dense<[3, 1]> : tensor<2xi64>
  // expected-error@+1 {{indices_of_shape_operands: refinement #0 ([3, 1]) must be compatible with operation result}}
  %y = stablehlo.custom_call @grow(%x, %shape) {indices_of_shape_operands = dense<[1]> : tensor<1xi64>} : (tensor<2xf32>, tensor<2xi64>) -> tensor<3x2xf32>
  return %y : tensor<3x2xf32>
}
