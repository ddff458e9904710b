// RUN: shardopt-opt %S/Inputs/causal.mlir --shardopt-slice-tokens="token-slices=3,1" --shardopt-verify-placed | FileCheck %s
// RUN: shardopt-opt %S/Inputs/causal.mlir --shardopt-slice-tokens="token-slices=3,1" --shardopt-outline-fragments --shardopt-verify-staged | FileCheck %s --check-prefix=STAGED
// RUN: shardopt-opt %S/Inputs/causal.mlir --shardopt-slice-tokens="token-slices=3" --shardopt-verify-placed | FileCheck %s --check-prefix=EQUAL
// RUN: shardopt-opt %S/Inputs/causal.mlir --shardopt-slice-tokens --shardopt-verify-placed | FileCheck %s --check-prefix=AUTO

// Stage s · 2 + k is slice k on stage s, with layers of its own.
// CHECK-LABEL: func.func public @main
// CHECK-SAME: shardopt.stages = [{layers = array<i64: 0, 0>, mesh = "m0"}, {layers = array<i64: 1, 1>, mesh = "m0"}, {layers = array<i64: 2, 2>, mesh = "m1"}, {layers = array<i64: 3, 3>, mesh = "m1"}]
// CHECK: shardopt.in_flight = array<i64: 2, 2, 1, 1>, shardopt.token_slices = {layers = array<i64: 0, 1, 2>, lengths = array<i64: 3, 1>}
// CHECK-LABEL: func.func private @microbatch(
// CHECK-DAG: %[[X0:.*]] = stablehlo.slice {{.*}} [0:1, 0:3, 0:2] {shardopt.layer = 0 : i64}
// CHECK-DAG: %[[X1:.*]] = stablehlo.slice {{.*}} [0:1, 3:4, 0:2] {shardopt.layer = 1 : i64}
// CHECK-DAG: %[[H0:.*]] = stablehlo.dot_general %[[X0]], %arg0, {{.*}} {shardopt.layer = 0 : i64}
// CHECK-DAG: %[[H1:.*]] = stablehlo.dot_general %[[X1]], %arg0, {{.*}} {shardopt.layer = 1 : i64}
// A slice has keys of its own and of earlier ones.
// CHECK: stablehlo.dot_general %[[H0]], %[[H0]], {{.*}} {shardopt.layer = 2 : i64} : (tensor<1x3x2xf32>, tensor<1x3x2xf32>) -> tensor<1x3x3xf32>
// CHECK: %[[K1:.*]] = stablehlo.concatenate %[[H0]], %[[H1]], dim = 1 {shardopt.layer = 3 : i64}
// CHECK: stablehlo.dot_general %[[H1]], %[[K1]], {{.*}} {shardopt.layer = 3 : i64} : (tensor<1x1x2xf32>, tensor<1x4x2xf32>) -> tensor<1x1x4xf32>
// Positions go on where the slice before ended.
// CHECK: %[[Q:.*]] = stablehlo.iota dim = 1 {shardopt.layer = -1 : i64} : tensor<1x1x4xi32>
// CHECK: %[[START:.*]] = stablehlo.constant {shardopt.layer = -1 : i64} dense<3> : tensor<1x1x4xi32>
// CHECK: stablehlo.add %[[Q]], %[[START]] {shardopt.layer = -1 : i64}
// The gradient of values: the last slice hands on what is of earlier keys.
// CHECK: %[[DV:.*]] = stablehlo.dot_general {{.*}} {shardopt.layer = 3 : i64} : (tensor<1x1x4xf32>, tensor<1x1x2xf32>) -> tensor<1x4x2xf32>
// CHECK: %[[REST:.*]] = stablehlo.slice %[[DV]] [0:1, 0:3, 0:2] {shardopt.layer = 3 : i64}
// CHECK: stablehlo.slice %[[DV]] [0:1, 3:4, 0:2] {shardopt.layer = 3 : i64}
// CHECK: %[[JOINED:.*]] = stablehlo.add {{.*}}, %[[REST]] {shardopt.layer = 2 : i64}
// CHECK: %[[G0:.*]] = stablehlo.dot_general %[[X0]], %[[JOINED]], {{.*}} {shardopt.layer = 0 : i64}
// CHECK: %[[G1:.*]] = stablehlo.dot_general %[[X1]], {{.*}} {shardopt.layer = 1 : i64}
// The sum of gradients ends with the first slice, that of the loss with the last; there the carried value is added.
// CHECK-DAG: %[[A0:.*]] = stablehlo.add %arg2, %[[G0]] {shardopt.layer = 0 : i64}
// CHECK-DAG: %[[SUM:.*]] = stablehlo.add %[[G1]], %[[A0]] {shardopt.layer = 0 : i64}
// CHECK-DAG: %[[A1:.*]] = stablehlo.add %arg3, {{.*}} {shardopt.layer = 3 : i64}
// CHECK-DAG: %[[LOSS:.*]] = stablehlo.add {{.*}}, %[[A1]] {shardopt.layer = 3 : i64}
// CHECK: return %[[SUM]], %[[LOSS]]

// Each slice of a stage has its forward, and its backward behind that of the next slice.
// STAGED-LABEL: func.func private @microbatch
// STAGED: mpmd.fragment<mesh="m0", origin=["layer_0"], stage=0> {{.*}} {shardopt.kind = "fwd"}
// STAGED: mpmd.fragment<mesh="m0", origin=["layer_1"], stage=1> {{.*}} {shardopt.kind = "fwd"}
// STAGED: mpmd.fragment<mesh="m1", origin=["layer_2"], stage=2> {{.*}} {shardopt.kind = "fwd"}
// STAGED: mpmd.fragment<mesh="m1", origin=["layer_3"], stage=3> {{.*}} {shardopt.backward, shardopt.kind = "fwd"}
// STAGED: mpmd.fragment<mesh="m1", origin=["layer_2"], stage=2> {{.*}} {shardopt.kind = "bwd"}
// STAGED: mpmd.fragment<mesh="m0", origin=["layer_1"], stage=1> {{.*}} {shardopt.kind = "bwd"}
// STAGED: mpmd.fragment<mesh="m0", origin=["layer_0"], stage=0> {{.*}} {shardopt.kind = "bwd"}

// EQUAL: lengths = array<i64: 1, 1, 2>
// A call takes longer here than all that it computes.
// AUTO: lengths = array<i64: 4>
