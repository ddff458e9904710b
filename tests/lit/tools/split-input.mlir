// Parts are processed one by one: the second fails, the others are written, and line numbers are those of the file.
// RUN: not shardopt-opt %s --split-input-file --cse 2>%t.err | FileCheck %s
// RUN: FileCheck %s --check-prefix=ERROR < %t.err
// RUN: FileCheck %s --check-prefix=NEAR < %t.err
// With -o nothing is written unless all parts succeed.
// RUN: not shardopt-opt %s --split-input-file --cse -o %t.out 2>/dev/null
// RUN: not ls %t.out
// RUN: not shardopt-opt %s --split-input-file --emit-bytecode 2>&1 | FileCheck %s --check-prefix=BINARY
// RUN: not shardopt-opt %s --split-input-file --output-split-marker="// next" 2>/dev/null | FileCheck %s --check-prefix=MARKER

// BINARY: error: --split-input-file writes text

// CHECK-LABEL: @first
// CHECK: // -----
// CHECK: // -----
// CHECK-LABEL: @third
// MARKER: @first
// MARKER: // next
// MARKER-NOT: // -----
// MARKER: @third
func.func @first() {
  return
}

// -----

func.func @second() -> i32 {
  // ERROR: split-input.mlir:[[@LINE+2]]:3: error: {{.*}}op has 0 operands, but enclosing function (@second) returns 1
  // ERROR-NEXT: {{^ +return}}
  return
}

// ----
// NEAR: split-input.mlir:[[@LINE-1]]:1: warning: near miss with the split marker

// -----

// The same symbol again: every part has a context and a module of its own.
func.func @third() {
  return
}
