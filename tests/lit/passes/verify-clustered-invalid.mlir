// Each line breaks the accepted module of verify-clustered.mlir in one place.
// RUN: sed -e 's/multiply %x, %k {shardopt.layer = 0 : i64}/multiply %x, %k/' %S/verify-clustered.mlir > %t.none.mlir
// RUN: not shardopt-opt %t.none.mlir --shardopt-verify-clustered 2>&1 | FileCheck %s --check-prefix=NONE
// RUN: sed -e 's/multiply %x, %k {shardopt.layer = 0 : i64}/multiply %x, %k {shardopt.layer = 0 : i32}/' %S/verify-clustered.mlir > %t.type.mlir
// RUN: not shardopt-opt %t.type.mlir --shardopt-verify-clustered 2>&1 | FileCheck %s --check-prefix=TYPE
// RUN: sed -e 's/multiply %x, %k {shardopt.layer = 0 : i64}/multiply %x, %k {shardopt.layer = -2 : i64}/' %S/verify-clustered.mlir > %t.low.mlir
// RUN: not shardopt-opt %t.low.mlir --shardopt-verify-clustered 2>&1 | FileCheck %s --check-prefix=LOW
// RUN: sed -e 's/multiply %x, %k {shardopt.layer = 0 : i64}/multiply %x, %k {shardopt.layer = 2 : i64}/' %S/verify-clustered.mlir > %t.gap.mlir
// RUN: not shardopt-opt %t.gap.mlir --shardopt-verify-clustered 2>&1 | FileCheck %s --check-prefix=GAP
// RUN: sed -e 's/multiply %x, %k {shardopt.layer = 0 : i64}/multiply %a, %k {shardopt.layer = -1 : i64}/' %S/verify-clustered.mlir > %t.shared.mlir
// RUN: not shardopt-opt %t.shared.mlir --shardopt-verify-clustered 2>&1 | FileCheck %s --check-prefix=SHARED
// RUN: sed -e 's/add %a, %v {shardopt.layer = 0 : i64}/add %k, %v {shardopt.layer = -1 : i64}/' %S/verify-clustered.mlir > %t.made.mlir
// RUN: not shardopt-opt %t.made.mlir --shardopt-verify-clustered 2>&1 | FileCheck %s --check-prefix=MADE
// RUN: sed -e 's/tensor<f32> {shardopt.layer = 0 : i64})/tensor<f32>)/' %S/verify-clustered.mlir > %t.argument.mlir
// RUN: not shardopt-opt %t.argument.mlir --shardopt-verify-clustered 2>&1 | FileCheck %s --check-prefix=ARGUMENT

// NONE: none.mlir:{{[0-9]+}}:8: error: expected 'shardopt.layer' of type i64 on 'stablehlo.multiply', found none
// TYPE: error: expected 'shardopt.layer' of type i64 on 'stablehlo.multiply', found 0 : i32
// LOW: error: expected a layer of at least -1 on 'stablehlo.multiply', found -2
// GAP: error: expected operations in every layer up to 2, found none in 1
// SHARED: error: expected 'stablehlo.multiply', which has no layer, to read none either, found it reading accumulator 1 of the body
// MADE: error: expected 'stablehlo.add', which has no layer, to read none either, found it reading 'stablehlo.multiply' of layer 0
// ARGUMENT: error: expected 'shardopt.layer' of type i64 on argument 0 of '@main', found none
