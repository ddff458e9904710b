// RUN: shardopt-opt %S/Inputs/placed.mlir --shardopt-verify-placed -o %t.mlir
// RUN: shardopt-opt %S/Inputs/placed.mlir | diff %t.mlir -
// RUN: shardopt-opt %S/Inputs/placed.mlir --shardopt-recompute-stages --shardopt-verify-placed | FileCheck %s

// The form holds before and after stages recompute.
// CHECK: shardopt.recompute = ["full", "none"]
