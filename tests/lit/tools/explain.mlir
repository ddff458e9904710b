// Why an operation or value is sharded as it is: the chosen strategy, and what each other one would change.
// DEFINE: %{run} = shardopt-opt %s -o %t --shardopt-intra='cluster=cpu-test:1x4 mesh=4 intra-op=data batch-args=0
// RUN: %{run} explain=dot_general:0' 2>&1 | FileCheck %s
// RUN: %{run} explain=arg1' 2>&1 | FileCheck %s --check-prefix=VALUE
// RUN: %{run} explain=tanh' 2>&1 | FileCheck %s --check-prefix=MANY
// RUN: not %{run} explain=convolution' 2>&1 | FileCheck %s --check-prefix=NOTHING

// CHECK: explain.mlir:[[@LINE+14]]:{{[0-9]+}}: remark: dot_general:0 ('dot_general' -> 64x4xf32) on mesh 'mesh', plan {{.*}} s
// CHECK: compute collectives alone replanned strategy
// CHECK-NEXT: * {{.*}} s {{.*}} s [{"x"}, {}], [{}, {}] -> [{"x"}, {}]
// CHECK: impossible impossible {{.*}}all_reduce(x)
// CHECK: [explain]

// VALUE: arg1 (input 16x4xf32) on mesh 'mesh', plan
// VALUE: * {{.*}} [{}, {}]
// VALUE: +{{.*}} s {{.*}}[{"x"}, {}]

// MANY-COUNT-4: remark: tanh:{{[0-3]}} ('tanh' -> 64x4xf32)
// MANY: remark: 1 more match: tanh:4 'tanh' -> 64x4xf32

func.func public @main(%x: tensor<64x16xf32>, %w: tensor<16x4xf32>) -> tensor<64x4xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<64x16xf32>, tensor<16x4xf32>) -> tensor<64x4xf32>
  %1 = stablehlo.tanh %0 : tensor<64x4xf32>
  %2 = stablehlo.tanh %1 : tensor<64x4xf32>
  %3 = stablehlo.tanh %2 : tensor<64x4xf32>
  %4 = stablehlo.tanh %3 : tensor<64x4xf32>
  %5 = stablehlo.tanh %4 : tensor<64x4xf32>
  return %5 : tensor<64x4xf32>
}

// NOTHING: error: nothing to explain: expected argN, resultN, an operation (dot_general, tanh, …) with an optional :N, or a pattern that some location matches, found 'convolution'
