// A phase is a flag, a step of a pipeline, and an end of a range; its options reach the passes that have them.
// RUN: shardopt-opt %s --shardopt-import --mlir-print-ir-tree-dir=%t.flag | FileCheck %s
// RUN: shardopt-opt %s --pass-pipeline='builtin.module(shardopt-import)' | FileCheck %s
// RUN: shardopt-opt %s --to=import | FileCheck %s
// RUN: FileCheck %s --check-prefix=PLAIN < %t.flag/pipeline.txt
// RUN: shardopt-opt %s --from=import --to=import --phase-options="unroll=true max-iterations=4" --mlir-print-ir-tree-dir=%t.range | FileCheck %s
// RUN: FileCheck %s --check-prefix=UNROLL < %t.range/pipeline.txt
// RUN: not shardopt-opt %s --to=import --phase-options="unrol=true" 2>&1 | FileCheck %s --check-prefix=OPTION

// PLAIN: builtin.module(shardopt-import)
// PLAIN: {{[0-9]+}} shardopt-inline-calls  in shardopt-import
// PLAIN-NOT: unroll
// PLAIN: shardopt-verify-imported  in shardopt-import

// UNROLL: builtin.module(shardopt-import{unroll=true max-iterations=4})
// UNROLL: {{[0-9]+}} shardopt-unroll-loops{max-iterations=4}  in shardopt-import{unroll=true max-iterations=4}

// OPTION: error: unknown option of the phases import to import: 'unrol'; did you mean 'unroll'?

// CHECK-LABEL: func.func public @main
func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  // CHECK-NEXT: stablehlo.multiply %arg0, %arg0
  %0 = call @square(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// CHECK-NOT: @square
func.func private @square(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = chlo.square %x : tensor<4xf32> -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
