// Parts that are on no mesh yet are put on meshes; the numbers are those of numpy, wherever they are put.
// RUN: python3 -c "import numpy as np; x = np.linspace(-1, 1, 32, dtype='f4').reshape(4, 8); np.savez('%t.in.npz', in0=x, in1=x[::-1])"
// RUN: shardopt run %s --quick-compile --inputs %t.in.npz --outputs %t.npz --check | FileCheck %s
// RUN: python3 -c "import numpy as np; i, o = np.load('%t.in.npz'), np.load('%t.npz'); x, w = i['in0'], i['in1']; f = np.tanh(x) * 2; g = f * w; assert np.allclose(o['out0'], f + g + w + w, atol=1e-5); assert np.allclose(o['out1'], 2)"
// RUN: shardopt run %s --quick-compile --inputs %t.in.npz --outputs %t.other.npz --name-to-mesh f@m2,g@m1 --check | FileCheck %s
// RUN: python3 -c "import numpy as np; a, b = np.load('%t.npz'), np.load('%t.other.npz'); assert all(np.allclose(a[k], b[k], atol=1e-5) for k in a.files)"
// RUN: shardopt program %s | FileCheck %s --check-prefix=PROGRAM
// RUN: shardopt program %s --name-to-mesh f@m2 | FileCheck %s --check-prefix=STATED
// RUN: not shardopt run %s --name-to-mesh h@m1 2>&1 | FileCheck %s --check-prefix=NAME

// CHECK: check passed: 2 of 2 outputs
// PROGRAM: mesh m1
// PROGRAM: RUN @f(
// PROGRAM: mesh m2
// PROGRAM: RUN @g(
// STATED: mesh m1
// STATED-NOT: RUN @f(
// STATED: mesh m2
// STATED: RUN @f(
// NAME: error: unknown name of a computation or tensor: 'h'; expected one of f, g
func.func @main(%x: tensor<4x8xf32>, %w: tensor<4x8xf32>) -> (tensor<4x8xf32>, tensor<4x8xf32>)
    attributes {topology = #mpmd.topology<<"m1" : <["x"=2]>>, <"m2" : <["x"=2]>>>} {
  %c = stablehlo.constant dense<2.0> : tensor<4x8xf32>
  %0 = mpmd.named_computation<"f"> (%x, %c) (%p: tensor<4x8xf32>, %q: tensor<4x8xf32>) {
    %1 = stablehlo.tanh %p : tensor<4x8xf32>
    %2 = stablehlo.multiply %1, %q : tensor<4x8xf32>
    mpmd.return %2 : tensor<4x8xf32>
  } : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %3 = mpmd.broadcast %0 : tensor<4x8xf32>
  %4 = mpmd.named_computation<"g"> (%3, %w) (%p: tensor<4x8xf32>, %q: tensor<4x8xf32>) {
    %5 = stablehlo.multiply %p, %q : tensor<4x8xf32>
    mpmd.return %5 : tensor<4x8xf32>
  } : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %6 = mpmd.reduce<add> %3, %4, %w, %w : (tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  return %6, %c : tensor<4x8xf32>, tensor<4x8xf32>
}
