// How diagnostics are shown: which, in color, with the stack behind them.
// RUN: shardopt-opt %s -pass-pipeline='builtin.module(builtin.module(cse))' -o %t 2>&1 | FileCheck %s --check-prefix=SHOWN
// RUN: shardopt-opt %s -pass-pipeline='builtin.module(builtin.module(cse))' --mlir-diagnostic-verbosity-level=errors -o %t 2>&1 | FileCheck %s --check-prefix=NONE --allow-empty
// RUN: shardopt-opt %s -pass-pipeline='builtin.module(builtin.module(cse))' --color -o %t 2>&1 | FileCheck %s --check-prefix=COLOR
// RUN: not shardopt-opt %s --shardopt-verify-staged --mlir-print-stacktrace-on-diagnostic 2>&1 | FileCheck %s --check-prefix=STACK
// RUN: not shardopt-opt %s --shardopt-verify-staged 2>&1 | FileCheck %s --check-prefix=PLAIN
// RUN: not shardopt-opt %S/Inputs/twice-defined.mlir 2>&1 | FileCheck %s --check-prefix=NOTES
// RUN: not shardopt-opt %S/Inputs/twice-defined.mlir --mlir-disable-diagnostic-notes 2>&1 | FileCheck %s --check-prefix=WITHOUT
// RUN: shardopt-opt %s --mlir-print-assume-verified --mlir-very-unsafe-disable-verifier-on-parsing | FileCheck %s

// NONE-NOT: {{.}}
// SHOWN: warning: no op matches
// COLOR: {{.*}}[1;35mwarning:{{.*}}[0m no op matches
// STACK: Traceback
// STACK: verify_staged.py
// STACK: error:
// PLAIN-NOT: Traceback
// PLAIN: error:
// NOTES: error: redefinition
// NOTES: note: see existing
// WITHOUT-NOT: note:
// WITHOUT: error: redefinition
// WITHOUT-NOT: note:
// CHECK: func.func @main
func.func @main() {
  return
}
