// Values under names of their own in all regions, and who reads them.
// RUN: shardopt-opt %s --mlir-print-unique-ssa-ids | FileCheck %s
// RUN: shardopt-opt %s --mlir-print-unique-ssa-ids | shardopt-opt | FileCheck %s --check-prefix=AGAIN
// RUN: shardopt-opt %s --mlir-print-value-users | FileCheck %s --check-prefix=USERS
// RUN: not shardopt-opt %s --mlir-print-value-users --mlir-print-debuginfo 2>&1 | FileCheck %s --check-prefix=LOCATIONS

// LOCATIONS: error: unique names are given by locations

// CHECK-LABEL: func.func @f(%arg0: tensor<i1>, %arg1: tensor<4xf32>)
// CHECK-NEXT:    %cst = stablehlo.constant
// CHECK-NEXT:    %0:2 = "stablehlo.if"(%arg0) ({
// CHECK-NEXT:      %1 = stablehlo.add %arg1, %cst
// CHECK-NEXT:      %cst_0 = stablehlo.constant
// CHECK-NEXT:      stablehlo.return %1, %cst_0
// CHECK:           %2 = stablehlo.negate %arg1
// CHECK-NEXT:      %cst_1 = stablehlo.constant
// CHECK-NEXT:      stablehlo.return %2, %cst_1
// CHECK:         return %0#1
// CHECK-LABEL: func.func @g(%arg2: tensor<4xf32>)
// CHECK-NEXT:    %3 = stablehlo.negate %arg2

// AGAIN-LABEL: func.func @g(%arg0: tensor<4xf32>)
// AGAIN-NEXT:    %0 = stablehlo.negate %arg0

// USERS:      %cst = stablehlo.constant {{.*}} // user: %1
// USERS-NEXT: %0:2 = "stablehlo.if"(%arg0) ({{[{(]+}}{{$}}
// USERS-NEXT: %1 = stablehlo.add {{.*}} // user: stablehlo.return
// USERS:      }) : (tensor<i1>) -> (tensor<4xf32>, tensor<4xf32>) // user: func.return
// USERS:      %3 = stablehlo.negate {{.*}} // users: %4, %5
// USERS-NEXT: %4 = stablehlo.add %3, %3 {{.*}} // unused
func.func @f(%a: tensor<i1>, %b: tensor<4xf32>) -> tensor<4xf32> {
  %c = stablehlo.constant dense<1.0> : tensor<4xf32>
  %0:2 = "stablehlo.if"(%a) ({
    %1 = stablehlo.add %b, %c : tensor<4xf32>
    %2 = stablehlo.constant dense<2.0> : tensor<4xf32>
    stablehlo.return %1, %2 : tensor<4xf32>, tensor<4xf32>
  }, {
    %1 = stablehlo.negate %b : tensor<4xf32>
    %2 = stablehlo.constant dense<3.0> : tensor<4xf32>
    stablehlo.return %1, %2 : tensor<4xf32>, tensor<4xf32>
  }) : (tensor<i1>) -> (tensor<4xf32>, tensor<4xf32>)
  return %0#1 : tensor<4xf32>
}
func.func @g(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.negate %a : tensor<4xf32>
  %1 = stablehlo.add %0, %0 : tensor<4xf32>
  %2 = stablehlo.multiply %0, %a : tensor<4xf32>
  return %2 : tensor<4xf32>
}
