// Fragments of a program without a microbatch loop become calls; names come from origins, equal bodies share a function,
// what dies in a call gives its buffer away, and notes for other tools, which XLA cannot read, are gone.
// RUN: shardopt-opt %s --shardopt-lower-to-fragment-calls | FileCheck %s

!t = !mpmd.mesh_tensor<"m", tensor<4xf32>>
// CHECK-LABEL: func.func public @f
// CHECK: %[[A:.*]] = mpmd.fragment_call<mesh="m", origin=["block"]> @block(%arg0)
// CHECK-NOT: shardopt
// CHECK: %[[B:.*]] = mpmd.fragment_call<mesh="m", origin=["block"(1)]> @block_1(%[[A]])
// CHECK: mpmd.fragment_call<mesh="m", origin=["a/b", "c"]> @a_b_c(%[[B]])
// CHECK-LABEL: func.func private @block(
// CHECK-SAME: %arg0: tensor<4xf32>) ->
// CHECK-SAME: mesh_shape = #sdy.mesh<["x"=2]>
// CHECK-LABEL: func.func private @block_1(
// CHECK-SAME: tf.aliasing_output = 0
// CHECK-LABEL: func.func private @a_b_c(
// CHECK-NEXT: %[[R:.*]] = stablehlo.abs %arg0 : tensor<4xf32>
// CHECK-NEXT: return %[[R]]
func.func public @f(%x: !t) -> !t attributes {topology = #mpmd.topology<<"m": <["x"=2]>>>} {
  %0 = mpmd.fragment<mesh="m", origin=["block"]> (%x) (%a: tensor<4xf32>) {
    %r = stablehlo.tanh %a : tensor<4xf32>
    mpmd.return %r : tensor<4xf32>
  } : (!t) -> !t
  %1 = mpmd.fragment<mesh="m", origin=["block"(1)]> (%0) (%a: tensor<4xf32>) {
    %r = stablehlo.tanh %a : tensor<4xf32>
    mpmd.return %r : tensor<4xf32>
  } : (!t) -> !t
  %2 = mpmd.fragment<mesh="m", origin=["a/b", "c"]> (%1) (%a: tensor<4xf32>) {
    %r = stablehlo.abs %a {mpmd.reduce = #mpmd.reduction<max>} : tensor<4xf32>
    %s = stablehlo.custom_call @Sharding(%r) {mhlo.no_cse} : (tensor<4xf32>) -> tensor<4xf32>
    mpmd.return %s : tensor<4xf32>
  } : (!t) -> !t
  return %2 : !t
}
