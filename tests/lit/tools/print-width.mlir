// Long lines are broken at the commas of lists: in dumps, and in the output where that is asked for.
// What is broken reads back.
// RUN: shardopt-opt %s --print-width=60 | FileCheck %s
// RUN: shardopt-opt %s --print-width=60 | shardopt-opt | FileCheck %s --check-prefix=WHOLE
// RUN: shardopt-opt %s --cse --mlir-print-ir-after-all -o %t 2>&1 | FileCheck %s --check-prefix=DUMP
// RUN: shardopt-opt %s --cse --mlir-print-ir-after-all --print-width=0 -o %t 2>&1 | FileCheck %s --check-prefix=WHOLE
// RUN: not shardopt-opt %s --print-width=wide 2>&1 | FileCheck %s --check-prefix=INVALID

// CHECK:   func.func @main(
// CHECK-NEXT:     %arg0: tensor<4xf32>,
// CHECK-NEXT:     %arg1: tensor<4xf32>
// CHECK-NEXT:   ) -> (tensor<4xf32>, tensor<4xf32>) attributes {
// CHECK-NEXT:     shardopt.choices = [
// CHECK-NEXT:       "dot_general [{}, {x}], [{}] -> [{x}]",
// CHECK-NEXT:       "add [{}, {y}] -> [{}, {y}]"
// CHECK-NEXT:     ]
// CHECK-NEXT:   } {
// WHOLE: func.func @main(%arg0: tensor<4xf32>, %arg1: tensor<4xf32>) -> {{.*}} attributes {shardopt.choices = ["dot_general [{}, {x}], [{}] -> [{x}]", "add [{}, {y}] -> [{}, {y}]"]} {
// DUMP: func.func @main(%arg0: tensor<4xf32>, %arg1: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) attributes {
// DUMP-NEXT: shardopt.choices = ["dot_general
// INVALID: expected a number of characters, found 'wide'
func.func @main(%x: tensor<4xf32>, %y: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) attributes {shardopt.choices = ["dot_general [{}, {x}], [{}] -> [{x}]", "add [{}, {y}] -> [{}, {y}]"]} {
  return %x, %y : tensor<4xf32>, tensor<4xf32>
}
