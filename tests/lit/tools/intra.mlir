// `shardopt-intra` is import and shard in one: a whole module as an SPMD program over one mesh.
// RUN: shardopt-opt %s --pass-pipeline='builtin.module(shardopt-intra{mesh=2x2 cluster=cpu-test:1x4 intra-op=data batch-args=0})' | FileCheck %s
// RUN: shardopt-opt %s --shardopt-intra='mesh=4 cluster=cpu-test:1x4 intra-op=replicate' --mlir-print-ir-tree-dir=%t | FileCheck %s --check-prefix=REPLICATED
// RUN: shardopt-opt %s --shardopt-intra='mesh=4 cluster=cpu-test:1x4 intra-op=heuristic sharding-format=sdy' | FileCheck %s --check-prefix=SHARDY
// RUN: FileCheck %s --check-prefix=STEPS < %t/pipeline.txt
// RUN: not shardopt-opt %s --shardopt-intra='mesh=8 cluster=cpu-test:1x4' 2>&1 | FileCheck %s --check-prefix=LARGE
// RUN: not shardopt-opt %s --to=intra 2>&1 | FileCheck %s --check-prefix=ORDER

// STEPS: shardopt-inline-calls  in shardopt-intra
// STEPS: shardopt-verify-imported  in shardopt-intra
// STEPS: shardopt-separate-accumulators  in shardopt-intra
// STEPS: shardopt-choose-shardings
// STEPS: shardopt-insert-reshards  in shardopt-intra
// STEPS: shardopt-annotate-shardings  in shardopt-intra
// STEPS: shardopt-verify-sharded  in shardopt-intra

// LARGE: error: mesh 8 needs 8 devices
// ORDER: error: unknown phase: 'intra'

// CHECK: module attributes {mhlo.num_partitions = 4 : i32
// CHECK-LABEL: func.func public @main
// CHECK-SAME: mhlo.sharding = "{devices=[4,1]<=[4]}"
// CHECK-SAME: mhlo.sharding = "{replicated}"
// CHECK-NEXT: stablehlo.dot_general {{.*}} {mhlo.sharding = "{devices=[4,1]<=[4]}"}
// CHECK-NEXT: stablehlo.tanh {{.*}} {mhlo.sharding = "{devices=[4,1]<=[4]}"}

// SHARDY-NOT: mhlo.sharding
// SHARDY: sdy.mesh @mesh = <["x"=4]>
// SHARDY-LABEL: func.func public @main
// SHARDY-SAME: sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>
// SHARDY: %[[DOT:.*]] = stablehlo.dot_general
// SHARDY: sdy.sharding_constraint %[[DOT]] <@mesh, [
// SHARDY-NOT: mhlo.sharding

// REPLICATED-LABEL: func.func public @main
// REPLICATED: stablehlo.tanh {{.*}} {mhlo.sharding = "{replicated}"}
func.func public @main(%x: tensor<8x16xf32>, %w: tensor<16x4xf32>) -> tensor<8x4xf32> {
  %0 = call @layer(%x, %w) : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}

func.func private @layer(%x: tensor<8x16xf32>, %w: tensor<16x4xf32>) -> tensor<8x4xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
  %1 = stablehlo.tanh %0 : tensor<8x4xf32>
  return %1 : tensor<8x4xf32>
}
