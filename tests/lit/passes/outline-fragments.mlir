// RUN: sed -e 's/, recompute = "full"//' %S/Inputs/placed.mlir > %t.mlir
// RUN: shardopt-opt %t.mlir --shardopt-outline-fragments --shardopt-verify-staged | FileCheck %s
// RUN: sed -e 's/mesh = "m1"}/mesh = "m0"}/' -e 's/, <"m1" : <\["x"=1\]>>//' -e 's/, array<i64: 1>\], shardopt.stages/], shardopt.stages/' %t.mlir > %t.shared
// RUN: shardopt-opt %t.shared --shardopt-outline-fragments --shardopt-verify-staged | FileCheck %s --check-prefix=SHARED
// RUN: sed -e 's/{layers = array<i64: 0, 0>, mesh = "m0"}, {layers = array<i64: 1, 1>/{layers = array<i64: 0, 1>/' %t.mlir > %t.one
// RUN: shardopt-opt %t.one --shardopt-outline-fragments | FileCheck %s --check-prefix=ONE

// Arguments and results live where their layer does; each stage makes its own zeros and runs its own update.
// CHECK-LABEL: func.func public @main
// CHECK-SAME: %[[W0:[a-z0-9]+]]: !mpmd.mesh_tensor<"m0", tensor<4x4xf32>> {tf.aliasing_output = 0 : i32}
// CHECK-SAME: %[[W1:[a-z0-9]+]]: !mpmd.mesh_tensor<"m1", tensor<4x4xf32>> {tf.aliasing_output = 1 : i32}
// CHECK-SAME: attributes {shardopt.devices = [array<i64: 0>, array<i64: 1>], topology = #mpmd.topology<<"m0" : <["x"=1]>>, <"m1" : <["x"=1]>>>}
// CHECK: %[[Z0:.*]] = mpmd.fragment<mesh="m0", origin=["prologue"], stage=0> () {shardopt.kind = "prologue"}
// CHECK: %[[Z1:.*]] = mpmd.fragment<mesh="m1", origin=["prologue"], stage=1> () {shardopt.kind = "prologue"}
// CHECK: %[[R:.*]]:2 = mpmd.for (%[[Z0]], %[[Z1]]) {iterations = 2 : ui32, shardopt.in_flight = array<i64: 2, 1>}
// CHECK: mpmd.fragment<mesh="m0", origin=["layer_0"], stage=0> (%[[W0]], %[[R]]#0) {shardopt.kind = "update"}
// CHECK: mpmd.fragment<mesh="m1", origin=["layer_1"], stage=1> (%[[W1]], %[[R]]#1) {shardopt.kind = "update"}

// The last stage has one fragment for forward and backward; activations go forward, their gradients back.
// CHECK-LABEL: func.func private @microbatch
// CHECK: %[[H:.*]] = mpmd.fragment<mesh="m0", origin=["layer_0"], stage=0> {{.*}} {shardopt.kind = "fwd"}
// CHECK: %[[H1:.*]] = mpmd.transfer %[[H]] : (!mpmd.mesh_tensor<"m0", tensor<4x4xf32>>) -> !mpmd.mesh_tensor<"m1", tensor<4x4xf32>>
// CHECK: %[[LAST:.*]]:2 = mpmd.fragment<mesh="m1", origin=["layer_1"], stage=1> (%[[H1]], {{.*}} {shardopt.backward, shardopt.kind = "fwd"}
// CHECK: %[[DH:.*]] = mpmd.transfer %[[LAST]]#0 : (!mpmd.mesh_tensor<"m1", tensor<4x4xf32>>) -> !mpmd.mesh_tensor<"m0", tensor<4x4xf32>>
// CHECK: mpmd.fragment<mesh="m0", origin=["layer_0"], stage=0> ({{.*}}%[[DH]]{{.*}}) {shardopt.kind = "bwd"}
// CHECK-NOT: shardopt.layer

// Stages that share a mesh stay fragments of their own, and need no transfers.
// SHARED-LABEL: func.func private @microbatch
// SHARED-NOT: mpmd.transfer
// SHARED: mpmd.fragment<mesh="m0", origin=["layer_0"], stage=0> {{.*}} {shardopt.kind = "fwd"}
// SHARED-NOT: mpmd.transfer
// SHARED: mpmd.fragment<mesh="m0", origin=["layer_1"], stage=1> {{.*}} {shardopt.backward, shardopt.kind = "fwd"}
// SHARED-NOT: mpmd.transfer
// SHARED: mpmd.fragment<mesh="m0", origin=["layer_0"], stage=0> {{.*}} {shardopt.kind = "bwd"}

// One stage of both layers is one fragment.
// ONE-LABEL: func.func private @microbatch
// ONE: mpmd.fragment<mesh="m1", origin=["layer_0", "layer_1"], stage=0>
// ONE-NOT: mpmd.fragment
