// Figures of every pass: its own, and for all of them the ops before and after.
// DEFINE: %{run} = shardopt-opt %s --pass-pipeline='builtin.module(shardopt-inline-calls,func.func(cse),cse)' --mlir-pass-statistics -o %t
// RUN: %{run} 2>&1 | FileCheck %s
// RUN: %{run} --mlir-pass-statistics-display=list 2>&1 | FileCheck %s --check-prefix=LIST
// RUN: %{run} --mlir-output-format=json 2>&1 | FileCheck %s --check-prefix=JSON

// CHECK: ... Pass statistics report ...
// CHECK: {{^}}shardopt-inline-calls
// CHECK-NEXT: (S) 7 ops before
// CHECK-NEXT: (S) {{[0-9]+}} ops after
// CHECK: (S) 2 calls
// CHECK: {{^}}func.func
// CHECK-NEXT: {{^ +}}cse
// CHECK-NEXT: {{^ +}}(S) 4 ops before

// LIST: {{^}}cse
// LIST-NEXT: (S) 1 ops removed
// LIST-NEXT: shardopt-inline-calls
// LIST-NEXT: (S) {{-?[0-9]+}} ops removed

// JSON: "name": "shardopt-inline-calls",
// JSON-NEXT: "within": [],
// JSON-NEXT: "statistics": {
// JSON-NEXT: "ops before": 7,
func.func @main(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %0 = call @double(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %1 = call @double(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %0, %1 : tensor<4xf32>, tensor<4xf32>
}

func.func private @double(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.add %x, %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}
