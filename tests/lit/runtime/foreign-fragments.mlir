// Programs with fragments and no microbatch loop, as others write them: they are lowered, run, and checked against what
// they compute on one device. A function may have any name; what it does not call goes.
// RUN: shardopt run %s --entry step --quick-compile --steps 2 --check --outputs %t.npz | FileCheck %s
// RUN: python3 -c "import numpy as np; f = np.load('%t.npz'); assert sorted(f) == ['out0', 'out1'] and f['out0'].shape == (4, 8)"
// RUN: shardopt program %s --entry step | FileCheck %s --check-prefix=PROGRAM
// RUN: shardopt run %s --entry other --quick-compile --check | FileCheck %s --check-prefix=OTHER
// RUN: not shardopt run %s 2>&1 | FileCheck %s --check-prefix=WHICH
// RUN: not shardopt run %s --entry stpe 2>&1 | FileCheck %s --check-prefix=TYPO
// RUN: not shardopt run %s --entry step --outputs %t.dir/none/out.npz 2>&1 | FileCheck %s --check-prefix=TARGET

// CHECK: check passed: 2 of 2 outputs
// CHECK: step 1
// PROGRAM: RUN @forward(%0, %1) // fragment stage 0
// PROGRAM: RUN @loss(
// OTHER: check passed: 1 of 1 outputs
// WHICH: error: expected a function @main, or --entry with one of: step, other
// TYPO: error: unknown function: 'stpe'; did you mean 'step'?
// TARGET: error: cannot write

!x = !mpmd.mesh_tensor<"m1", tensor<4x8xf32>, sharding=<@mesh, [{"x"}, {}]>>
!w = !mpmd.mesh_tensor<"m1", tensor<8x8xf32>>
!y = !mpmd.mesh_tensor<"m2", tensor<4x8xf32>>
!l = !mpmd.mesh_tensor<"m2", tensor<f32>>
#topology = #mpmd.topology<<"m1": <["x"=2]>>, <"m2": <["x"=2]>>>

// The activation that arrives is read twice: by the fragment and by whoever called.
func.func public @step(%x: !x, %w: !w) -> (!y, !l) attributes {topology = #topology} {
  %h = mpmd.fragment<mesh="m1", origin=["forward"]> (%x, %w) (%a: tensor<4x8xf32>, %b: tensor<8x8xf32>) {
    %d = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
    %t = stablehlo.tanh %d : tensor<4x8xf32>
    mpmd.return %t : tensor<4x8xf32>
  } : (!x, !w) -> !x
  %far = mpmd.transfer %h : (!x) -> !y
  %loss = mpmd.fragment<mesh="m2", origin=["loss"]> (%far) (%a: tensor<4x8xf32>) {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %s = stablehlo.multiply %a, %a : tensor<4x8xf32>
    %r = stablehlo.reduce(%s init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x8xf32>, tensor<f32>) -> tensor<f32>
    mpmd.return %r : tensor<f32>
  } : (!y) -> !l
  return %far, %loss : !y, !l
}

// A transfer inside of a mesh hands its buffer on: the fragment must not write over it.
func.func public @other(%y: !y) -> !y attributes {topology = #topology} {
  %a = mpmd.fragment<mesh="m2", origin=["first"]> (%y) (%v: tensor<4x8xf32>) {
    %r = stablehlo.add %v, %v : tensor<4x8xf32>
    mpmd.return %r : tensor<4x8xf32>
  } : (!y) -> !y
  %same = mpmd.transfer %a : (!y) -> !y
  %b = mpmd.fragment<mesh="m2", origin=["second"]> (%a) (%v: tensor<4x8xf32>) {
    %r = stablehlo.multiply %v, %v : tensor<4x8xf32>
    mpmd.return %r : tensor<4x8xf32>
  } : (!y) -> !y
  %c = mpmd.fragment<mesh="m2", origin=["third"]> (%b, %same) (%v: tensor<4x8xf32>, %u: tensor<4x8xf32>) {
    %r = stablehlo.add %v, %u : tensor<4x8xf32>
    mpmd.return %r : tensor<4x8xf32>
  } : (!y, !y) -> !y
  return %c : !y
}
