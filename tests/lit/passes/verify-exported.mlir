// RUN: shardopt-opt %S/Inputs/two-stages.mlir --shardopt-lower-to-fragment-calls -o %t.mlir
// RUN: shardopt-opt %t.mlir --shardopt-verify-exported -o %t.same.mlir
// RUN: cmp %t.mlir %t.same.mlir
// RUN: FileCheck %s < %t.mlir

// CHECK: mpmd.fragment_call
