// Output forms, and that each of them reads back.
// RUN: shardopt-opt %s --emit=portable -o %t.portable
// RUN: shardopt-opt %t.portable | FileCheck %s
// RUN: shardopt-opt %s --emit-bytecode --emit-bytecode-version=1 -o %t.mlirbc
// RUN: shardopt-opt %t.mlirbc --verify-roundtrip | FileCheck %s
// RUN: shardopt-opt %S/Inputs/exported.bin | FileCheck %s --check-prefix=EXPORTED
// RUN: cat %s | shardopt-opt /dev/stdin | FileCheck %s
// RUN: not shardopt-opt %s --emit-bytecode --emit-bytecode-version=99 2>&1 | FileCheck %s --check-prefix=VERSION
// RUN: not shardopt-opt %s --emit-bytecode-version=1 2>&1 | FileCheck %s --check-prefix=ALONE
// RUN: not shardopt-opt %s --emit-bytecode --emit=portable 2>&1 | FileCheck %s --check-prefix=BOTH
// RUN: not shardopt-opt %S/Inputs/mesh-types.mlir --emit=portable 2>&1 | FileCheck %s --check-prefix=MESH

// CHECK-LABEL: func.func @main
// CHECK: stablehlo.add
// EXPORTED: module @jit__lambda
// EXPORTED: stablehlo.sine
// VERSION: error: unsupported version requested 99
// ALONE: error: --emit-bytecode-version goes with --emit-bytecode
// BOTH: error: expected one of --emit-bytecode and --emit=portable
// MESH: mesh-types.mlir:1:1: error: failed to legalize operation 'func.func'
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.add %x, %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}
