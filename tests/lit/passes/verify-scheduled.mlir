// RUN: shardopt-opt %S/Inputs/two-stages.mlir --shardopt-verify-scheduled -o %t.mlir
// RUN: shardopt-opt %S/Inputs/two-stages.mlir | diff %t.mlir -
// RUN: FileCheck %s < %t.mlir

// CHECK: mpmd.for {{.*}}shardopt.schedule
