// How IR is printed: large constants are cut in dumps and kept in the output, unless something else is asked for.
// RUN: shardopt-opt %s --cse --mlir-print-ir-after-all 2>%t.dump | FileCheck %s --check-prefix=OUTPUT
// RUN: FileCheck %s --check-prefix=DUMP < %t.dump
// RUN: shardopt-opt %s --mlir-elide-elementsattrs-if-larger=2 | FileCheck %s --check-prefix=ELIDE
// RUN: shardopt-opt %s --mlir-elide-resource-strings-if-larger=2 | FileCheck %s --check-prefix=RESOURCE
// RUN: shardopt-opt %s --cse --mlir-print-ir-after-all --mlir-elide-elementsattrs-if-larger=100 -o %t 2>&1 | FileCheck %s --check-prefix=OUTPUT
// RUN: shardopt-opt %s --mlir-print-op-generic | FileCheck %s --check-prefix=GENERIC
// RUN: shardopt-opt %s --mlir-print-debuginfo --mlir-print-local-scope | FileCheck %s --check-prefix=LOCAL
// RUN: shardopt-opt %s --mlir-pretty-debuginfo | FileCheck %s --check-prefix=PRETTY
// RUN: shardopt-opt %s --mlir-print-skip-regions | FileCheck %s --check-prefix=SKIP
// RUN: shardopt-opt %s --mlir-use-nameloc-as-prefix | FileCheck %s --check-prefix=NAMES

// OUTPUT: stablehlo.constant dense<[1, 2, 3,
// DUMP: stablehlo.constant dense_resource<__elided__> : tensor<18xi32>
// DUMP: stablehlo.constant dense<[1, 2, 3]> : tensor<3xi32>
// ELIDE: dense_resource<__elided__> : tensor<18xi32>
// ELIDE: dense_resource<__elided__> : tensor<3xi32>
// RESOURCE: dense_resource<weights>
// RESOURCE-NOT: 0x0400
// GENERIC: "func.func"()
// LOCAL: stablehlo.constant {{.*}} loc("seeds"("model.py":3:4))
// PRETTY: stablehlo.constant {{.*}}"seeds"
// SKIP: {{^}}module {...}
// NAMES: %seeds = stablehlo.constant
func.func @main() -> (tensor<18xi32>, tensor<3xi32>, tensor<2xi32>) {
  %0 = stablehlo.constant dense<[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18]> : tensor<18xi32> loc("seeds"("model.py":3:4))
  %1 = stablehlo.constant dense<[1, 2, 3]> : tensor<3xi32>
  %2 = stablehlo.constant dense_resource<weights> : tensor<2xi32>
  return %0, %1, %2 : tensor<18xi32>, tensor<3xi32>, tensor<2xi32>
}

{-#
  dialect_resources: {
    builtin: {
      weights: "0x040000000100000002000000"
    }
  }
#-}
