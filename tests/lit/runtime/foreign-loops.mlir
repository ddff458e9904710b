// Calls of functions with fragments, and loops that are not our microbatch loop, are written out. The numbers are those of
// numpy; a loop may read its number.
// RUN: python3 -c "import numpy as np; x = np.linspace(-1, 1, 32, dtype='f4').reshape(4, 8); np.savez('%t.in.npz', in0=x, in1=x[::-1])"
// RUN: shardopt run %s --quick-compile --inputs %t.in.npz --outputs %t.npz --check | FileCheck %s
// RUN: python3 -c "import numpy as np; i, o = np.load('%t.in.npz'), np.load('%t.npz'); x, w = i['in0'], i['in1']; r = [x := (np.tanh(x) + k) * w for k in range(3)][-1]; assert np.allclose(o['out0'], r, atol=1e-5); assert np.allclose(o['out1'], np.tanh(np.tanh(r)), atol=1e-5)"
// RUN: sed -e 's/iterations = 3/iterations = 4000000000/' %s > %t.many
// RUN: not shardopt run %t.many 2>&1 | FileCheck %s --check-prefix=MANY

// CHECK: check passed: 2 of 2 outputs
// MANY: many:[[@LINE+6]]:18: error: expected loops and calls of at most 65536 operations in all when they are written out, found more
!a = !mpmd.mesh_tensor<"m1", tensor<4x8xf32>, sharding=<@mesh, [{"x"}, {}]>>
!b = !mpmd.mesh_tensor<"m2", tensor<4x8xf32>>
!i = !mpmd.mesh_tensor<"m1", tensor<ui32>>
#topology = #mpmd.topology<<"m1" : <["x"=2]>>, <"m2" : <["x"=2]>>>
func.func @main(%x: !a, %w: !a) -> (!a, !b) attributes {topology = #topology} {
  %done, %same = mpmd.for (%x, %w) {iterations = 3 : ui32, unroll_factor = 1 : ui32} (%c: !a, %v: !a, %k: !i) {
    %1 = mpmd.fragment<mesh="m1", origin=["f"]> (%c, %v, %k) (%p: tensor<4x8xf32>, %q: tensor<4x8xf32>, %n: tensor<ui32>) {
      %2 = stablehlo.tanh %p : tensor<4x8xf32>
      %3 = stablehlo.convert %n : (tensor<ui32>) -> tensor<f32>
      %4 = stablehlo.broadcast_in_dim %3, dims = [] : (tensor<f32>) -> tensor<4x8xf32>
      %5 = stablehlo.add %2, %4 : tensor<4x8xf32>
      %6 = stablehlo.multiply %5, %q : tensor<4x8xf32>
      mpmd.return %6 : tensor<4x8xf32>
    } : (!a, !a, !i) -> !a
    mpmd.return %1, %v : !a, !a
  } : !a, !a
  %once = mpmd.call @body(%done) {call_counter = 0 : ui32} : (!a) -> !a
  %twice = mpmd.call @body(%once) {call_counter = 1 : ui32} : (!a) -> !a
  %far = mpmd.transfer %twice : (!a) -> !b
  return %done, %far : !a, !b
}
func.func private @body(%x: !a) -> !a attributes {topology = #topology} {
  %0 = mpmd.fragment<mesh="m1", origin=["g"]> (%x) (%p: tensor<4x8xf32>) {
    %1 = stablehlo.tanh %p : tensor<4x8xf32>
    mpmd.return %1 : tensor<4x8xf32>
  } : (!a) -> !a
  return %0 : !a
}
