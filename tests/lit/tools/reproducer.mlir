// A failing pass says how to run it again: from the input, from a dump, or from a reproducer.
// RUN: not shardopt-opt %s --canonicalize --shardopt-unroll-loops --shardopt-verify-imported 2>&1 | FileCheck %s --check-prefix=COMMAND
// RUN: not shardopt-opt %s --canonicalize --shardopt-verify-imported --mlir-print-ir-tree-dir=%t.tree 2>&1 | FileCheck %s --check-prefix=TREE
// RUN: not shardopt-opt %s --canonicalize --shardopt-verify-imported --mlir-pass-pipeline-crash-reproducer=%t.whole 2>&1 | FileCheck %s --check-prefix=HOWTO
// RUN: FileCheck %s --check-prefix=WHOLE < %t.whole
// RUN: not shardopt-opt %s --canonicalize --shardopt-verify-imported --mlir-pass-pipeline-crash-reproducer=%t.local --mlir-pass-pipeline-local-reproducer -o %t 2>%t.err
// RUN: FileCheck %s --check-prefix=LOCAL < %t.local
// Running them fails as the first run did, at the place in the original file.
// RUN: not shardopt-opt %t.whole --run-reproducer 2>&1 | FileCheck %s --check-prefix=AGAIN
// RUN: not shardopt-opt %t.local --run-reproducer 2>&1 | FileCheck %s --check-prefix=AGAIN
// RUN: not shardopt-opt %s --run-reproducer 2>&1 | FileCheck %s --check-prefix=NONE
// One of a run that succeeds, on request; it holds options with quotes.
// RUN: shardopt-opt %s --shardopt-unroll-loops='max-iterations="4"' --mlir-generate-reproducer=%t.any -o %t.out
// RUN: shardopt-opt %t.any --run-reproducer --dump-pass-pipeline -o %t.out2 2>&1 | FileCheck %s --check-prefix=ANY

// COMMAND: reproducer.mlir:[[@LINE+25]]:1: error:
// COMMAND: shardopt-opt: note: to run shardopt-verify-imported again: shardopt-opt {{.*}}reproducer.mlir --pass-pipeline='
// COMMAND-SAME: builtin.module(canonicalize,shardopt-unroll-loops,shardopt-verify-imported)'

// TREE: note: to run shardopt-verify-imported again: shardopt-opt {{.*}}.tree/01_canonicalize.mlir --pass-pipeline='builtin.module(shardopt-verify-imported)'
// HOWTO: note: to run shardopt-verify-imported again: shardopt-opt {{.*}}.whole --run-reproducer

// WHOLE: stablehlo.add
// WHOLE: mlir_reproducer: {
// WHOLE-NEXT: pipeline: "builtin.module(canonicalize,shardopt-verify-imported)",
// WHOLE-NEXT: disable_threading: true,
// WHOLE-NEXT: verify_each: true
// LOCAL-NOT: stablehlo.add
// LOCAL: pipeline: "builtin.module(shardopt-verify-imported)",

// AGAIN: reproducer.mlir:{{[0-9]+}}:1: error:
// NONE: error: '{{.*}}reproducer.mlir' is no reproducer
// ANY: Pass Manager with 1 passes:
// ANY-NEXT: builtin.module(shardopt-unroll-loops{max-iterations=4})
func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %unused = stablehlo.add %x, %x : tensor<4xf32>
  %0 = call @g(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

func.func private @g(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}
