// RUN: shardopt-opt --show-dialects | FileCheck %s --check-prefix=SHOW
// RUN: not shardopt-opt %s 2>&1 | FileCheck %s --check-prefix=UNKNOWN
// RUN: shardopt-opt %s --allow-unregistered-dialect | FileCheck %s

// SHOW: Available Dialects: {{.*}}func, {{.*}}mpmd, {{.*}}sdy, {{.*}}stablehlo
// UNKNOWN: error: operation being parsed with an unregistered dialect
// CHECK: "my.op"
func.func @main() {
  "my.op"() : () -> ()
  return
}
