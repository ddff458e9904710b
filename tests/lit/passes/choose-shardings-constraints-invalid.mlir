// What a constraints file gets wrong, and what cannot be obeyed.
// RUN: split-file %s %t
// RUN: not shardopt-opt %t/model.mlir --shardopt-shard="cluster=cpu-test:1x4 mesh=2x2 constraints=%t/field.yaml" 2>&1 | FileCheck %t/field.yaml
// RUN: not shardopt-opt %t/model.mlir --shardopt-shard="cluster=cpu-test:1x4 mesh=2x2 constraints=%t/match.yaml" 2>&1 | FileCheck %t/match.yaml
// RUN: not shardopt-opt %t/model.mlir --shardopt-shard="cluster=cpu-test:1x4 mesh=2x2 constraints=%t/rank.yaml" 2>&1 | FileCheck %t/rank.yaml
// RUN: not shardopt-opt %t/model.mlir --shardopt-shard="cluster=cpu-test:1x4 mesh=2x2 sharding-format=collectives constraints=%t/padding.yaml" 2>&1 | FileCheck %t/padding.yaml
// RUN: not shardopt-opt %t/model.mlir --shardopt-shard="cluster=cpu-test:1x4 mesh=2x2 constraints=%t/axis.yaml" 2>&1 | FileCheck %t/axis.yaml
// RUN: not shardopt-opt %t/model.mlir --shardopt-shard="cluster=cpu-test:1x4 mesh=2x2 constraints=%t/same.yaml" 2>&1 | FileCheck %t/same.yaml
// RUN: not shardopt-opt %t/model.mlir --shardopt-shard="cluster=cpu-test:1x4 mesh=2x2 constraints=%t/annotation.yaml" 2>&1 | FileCheck %t/annotation.yaml
// RUN: not shardopt-opt %t/model.mlir --shardopt-shard="cluster=cpu-test:1x4 mesh=2x2 constraints=%t/donated.yaml" 2>&1 | FileCheck %t/donated.yaml
// RUN: not shardopt-opt %t/model.mlir --shardopt-shard="cluster=cpu-test:1x4 mesh=2x2 constraints=%t/no.yaml" 2>&1 | FileCheck %t/model.mlir

//--- model.mlir
// CHECK: no.yaml: cannot read the constraints file: No such file or directory
func.func public @main(
    %x: tensor<6x8xf32> loc("x"),
    %w: tensor<8x8xf32> {shardopt.sharding = {axes = ["a"], sizes = array<i64: 4>, dims = [["a"], []]}, tf.aliasing_output = 1 : i32} loc("w"))
    -> (tensor<6x8xf32>, tensor<8x8xf32>) {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<6x8xf32>, tensor<8x8xf32>) -> tensor<6x8xf32> loc("jit(step)/dot_general")
  return %0, %w : tensor<6x8xf32>, tensor<8x8xf32>
}

//--- field.yaml
# CHECK: field.yaml, entry 1: unknown field 'shardings', expected one of argument, result, op, location, mesh, sharding, dims, replicated, forbid, optional
- {argument: 0, replicated: true}
- {argument: 0, shardings: []}

//--- match.yaml
# CHECK: error: {{.*}}match.yaml, entry 0 matches no argument, expected one of x, w
- {argument: y, replicated: true}

//--- rank.yaml
# CHECK: error: {{.*}}rank.yaml, entry 0: sharding [{"x"}] over x=2, y=2 does not fit argument 0 'x': it has rank 1, the tensor 6x8 has rank 2
- {argument: x, sharding: [[x]]}

//--- padding.yaml
# CHECK: error: {{.*}}padding.yaml, entry 0: sharding [{"x", "y"}, {?}] over x=2, y=2 does not fit the result of 'stablehlo.dot_general': its tiles would need padding
- {op: dot_general, dims: {0: [x, y]}}

//--- axis.yaml
# CHECK: error: {{.*}}axis.yaml, entry 0: expected axes of the mesh (x, y), found 'z', for argument 0 'x'
- {argument: 0, dims: {0: [z]}}

//--- same.yaml
# CHECK: error: {{.*}}same.yaml, entry 0: [{"x"}, {?}] over x=2, y=2 and {{.*}}same.yaml, entry 1: no axis x contradict each other for argument 0 'x' on mesh mesh[x=2, y=2]
- {argument: 0, dims: {0: [x]}}
- {argument: x, forbid: [x]}

//--- annotation.yaml
# CHECK: error: the annotation [{"a"}, {}] over a=4 and {{.*}}annotation.yaml, entry 0: [{}, {}] over x=2, y=2 contradict each other for argument 1 'w' on mesh mesh[x=2, y=2]
- {argument: w, replicated: true}

//--- donated.yaml
# CHECK: error: the annotation [{"a"}, {}] over a=4 and {{.*}}donated.yaml, entry 0: [{}, {"y"}] over x=2, y=2 contradict each other
# CHECK: note: the other stands here
- {result: 1, sharding: [[], [y]]}
