// RUN: not shardopt-opt %S/Inputs/two-stages.mlir --shardopt-schedule-pipeline="schedule=1b1f" 2>&1 | FileCheck %s --check-prefix=NAME
// RUN: not shardopt-opt %S/Inputs/two-stages.mlir --shardopt-schedule-pipeline="schedule=inference" 2>&1 | FileCheck %s --check-prefix=BACKWARD
// RUN: sed -e 's/shardopt.cost = {seconds = 3.0 : f64}, //' %S/Inputs/two-stages.mlir > %t.cost
// RUN: not shardopt-opt %t.cost --shardopt-schedule-pipeline 2>&1 | FileCheck %s --check-prefix=COST
// RUN: sed -e 's/shardopt.kind = "bwd"/shardopt.kind = "update"/' %S/Inputs/two-stages.mlir > %t.kind
// RUN: not shardopt-opt %t.kind --shardopt-schedule-pipeline 2>&1 | FileCheck %s --check-prefix=KIND
// RUN: not shardopt-opt %s --shardopt-schedule-pipeline 2>&1 | FileCheck %s --check-prefix=LOOP
// RUN: not shardopt-opt %S/Inputs/two-stages.mlir --shardopt-schedule-pipeline="schedule=%t.none.csv" 2>&1 | FileCheck %s --check-prefix=FILE
// RUN: printf '0F0,0F1\n1F0,1F1\n' > %t.short.csv
// RUN: not shardopt-opt %S/Inputs/two-stages.mlir --shardopt-schedule-pipeline="schedule=%t.short.csv" 2>&1 | FileCheck %s --check-prefix=SHORT

// NAME: error: unknown schedule '1b1f': did you mean '1f1b'? known schedules are gpipe, 1f1b,
// BACKWARD: error: schedule 'inference': task 0B0 is not listed on any mesh
// COST: error: expected attribute 'shardopt.cost' on every fragment (written by the shard phase), found none
// KIND: error: expected a fragment of kind fwd or bwd{{.*}} in the loop body, found 'update'
// LOOP: error: expected one mpmd.for in @main (run the microbatch phase first), found 0
// FILE: error: cannot read the schedule '{{.*}}none.csv': No such file or directory
// SHORT: error: schedule '{{.*}}short': task 0B0
func.func @main() {
  return
}
