// Time in solvers stands under the pass that called them.
// RUN: shardopt-opt %s --shardopt-shard='mesh=2x2 cluster=cpu-test:1x4' --mlir-timing -o %t 2>&1 | FileCheck %s

// CHECK: {{[0-9.]+}} ({{ *[0-9.]+}}%)  shardopt-choose-shardings{
// CHECK-DAG: {{[0-9.]+}} ({{ *[0-9.]+}}%)    sharding program: build
// CHECK-DAG: {{[0-9.]+}} ({{ *[0-9.]+}}%)    sharding program: solve
func.func public @main(%x: tensor<8x16xf32>, %w: tensor<16x4xf32>) -> tensor<8x4xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}
