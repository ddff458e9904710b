// What differs from the expectations is reported, one error for each.
// RUN: not shardopt-opt %s --verify-diagnostics 2>&1 | FileCheck %s
// RUN: not shardopt-opt %s --verify-diagnostics=only-expected 2>&1 | FileCheck %s --check-prefix=EXPECTED

// CHECK: mismatch.mlir:[[@LINE+12]]:3: error: unexpected error: type of return operand 0
// CHECK-NEXT: {{^ +return}} %x : tensor<4xf32>
// CHECK: mismatch.mlir:[[@LINE+9]]:6: error: expected warning "never said" was not produced
// CHECK-NOT: error:

// EXPECTED-NOT: unexpected
// EXPECTED: expected warning "never said" was not produced
// EXPECTED-NOT: error:

#map = affine_map<(d0) -> (d0)>
func.func @main(%x: tensor<4xf32>) -> tensor<8xf32> {
  // expected-warning @+1 {{never said}}
  return %x : tensor<4xf32>
}
