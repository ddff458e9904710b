// The form holds from the stage phase to the schedule phase, whatever later phases add.
// RUN: shardopt-opt %S/Inputs/two-stages.mlir --shardopt-verify-staged -o %t.mlir
// RUN: shardopt-opt %S/Inputs/two-stages.mlir | diff %t.mlir -
// RUN: shardopt-opt %S/choose-stages.mlir --shardopt-cluster-layers="layers=2" --shardopt-stage="cluster=cpu-test:1x2" | FileCheck %s

// CHECK: mpmd.fragment
