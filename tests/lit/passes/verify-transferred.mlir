// RUN: shardopt-opt %S/Inputs/two-stages.mlir --shardopt-verify-transferred -o %t.mlir
// RUN: shardopt-opt %S/Inputs/two-stages.mlir | diff %t.mlir -
// RUN: shardopt-opt %S/insert-transfers.mlir --shardopt-insert-transfers="strategy=local_allgather" --shardopt-verify-transferred | FileCheck %s

// CHECK: mpmd.transfer {shardopt.resharding
