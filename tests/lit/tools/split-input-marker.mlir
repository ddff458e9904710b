// RUN: shardopt-opt %s --split-input-file="// next" | FileCheck %s
// CHECK: @first
// CHECK-NEXT: return
// CHECK: // -----
// CHECK: @first
func.func @first() { return }
// next
func.func @first() { return }
