// What options name is looked for before any pass runs: the first pass would refuse this module.
// RUN: not shardopt-opt %s --to=export --phase-options="cluster=nowhere" 2>&1 | FileCheck %s --check-prefix=CLUSTER
// RUN: not shardopt-opt %s --to=export --phase-options="cluster=cpu-test:1x4 schedule=1f1c" 2>&1 | FileCheck %s --check-prefix=SCHEDULE
// RUN: not shardopt-opt %s --to=schedule --phase-options="cluster=cpu-test:1x4 profile=%t.none" 2>&1 | FileCheck %s --check-prefix=PROFILE
// RUN: not shardopt-opt %s --shardopt-inline-calls --shardopt-choose-shardings="cluster=cpu-test:1x4 constraints=%t.none" 2>&1 | FileCheck %s --check-prefix=CONSTRAINTS
// RUN: not shardopt-opt %s --shardopt-inline-calls --shardopt-schedule-pipeline="schedule=%t.csv" 2>&1 | FileCheck %s --check-prefix=TASKS
// RUN: not shardopt-opt %s --shardopt-inline-calls -o %t.none/out.mlir 2>&1 | FileCheck %s --check-prefix=OUTPUT
// RUN: not shardopt plan %s --cluster cpu-test:1x4 --memory-budget lots 2>&1 | FileCheck %s --check-prefix=BUDGET
// RUN: not shardopt shard %s --cluster cpu-test:1x4 --mesh 99999999999999999999 2>&1 | FileCheck %s --check-prefix=MESH
// RUN: not shardopt run %s --outputs /proc/out.npz 2>&1 | FileCheck %s --check-prefix=RESULTS

// CLUSTER: error: unknown cluster preset 'nowhere'
// SCHEDULE: error: unknown schedule: '1f1c'; did you mean '1f1b'?
// PROFILE: error: {{.*}}.none: cannot read the profile: No such file
// CONSTRAINTS: error: {{.*}}.none: cannot read the constraints file: No such file
// TASKS: error: cannot read the schedule '{{.*}}.csv': No such file
// OUTPUT: error: cannot write '{{.*}}out.mlir': its folder does not exist
// RESULTS: error: cannot write '/proc/out.npz'
// BUDGET: error: option memory-budget: expected bytes such as 1073741824, 512MiB or 1.5GB, found 'lots'
// MESH: error: expected a mesh of at most 1048576 devices, found 99999999999999999999
func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = func.call @main(%a) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
