// One file a pass, and the list of them; dumps of an earlier run are removed.
// RUN: rm -rf %t && mkdir %t && touch %t/03_stale.mlir
// RUN: shardopt-opt %s --pass-pipeline='builtin.module(cse,func.func(canonicalize{max-iterations=2}))' --mlir-print-ir-tree-dir=%t -o %t/out.mlir
// RUN: shardopt-opt %s --cse --mlir-print-ir-after-all --mlir-print-ir-tree-dir=%t.all -o %t.mlir 2>&1 | FileCheck %s --check-prefix=NONE --allow-empty
// RUN: ls %t | FileCheck %s --check-prefix=FILES
// RUN: FileCheck %s --check-prefix=PIPELINE < %t/pipeline.txt
// RUN: FileCheck %s --check-prefix=INPUT < %t/00_input.mlir
// RUN: FileCheck %s --check-prefix=CSE < %t/01_cse.mlir

// NONE-NOT: {{.}}

// FILES: 00_input.mlir
// FILES-NEXT: 01_cse.mlir
// FILES-NEXT: 02_canonicalize.mlir
// FILES-NEXT: out.mlir
// FILES-NEXT: pipeline.txt
// FILES-NEXT: timing.json

// PIPELINE: builtin.module(cse,func.func(canonicalize{max-iterations=2}))
// PIPELINE: 01 cse
// PIPELINE-NEXT: 02 canonicalize{max-iterations=2}  in func.func

// INPUT-COUNT-2: stablehlo.add
// CSE: stablehlo.add
// CSE-NOT: stablehlo.add
func.func @main(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %0 = stablehlo.add %x, %x : tensor<4xf32>
  %1 = stablehlo.add %x, %x : tensor<4xf32>
  return %0, %1 : tensor<4xf32>, tensor<4xf32>
}
