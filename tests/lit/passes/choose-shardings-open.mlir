// RUN: shardopt-opt %s --shardopt-shard="cluster=cpu-test:1x4 mesh=4 unreduced=on" 2>&1 | FileCheck %s
// RUN: shardopt-opt %s --shardopt-shard="cluster=cpu-test:1x4 mesh=4 sharding-format=sdy" 2>&1 | FileCheck %s --check-prefix=SHARDY
// RUN: shardopt-opt %s --shardopt-shard="cluster=cpu-test:1x4 mesh=4" 2>&1 | FileCheck %s --check-prefix=AUTO

// Two products whose inner dimension is split are added before they are summed up over the devices. That is for Shardy
// only, and off for a module that GSPMD is to read.

// CHECK: choose-shardings-open.mlir:[[@LINE+13]]:{{[0-9]+}}: warning: values stay unreduced: only for Shardy's partitioner, GSPMD would drop their sums without a word
// CHECK-LABEL: func.func public @main
// CHECK-COUNT-2: stablehlo.dot_general {{.*}}mhlo.sharding = "{unreduced}"
// CHECK: %[[SUM:.*]] = stablehlo.add {{.*}}mhlo.sharding = "{unreduced}"
// CHECK: stablehlo.custom_call @Sharding(%[[SUM]]) {mhlo.sharding = "{{{.*}}}"}

// SHARDY-NOT: warning
// SHARDY: %[[SUM:.*]] = stablehlo.add
// SHARDY: %[[OPEN:.*]] = sdy.sharding_constraint %[[SUM]] <@mesh, [{}, {}], unreduced={"x"}>
// SHARDY: sdy.sharding_constraint %[[OPEN]]

// AUTO-NOT: warning
// AUTO-NOT: unreduced
func.func public @main(%a: tensor<64x65536xf32>, %b: tensor<65536x64xf32>, %c: tensor<64x65536xf32>, %d: tensor<65536x64xf32>) -> tensor<64x64xf32> {
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : (tensor<64x65536xf32>, tensor<65536x64xf32>) -> tensor<64x64xf32>
  %1 = stablehlo.dot_general %c, %d, contracting_dims = [1] x [0] : (tensor<64x65536xf32>, tensor<65536x64xf32>) -> tensor<64x64xf32>
  %2 = stablehlo.add %0, %1 : tensor<64x64xf32>
  %3 = stablehlo.tanh %2 : tensor<64x64xf32>
  return %3 : tensor<64x64xf32>
}
