// RUN: shardopt-opt %s --pass-pipeline='builtin.module(func.func(cse,canonicalize),symbol-dce)' --mlir-timing -o %t 2>&1 | FileCheck %s

// CHECK: execution time report: {{[0-9.]+}} seconds
// CHECK-NEXT: {{[0-9.]+}} ({{ *[0-9.]+}}%)  func.func
// CHECK-NEXT: {{[0-9.]+}} ({{ *[0-9.]+}}%)    cse
// CHECK-NEXT: {{[0-9.]+}} ({{ *[0-9.]+}}%)    canonicalize
// CHECK-NEXT: {{[0-9.]+}} ({{ *[0-9.]+}}%)  symbol-dce
// CHECK-NEXT: (verify each)
// CHECK-NEXT: (read)
// CHECK-NEXT: (write)
// CHECK-NEXT: (100.0%)  total
func.func @main() {
  return
}
