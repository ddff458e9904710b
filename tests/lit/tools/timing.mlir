// The report of --mlir-timing as tree and list, in text and in JSON.
// DEFINE: %{run} = shardopt-opt %s --pass-pipeline='builtin.module(func.func(cse,canonicalize),symbol-dce)' --mlir-timing -o %t
// RUN: %{run} 2>&1 | FileCheck %s
// RUN: %{run} --mlir-timing-display=list 2>&1 | FileCheck %s --check-prefix=LIST
// RUN: %{run} --mlir-output-format=json 2>&1 | FileCheck %s --check-prefix=JSON

// CHECK: ... Execution time report ...
// CHECK: Total Execution Time: {{[0-9.]+}} seconds
// CHECK: ----Wall Time----  ----CPU Time-----  ----Name----
// CHECK-NEXT: {{[0-9.]+}} ({{ *[0-9.]+}}%) {{ *[0-9.]+}} ({{ *[0-9.]+}}%)  Parser
// CHECK-NEXT: {{[0-9.]+}} ({{ *[0-9.]+}}%) {{ *[0-9.]+}} ({{ *[0-9.]+}}%)  func.func
// CHECK-NEXT: {{[0-9.]+}} ({{ *[0-9.]+}}%) {{ *[0-9.]+}} ({{ *[0-9.]+}}%)    cse
// CHECK-NEXT: {{[0-9.]+}} ({{ *[0-9.]+}}%) {{ *[0-9.]+}} ({{ *[0-9.]+}}%)    canonicalize
// CHECK-NEXT: {{[0-9.]+}} ({{ *[0-9.]+}}%) {{ *[0-9.]+}} ({{ *[0-9.]+}}%)  symbol-dce
// CHECK-NEXT: Verifier
// CHECK-NEXT: Output
// CHECK-NEXT: Rest
// CHECK-NEXT: (100.0%)  Total

// LIST: ----Wall Time----  ----CPU Time-----  ----Name----
// LIST-DAG: Parser
// LIST-DAG: cse
// LIST-DAG: symbol-dce
// LIST-DAG: Output
// LIST-NOT: func.func
// LIST: (100.0%)  Total

// JSON: "wall": {
// JSON-NEXT: "duration": {{[0-9.e-]+}},
// JSON-NEXT: "percentage": {{[0-9.]+}}
// JSON: "name": "Parser"
// JSON: "name": "func.func",
// JSON-NEXT: "passes": [
// JSON: "name": "cse"
// JSON: "name": "Total"
func.func @main() {
  return
}
