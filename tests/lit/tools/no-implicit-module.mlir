// What stands at the top has to be a module, and only one.
// RUN: shardopt-opt %s --no-implicit-module | FileCheck %s
// RUN: not shardopt-opt %S/Inputs/two-functions.mlir --no-implicit-module 2>&1 | FileCheck %s --check-prefix=TWO
// RUN: head -3 %S/Inputs/two-functions.mlir | not shardopt-opt -no-implicit-module - 2>&1 | FileCheck %s --check-prefix=ONE

// TWO: error: {{.*}}single top-level operation
// ONE: -:1:1: error: expected a builtin.module around everything, found 'func.func'
// CHECK: module @explicit {
module @explicit {
  func.func @main() {
    return
  }
}
