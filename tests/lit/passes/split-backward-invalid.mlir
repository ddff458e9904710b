// RUN: not shardopt-opt %s --shardopt-split-backward 2>&1 | FileCheck %s --check-prefix=LOOP
// RUN: not shardopt-opt %S/split-backward.mlir --shardopt-split-backward 2>&1 | FileCheck %s --check-prefix=STAGED
// RUN: not shardopt-opt %S/split-backward.mlir --shardopt-cluster-layers="layers=2" --shardopt-stage="cluster=cpu-test:1x2 num-stages=2 split-backward=true" --shardopt-shard --shardopt-transfer --shardopt-schedule="schedule=1f1b" 2>&1 | FileCheck %s --check-prefix=WHOLE
// RUN: not shardopt-opt %S/choose-stages.mlir --shardopt-cluster-layers="layers=2" --shardopt-stage="cluster=cpu-test:1x2 num-stages=2" --shardopt-shard --shardopt-transfer --shardopt-schedule="schedule=zero-bubble" 2>&1 | FileCheck %s --check-prefix=HALVES

// LOOP: error: expected one mpmd.for in @main (run the microbatch phase first), found 0
// STAGED: error: expected fragments in the loop body (run the stage phase first), found none
// WHOLE: error: schedule '1f1b' orders whole backwards: expected fragments of kind bwd, found halves
// HALVES: error: schedule 'zero-bubble' orders the halves of a backward: expected fragments of kind bwd_input and bwd_weight
func.func @main() {
  return
}
