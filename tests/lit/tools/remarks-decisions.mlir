// Why this cut (passed), and what the chosen shardings cost (analysis).
// DEFINE: %{run} = shardopt-opt %s --to=shard --phase-options='cluster=cpu-test:1x4 batch-args=0 num-microbatches=2 num-stages=1' -o %t
// RUN: %{run} --remarks=passed 2>&1 | FileCheck %s --check-prefix=PASSED
// RUN: %{run} --remarks=analysis 2>&1 | FileCheck %s --check-prefix=ANALYSIS

// PASSED: remark: stage 0: layers 0 to 0 run on submesh 1x4 as {{[124]x[124]}} [stage-cut]
// PASSED: remark: {{.*}} × {{.*}} -> {{.*}}: {{.*}} s of compute and {{.*}} of {{[0-9]+}} strategies the cheapest alone takes {{.*}} [strategy]
// PASSED-NOT: remark
// ANALYSIS: remark: mesh 'm0': predicted {{.*}} s with {{.*}}; within {{.*}}% of the optimum [sharding-plan]
func.func public @main(%x: tensor<8x16xf32>, %w: tensor<16x4xf32>) -> tensor<8x4xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}
