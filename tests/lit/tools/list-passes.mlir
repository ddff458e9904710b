// RUN: shardopt-opt --list-passes | FileCheck %s

// CHECK: Phases, in order:
// CHECK-NEXT: shardopt-import: {{.+}}
// CHECK: shardopt-inline-calls
// CHECK-NEXT: shardopt-read-manual-regions
// CHECK-NEXT: shardopt-flatten-tuples
// CHECK-NEXT: shardopt-read-annotations
// CHECK-NEXT: shardopt-roll-parts
// CHECK-NEXT: shardopt-unroll-loops  (with unroll=true)
// CHECK: shardopt-export: {{.+}}
// CHECK: Passes:
// CHECK: shardopt-inline-calls: {{.+}}
// CHECK: shardopt-verify-exported: {{.+}}

// The same stands under --help, behind the options.
// RUN: shardopt-opt --help | FileCheck %s --check-prefix=HELP
// HELP: usage: shardopt-opt
// HELP: --mlir-timing
// HELP: Phases, in order:
// HELP: shardopt-unroll-loops: {{.+}} (on builtin.module)
// HELP: max-iterations (int, default 128): {{.+}}
