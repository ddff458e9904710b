// Numbered files after every phase, and dumps of every pipeline for runs that start elsewhere.
// RUN: rm -rf %t.dir %t.all
// RUN: shardopt-opt %s --to=microbatch --phase-options="batch-args=none" --dump-compilation-phases-to=%t.dir -o %t
// RUN: ls %t.dir | FileCheck %s --check-prefix=FILES
// RUN: FileCheck %s --check-prefix=IMPORT < %t.dir/1-import.mlir
// RUN: shardopt-opt %t.dir/1-import.mlir --from=microbatch --to=microbatch --phase-options="batch-args=none" --print-width=120 | diff - %t.dir/2-microbatch.mlir
// RUN: env SHARDOPT_DUMP_IR_TO=%t.all shardopt-opt %s --cse -o %t
// RUN: env SHARDOPT_DUMP_IR_TO=%t.all shardopt-opt %s --canonicalize -o %t
// RUN: ls %t.all/001 %t.all/002 | FileCheck %s --check-prefix=ALL
// RUN: not shardopt-opt %s --cse --dump-compilation-phases-to=%s/x 2>&1 | FileCheck %s --check-prefix=WRONG

// FILES: 0-input.mlir
// FILES-NEXT: 1-import.mlir
// FILES-NEXT: 2-microbatch.mlir
// FILES-NOT: mlir
// IMPORT: stablehlo.multiply
// ALL: 001:
// ALL-NEXT: 00_input.mlir
// ALL-NEXT: 01_cse.mlir
// ALL-NEXT: pipeline.txt
// ALL-NEXT: timing.json
// ALL: 002:
// ALL: 01_canonicalize.mlir
// WRONG: error: cannot create the directory
func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = chlo.square %x : tensor<4xf32> -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
