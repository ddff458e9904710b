// A module that does not verify: place, source line, caret, exit code 1, and no output file.
// RUN: rm -f %t
// RUN: not shardopt-opt %s --cse -o %t 2>&1 | FileCheck %s
// RUN: not ls %t

func.func @main(%x: tensor<4xf32>) -> tensor<8xf32> {
  // CHECK: invalid-input.mlir:[[@LINE+3]]:3: error: type of return operand 0 ('tensor<4xf32>') doesn't match function result type ('tensor<8xf32>')
  // CHECK-NEXT: return %x : tensor<4xf32>
  // CHECK-NEXT: {{^    \^$}}
  return %x : tensor<4xf32>
  // CHECK-NOT: Traceback
}
