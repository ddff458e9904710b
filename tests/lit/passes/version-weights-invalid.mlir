// RUN: not shardopt-opt %s --shardopt-version-weights="schedule=pipedream" 2>&1 | FileCheck %s --check-prefix=LOOP
// RUN: not shardopt-opt %S/Inputs/placed.mlir --shardopt-version-weights="schedule=1f1b" 2>&1 | FileCheck %s --check-prefix=NEW
// RUN: sed -e 's/shardopt.stages =/shardopt.other =/' %S/Inputs/placed.mlir > %t.none
// RUN: not shardopt-opt %t.none --shardopt-version-weights="schedule=pipedream" 2>&1 | FileCheck %s --check-prefix=NONE
// RUN: sed -e 's/, tf.aliasing_output = [01] : i32//g' %S/Inputs/placed.mlir > %t.fixed
// RUN: not shardopt-opt %t.fixed --shardopt-version-weights="schedule=pipedream" 2>&1 | FileCheck %s --check-prefix=FIXED
// RUN: sed -e 's/, recompute = "full"//' %S/Inputs/placed.mlir > %t.placed
// RUN: shardopt-opt %t.placed --shardopt-version-weights="schedule=pipedream-2bw" -o %t.versions
// RUN: sed -e 's/version_of = 1/version_of = 2/' %t.versions > %t.source
// RUN: not shardopt-opt %t.source --shardopt-verify-placed 2>&1 | FileCheck %s --check-prefix=SOURCE
// RUN: sed -e 's/shardopt.version_of = 1 : i64, tf.aliasing_output = 3 : i32/shardopt.version_of = 1 : i64/' %t.versions > %t.kept
// RUN: not shardopt-opt %t.kept --shardopt-verify-placed 2>&1 | FileCheck %s --check-prefix=KEPT
// RUN: sed -e 's/%arg0: tensor<4x4xf32> {/%arg0: tensor<4x4xf32> {shardopt.version_of = 1 : i64, /' %t.versions > %t.first
// RUN: not shardopt-opt %t.first --shardopt-verify-placed 2>&1 | FileCheck %s --check-prefix=FIRST
// RUN: shardopt-opt %S/version-weights.mlir --shardopt-version-weights="schedule=pipedream-2bw" -o %t.other
// RUN: sed -e 's/version_of = 0/version_of = 1/' %t.other > %t.type
// RUN: not shardopt-opt %t.type --shardopt-verify-placed 2>&1 | FileCheck %s --check-prefix=TYPE

// LOOP: error: expected one mpmd.for in @main (run the microbatch phase first), found 0
// NEW: error: schedule '1f1b' uses no older versions of weights
// NONE: error: expected attribute 'shardopt.stages' on '@main' (run shardopt-choose-stages first), found none
// FIXED: error: older versions of weights: expected a step that is given weights and returns new ones in their place (donated arguments), found none
// SOURCE: error: argument 4: expected the number of a donated argument, found 2
// KEPT: error: argument 4: expected an older version to be replaced by a result behind those of other arguments
// TYPE: error: argument 3: expected the type of argument 1, found tensor<4xf32> and tensor<i32>
// FIRST: error: argument 0: expected older versions behind all other arguments
func.func @main() {
  return
}
