// RUN: shardopt-opt %S/Inputs/two-stages.mlir --shardopt-lower-to-fragment-calls --shardopt-verify-exported | FileCheck %s
// Two stages with equal bodies, shardings and aliases share one function.
// RUN: sed -e 's/!a = .*/!a = !mpmd.mesh_tensor<"m0", tensor<4x4xf32>, sharding=<@m0, [{}, {}]>>/' -e 's/{devices=\[2,1\]<=\[2\]}/{replicated}/' %S/Inputs/two-stages.mlir | shardopt-opt --shardopt-lower-to-fragment-calls | FileCheck %s --check-prefix=EQUAL

// CHECK-LABEL: func.func public @main
// CHECK: mpmd.fragment_call<mesh="m0", origin=["prologue"]> @stage0_prologue() {shardopt.cost = {{.*}}, shardopt.kind = "prologue", shardopt.stage = 0 : i64}
// CHECK: %[[R:.*]]:2 = mpmd.for
// CHECK: mpmd.fragment_call<mesh="m0", origin=["layer_0"]> @stage0_update(%arg0, %[[R]]#0)
// CHECK: mpmd.fragment_call<mesh="m1", origin=["layer_1"]> @stage1_update(%arg1, %[[R]]#1)

// CHECK-LABEL: func.func private @microbatch
// CHECK: %[[H:.*]] = mpmd.fragment_call<mesh="m0", origin=["layer_0"]> @stage0_fwd(%arg2, %arg0)
// CHECK: %[[H1:.*]] = mpmd.transfer {shardopt.resharding = {{.*}} %[[H]]
// CHECK: %[[LAST:.*]]:2 = mpmd.fragment_call<mesh="m1", origin=["layer_1"]> @stage1_fwd(%[[H1]], %arg1, %arg4,
// CHECK: mpmd.fragment_call<mesh="m0", origin=["layer_0"]> @stage0_bwd(
// CHECK-NOT: mpmd.fragment<

// The donated weight keeps its buffer; the accumulated gradient has no result left.
// CHECK-LABEL: func.func private @stage0_update
// CHECK-SAME: (%arg0: tensor<4x4xf32> {mhlo.sharding = "{devices=[2,1]<=[2]}", tf.aliasing_output = 0 : i32}, %arg1: tensor<4x4xf32> {mhlo.sharding = "{devices=[2,1]<=[2]}"})
// CHECK-SAME: -> (tensor<4x4xf32> {mhlo.sharding = "{devices=[2,1]<=[2]}"})
// CHECK-SAME: attributes {mesh_shape = #sdy.mesh<["x"=2]>}
// CHECK-NEXT: stablehlo.subtract

// Batch and weight outlive the fragment; nothing is aliased.
// CHECK-LABEL: func.func private @stage0_fwd
// CHECK-NOT: tf.aliasing_output
// CHECK-SAME: mesh_shape

// The accumulator continues in result 0, the activation that arrived gives its buffer to result 1.
// CHECK-LABEL: func.func private @stage1_fwd
// CHECK-SAME: %arg0: tensor<4x4xf32> {mhlo.sharding = "{replicated}", tf.aliasing_output = 1 : i32}
// CHECK-SAME: %arg1: tensor<4x4xf32> {mhlo.sharding = "{replicated}"}
// CHECK-SAME: %arg2: tensor<4x4xf32> {mhlo.sharding = "{replicated}", tf.aliasing_output = 0 : i32}

// CHECK-LABEL: func.func private @stage0_bwd
// CHECK-SAME: %arg2: tensor<4x4xf32> {mhlo.sharding = "{devices=[2,1]<=[2]}", tf.aliasing_output = 0 : i32}

// EQUAL: mpmd.fragment_call<mesh="m0", origin=["prologue"]> @stage0_prologue
// EQUAL: mpmd.fragment_call<mesh="m1", origin=["prologue"]> @stage0_prologue
// EQUAL: mpmd.fragment_call<mesh="m0", origin=["layer_0"]> @stage0_update
// EQUAL: mpmd.fragment_call<mesh="m1", origin=["layer_1"]> @stage0_update
// EQUAL-NOT: @stage1_update
