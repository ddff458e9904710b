// What passes change, as a diff in which values keep their names: one operation goes, and the
// numbers of those behind it do not show. Passes that change nothing print nothing.
// RUN: shardopt-opt %s --cse --symbol-dce --canonicalize --mlir-print-ir-diff -o %t 2>&1 | FileCheck %s
// RUN: shardopt-opt %s --cse --mlir-print-ir-diff --color -o %t 2>&1 | FileCheck %s --check-prefix=COLOR

// CHECK: // -----// IR Diff After cse //----- //
// CHECK-NEXT: @@ -1,8 +1,7 @@
// CHECK-NEXT:  module {
// CHECK-NEXT:    func.func @main(
// CHECK-NEXT: {{^}}-    %0 = stablehlo.add %arg0, %arg0 : tensor<4xf32>
// CHECK-NEXT:      %1 = stablehlo.add %arg0, %arg0 : tensor<4xf32>
// CHECK-NEXT: {{^}}-    %2 = stablehlo.tanh %0 : tensor<4xf32>
// CHECK-NEXT: {{^}}+    %2 = stablehlo.tanh %1 : tensor<4xf32>
// CHECK-NEXT:      %3 = stablehlo.subtract %1, %2 : tensor<4xf32>
// CHECK-NEXT:      return %3 : tensor<4xf32>
// CHECK-NOT: IR Diff
// COLOR: {{.}}[31m-    %0 = stablehlo.add
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.add %x, %x : tensor<4xf32>
  %1 = stablehlo.add %x, %x : tensor<4xf32>
  %2 = stablehlo.tanh %0 : tensor<4xf32>
  %3 = stablehlo.subtract %1, %2 : tensor<4xf32>
  return %3 : tensor<4xf32>
}
