// RUN: shardopt-opt %S/Inputs/chosen.mlir --shardopt-insert-reshards --shardopt-verify-chosen | FileCheck %s --check-prefix=STAGED
// RUN: split-file %s %t
// RUN: shardopt-opt %t/stops.mlir --shardopt-insert-reshards --shardopt-verify-chosen | FileCheck %t/stops.mlir
// RUN: shardopt-opt %t/sums.mlir --shardopt-insert-reshards --shardopt-verify-chosen | FileCheck %t/sums.mlir
// RUN: shardopt-opt %t/steps.mlir --shardopt-insert-reshards --shardopt-verify-chosen | FileCheck %t/steps.mlir
// RUN: shardopt-opt %S/Inputs/chosen.mlir --shardopt-insert-reshards --mlir-pass-statistics -o %t/staged.mlir 2>&1 | FileCheck %s --check-prefix=STAGED-STATISTICS
// RUN: shardopt-opt %t/stops.mlir --shardopt-insert-reshards --mlir-pass-statistics -o %t/out.mlir 2>&1 | FileCheck %s --check-prefix=STOPS-STATISTICS
// RUN: shardopt-opt %t/sums.mlir --shardopt-insert-reshards --mlir-pass-statistics -o %t/out.mlir 2>&1 | FileCheck %s --check-prefix=SUMS-STATISTICS

// The reduced value stands in front of the part that is kept, the constant is there twice, and a stop brings rows where
// columns are.
// STAGED: %[[COLUMNS:.*]] = stablehlo.constant {shardopt.strategy = "-> [{}, {x}]"}
// STAGED: %[[ROWS:.*]] = stablehlo.constant {shardopt.strategy = "-> [{x}, {}]"}
// STAGED: %[[D:.*]] = stablehlo.dot_general {{.*}} {shardopt.strategy = "[{}, {x}], [{x}, {}] -> [{}, {}]"}
// STAGED: %[[PART:.*]] = stablehlo.custom_call @Sharding(%[[D]]) {shardopt.strategy = "[{}, {}] -> [{x}, {}]"}
// STAGED: %[[E:.*]] = stablehlo.add %[[PART]], %[[ROWS]]
// STAGED: %[[G:.*]] = stablehlo.add %{{.*}}, %[[COLUMNS]]
// STAGED: %[[STOP:.*]] = stablehlo.custom_call @Sharding(%[[G]]) {shardopt.strategy = "[{}, {x}] -> [{x}, {}]"}
// STAGED: stablehlo.multiply %[[E]], %[[STOP]]
// STAGED-STATISTICS-DAG: 1 parts behind reduce-scatters
// STAGED-STATISTICS-DAG: 1 values cloned for readers
// STAGED-STATISTICS-DAG: 1 resharding stops
// STAGED-STATISTICS-DAG: 0 values pinned
// STOPS-STATISTICS-DAG: 0 values cloned for readers
// STOPS-STATISTICS-DAG: 2 resharding stops
// SUMS-STATISTICS-DAG: 1 idle sum points removed
// SUMS-STATISTICS-DAG: 5 values pinned

// Two collectives on the way to the readers: two stops, which both share.
//--- stops.mlir
// CHECK: %[[T:.*]] = stablehlo.tanh %arg0 {shardopt.strategy = "[{x, y}, {}] -> [{x, y}, {}]"}
// CHECK-NEXT: %[[ONE:.*]] = stablehlo.custom_call @Sharding(%[[T]])
// CHECK-NEXT: %[[TWO:.*]] = stablehlo.custom_call @Sharding(%[[ONE]]) {{.*}} -> [{}, {x}]"}
// CHECK-NEXT: %[[N:.*]] = stablehlo.negate %[[TWO]]
// CHECK-NEXT: stablehlo.add %[[TWO]], %[[N]] {shardopt.strategy = "[{}, {x}], [{}, {x}] -> [{}, {x}]"}
func.func public @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> attributes {shardopt.cost = {}, shardopt.mesh = #sdy.mesh<["x"=2, "y"=2]>, shardopt.strategy = "[{x, y}, {}] -> [{}, {x}]"} {
  %0 = stablehlo.tanh %x {shardopt.strategy = "[{x, y}, {}] -> [{x, y}, {}]"} : tensor<8x8xf32>
  %1 = stablehlo.negate %0 {shardopt.strategy = "[{}, {x}] -> [{}, {x}]"} : tensor<8x8xf32>
  %2 = stablehlo.add %0, %1 {shardopt.strategy = "[{}, {x}], [{}, {x}] -> [{}, {x}]"} : tensor<8x8xf32>
  return %2 : tensor<8x8xf32>
}

// Sums in steps: scattered along y and all-reduced along x, or left open there.
//--- steps.mlir
// CHECK: %[[D:.*]] = stablehlo.dot_general {{.*}} {shardopt.strategy = "[{}, {x, y}], [{x, y}, {}] -> [{}, {}] + {x, y}"}
// CHECK-NEXT: %[[PART:.*]] = stablehlo.custom_call @Sharding(%[[D]]) {shardopt.strategy = "[{}, {}] + {x, y} -> [{y}, {}] + {x}"}
// CHECK-NEXT: %[[SUM:.*]] = stablehlo.custom_call @Sharding(%[[PART]]) {shardopt.strategy = "[{y}, {}] + {x} -> [{y}, {}]"}
// CHECK: %[[E:.*]] = stablehlo.dot_general {{.*}} -> [{}, {}] + {x, y}"}
// CHECK-NEXT: %[[OPEN:.*]] = stablehlo.custom_call @Sharding(%[[E]]) {shardopt.strategy = "[{}, {}] + {x, y} -> [{y}, {}] + {x}"}
// CHECK-NEXT: stablehlo.add %[[OPEN]], %[[OPEN]]
// CHECK: return %[[SUM]]
func.func public @main(%a: tensor<8x8xf32>, %b: tensor<8x8xf32>) -> (tensor<8x8xf32>, tensor<8x8xf32>) attributes {shardopt.cost = {}, shardopt.mesh = #sdy.mesh<["x"=2, "y"=2]>, shardopt.strategy = "[{}, {x, y}], [{x, y}, {}] -> [{y}, {}], [{y}, {}]"} {
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] {shardopt.strategy = "[{}, {x, y}], [{x, y}, {}] -> [{y}, {}] from [{}, {}] + {x, y}"} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %1 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] {shardopt.strategy = "[{}, {x, y}], [{x, y}, {}] -> [{y}, {}] + {x} from [{}, {}] + {x, y}"} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %2 = stablehlo.add %1, %1 {shardopt.strategy = "[{y}, {}] + {x}, [{y}, {}] + {x} -> [{y}, {}] from [{y}, {}] + {x}"} : tensor<8x8xf32>
  return %0, %2 : tensor<8x8xf32>, tensor<8x8xf32>
}

// Of two sum points the one that sums stays; what a loop carries is pinned on both sides of its regions.
//--- sums.mlir
// CHECK-NOT: shardopt.sum_point
// CHECK: %[[SUM:.*]] = stablehlo.custom_call @Sharding(%{{.*}}) {shardopt.strategy = "[{}] + {x} -> [{}]"}
// CHECK: stablehlo.while(%{{.*}} = %arg2, %{{.*}} = %[[SUM]])
// CHECK: do
// CHECK: %[[PIN:.*]] = stablehlo.custom_call @Sharding(%{{.*}}) {shardopt.strategy = "[{x}] -> [{x}]"}
// CHECK: %[[A:.*]] = stablehlo.custom_call @Sharding(%{{.*}}) {shardopt.strategy = "[{}] -> [{}]"}
// CHECK: stablehlo.custom_call @Sharding(%[[PIN]]) {shardopt.strategy = "[{x}] -> [{}]"}
// CHECK: stablehlo.add
func.func public @main(%s: tensor<8xf32>, %w: tensor<8xf32>, %p: tensor<i1>) -> tensor<8xf32> attributes {shardopt.cost = {}, shardopt.mesh = #sdy.mesh<["x"=2]>, shardopt.strategy = "[{}] + {x}, [{x}], [] -> [{}]"} {
  %0 = stablehlo.custom_call @Sharding(%s) {shardopt.strategy = "[{}] + {x} -> [{}]", shardopt.sum_point} : (tensor<8xf32>) -> tensor<8xf32>
  %1 = stablehlo.custom_call @Sharding(%w) {shardopt.strategy = "[{x}] -> [{x}]", shardopt.sum_point} : (tensor<8xf32>) -> tensor<8xf32>
  %r:2 = stablehlo.while(%q = %p, %a = %0) : tensor<i1>, tensor<8xf32>
  cond {
    stablehlo.return %q : tensor<i1>
  } do {
    %2 = stablehlo.add %a, %1 {shardopt.strategy = "[{}], [{}] -> [{}]"} : tensor<8xf32>
    stablehlo.return %q, %2 : tensor<i1>, tensor<8xf32>
  }
  return %r#1 : tensor<8xf32>
}
