// RUN: shardopt-opt --list-passes | FileCheck %s

// CHECK: Phases, in order:
// CHECK-NEXT: shardopt-import: {{.+}}
// CHECK-NEXT: shardopt-inline-calls
// CHECK-NEXT: shardopt-unroll-loops  (with unroll=true)
// CHECK: shardopt-export: {{.+}}
// CHECK: Passes:
// CHECK: shardopt-inline-calls: {{.+}}
// CHECK: shardopt-verify-exported: {{.+}}
