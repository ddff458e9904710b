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
// RUN: printf '0F0,0F1,0B0,0A0,0B1\n1F0,1B0,1F1,1B1\n' > %t.apply.csv
// RUN: not shardopt-opt %S/Inputs/two-stages.mlir --shardopt-schedule-pipeline="schedule=%t.apply.csv" 2>&1 | FileCheck %s --check-prefix=APPLY
// RUN: printf '0F0,0B0,0F1,0B1\n1F1,1F0,1B0,1B1\n' > %t.circle.csv
// RUN: not shardopt-opt %S/Inputs/two-stages.mlir --shardopt-schedule-pipeline="schedule=%t.circle.csv" 2>&1 | FileCheck %s --check-prefix=CIRCLE

// NAME: error: unknown schedule: '1b1f'; did you mean '1f1b'?
// BACKWARD: error: schedule 'inference' has forwards only, and the model has a backward: expected one that trains, such as 1f1b, or auto
// COST: error: expected attribute 'shardopt.cost' on every fragment (written by the shard phase), found none
// KIND: error: expected a fragment of kind fwd or bwd{{.*}} in the loop body, found 'update'
// LOOP: error: expected one mpmd.for in @main (run the microbatch phase first), found 0
// FILE: error: cannot read the schedule '{{.*}}none.csv': No such file or directory
// SHORT: error: schedule '{{.*}}short': task 0B0
// APPLY: error: schedule '{{.*}}apply': task 0A0 changes weights within a step, which plans cannot run
// CIRCLE: error: schedule '{{.*}}circle': deadlock: mesh 0 waits before 0B0 (task 2 of 4) for 1F0, mesh 1 waits before 1F1 (task 1 of 4) for 0F1
func.func @main() {
  return
}
