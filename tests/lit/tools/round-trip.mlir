// Without passes the driver reads, verifies and writes: text, bytecode, and text with locations.
// RUN: shardopt-opt %s | FileCheck %s
// RUN: shardopt-opt %s | shardopt-opt | FileCheck %s
// RUN: shardopt-opt %s --emit-bytecode -o %t.mlirbc
// RUN: shardopt-opt %t.mlirbc | FileCheck %s
// RUN: shardopt-opt %s --mlir-print-debuginfo | FileCheck %s --check-prefix=LOC

// CHECK-LABEL: func.func @main
// CHECK-SAME: topology = #mpmd.topology<<"m" : <["x"=2]>>>
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> attributes {topology = #mpmd.topology<<"m" : <["x"=2]>>>} {
  // CHECK: %[[SUM:.*]] = stablehlo.add %{{.*}}, %{{.*}} {shardopt.layer = 1 : i64}
  // CHECK: return %[[SUM]]
  // LOC: stablehlo.add {{.*}} loc(#[[AT:loc[0-9]*]])
  // LOC: #[[AT]] = loc("{{.*}}round-trip.mlir":[[@LINE+1]]:8)
  %0 = stablehlo.add %x, %x {shardopt.layer = 1 : i64} : tensor<4xf32>
  return %0 : tensor<4xf32>
}
