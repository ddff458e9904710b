// Remarks are printed on request, by category or by kind; the note with the whole op is off unless asked for.
// RUN: shardopt-opt %s --shardopt-inline-calls --remarks -o %t 2>&1 | FileCheck %s
// RUN: shardopt-opt %s --shardopt-inline-calls --remarks=missed -o %t 2>&1 | FileCheck %s
// RUN: shardopt-opt %s --shardopt-inline-calls --remarks=passed,dropped-attribute -o %t 2>&1 | FileCheck %s
// RUN: shardopt-opt %s --shardopt-inline-calls --remarks=analysis --verify-diagnostics -o %t
// RUN: shardopt-opt %s --shardopt-inline-calls -o %t 2>&1 | FileCheck %s --check-prefix=SILENT --allow-empty
// RUN: not shardopt-opt %S/Inputs/wrong-return.mlir 2>&1 | FileCheck %s --check-prefix=SHORT
// RUN: not shardopt-opt %S/Inputs/wrong-return.mlir --mlir-print-op-on-diagnostic 2>&1 | FileCheck %s --check-prefix=LONG

// CHECK: remark: inlining @f drops mhlo.frontend_attributes of the call [dropped-attribute]
// SILENT-NOT: remark
// SHORT: wrong-return.mlir:2:3: error:
// SHORT-NOT: see current operation
// LONG: wrong-return.mlir:2:3: error:
// LONG: note: see current operation: "func.return"
func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = call @f(%x) {mhlo.frontend_attributes = {a = "b"}} : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

func.func private @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}
