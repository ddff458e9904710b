// Each pair of lines breaks the accepted module of Inputs/two-stages.mlir in one place.
// RUN: sed -e 's/shardopt.resharding = {strategy = "send_recv", bytes = 64/shardopt.other = {strategy = "send_recv", bytes = 64/' %S/Inputs/two-stages.mlir > %t.none
// RUN: not shardopt-opt %t.none --shardopt-verify-transferred 2>&1 | FileCheck %s --check-prefix=NONE
// RUN: sed -e 's/\[\[0, 2, 0, 0, 0, 2, 4\], \[0, 3, 1, 2, 0, 4, 4\]\]> : tensor<2x7xi64>/[[0, 2, 0, 0, 2], [0, 3, 1, 2, 4]]> : tensor<2x5xi64>/' %S/Inputs/two-stages.mlir > %t.width
// RUN: not shardopt-opt %t.width --shardopt-verify-transferred 2>&1 | FileCheck %s --check-prefix=WIDTH
// RUN: sed -e 's/tensor<2x7xi64>/tensor<2x7xi65>/' %S/Inputs/two-stages.mlir > %t.bits
// RUN: not shardopt-opt %t.bits --shardopt-verify-transferred 2>&1 | FileCheck %s --check-prefix=BITS
// RUN: sed -e 's/, \[0, 3, 1, 2, 0, 4, 4\]\]> : tensor<2x7xi64>/]> : tensor<1x7xi64>/' %S/Inputs/two-stages.mlir > %t.hole
// RUN: not shardopt-opt %t.hole --shardopt-verify-transferred 2>&1 | FileCheck %s --check-prefix=HOLE
// RUN: sed -e 's/\[0, 1, 2, 2, 0, 4, 4\]/[0, 1, 2, 2, 0, 4, 4], [0, 1, 2, 3, 0, 4, 4]/' -e 's/tensor<4x7xi64>/tensor<5x7xi64>/' %S/Inputs/two-stages.mlir > %t.twice
// RUN: not shardopt-opt %t.twice --shardopt-verify-transferred 2>&1 | FileCheck %s --check-prefix=TWICE
// RUN: sed -e 's/\[0, 1, 2, 2, 0, 4, 4\]/[0, 0, 2, 2, 0, 4, 4]/' %S/Inputs/two-stages.mlir > %t.source
// RUN: not shardopt-opt %t.source --shardopt-verify-transferred 2>&1 | FileCheck %s --check-prefix=SOURCE
// RUN: sed -e 's/\[0, 3, 1, 2, 0, 4, 4\]/[0, 3, 1, 0, 0, 4, 4]/' %S/Inputs/two-stages.mlir > %t.target
// RUN: not shardopt-opt %t.target --shardopt-verify-transferred 2>&1 | FileCheck %s --check-prefix=TARGET
// RUN: sed -e 's/\[0, 3, 1, 2, 0, 4, 4\]/[1, 0, 1, 2, 0, 4, 4]/' %S/Inputs/two-stages.mlir > %t.phase
// RUN: not shardopt-opt %t.phase --shardopt-verify-transferred 2>&1 | FileCheck %s --check-prefix=PHASE
// RUN: sed -e 's/\[0, 3, 1, 2, 0, 4, 4\]/[-1, 3, 1, 2, 0, 4, 4]/' %S/Inputs/two-stages.mlir > %t.before
// RUN: not shardopt-opt %t.before --shardopt-verify-transferred 2>&1 | FileCheck %s --check-prefix=BEFORE
// RUN: sed -e 's/\[0, 0, 3, 0, 0, 2, 4\]/[1, 2, 3, 0, 0, 2, 4]/' -e 's/\[0, 0, 2, 0, 0, 2, 4\]/[1, 3, 2, 0, 0, 2, 4]/' %S/Inputs/two-stages.mlir > %t.same
// RUN: not shardopt-opt %t.same --shardopt-verify-transferred 2>&1 | FileCheck %s --check-prefix=SAME
// RUN: sed -e 's/\[0, 3, 1, 2, 0, 4, 4\]/[0, 3, 2, 2, 0, 4, 4]/' %S/Inputs/two-stages.mlir > %t.device
// RUN: not shardopt-opt %t.device --shardopt-verify-transferred 2>&1 | FileCheck %s --check-prefix=DEVICE
// RUN: sed -e 's/^    %i1 = /    %j1 = mpmd.transfer %i : (!index) -> !index1\n    %i1 = /' %S/Inputs/two-stages.mlir > %t.second
// RUN: not shardopt-opt %t.second --shardopt-verify-transferred 2>&1 | FileCheck %s --check-prefix=SECOND
// RUN: not shardopt-opt %S/choose-stages.mlir --shardopt-cluster-layers="layers=2" --shardopt-stage="cluster=cpu-test:1x2 num-stages=2" --shardopt-verify-transferred 2>&1 | FileCheck %s --check-prefix=SHARDING
// RUN: sed -e 's/\[0, 3, 1, 2, 0, 4, 4\]/[0, 0, 1, 2, 0, 4, 4]/' %S/Inputs/two-stages.mlir > %t.nosource
// RUN: not shardopt-opt %t.nosource --shardopt-verify-transferred 2>&1 | FileCheck %s --check-prefix=NOSOURCE

// NONE: none:{{[0-9]+}}:11: error: transfer from mesh 'm1' to mesh 'm0': expected 'shardopt.resharding' with steps, found none
// WIDTH: error: transfer from mesh 'm1' to mesh 'm0': expected resharding steps [n, 7] for rank 2, found [2, 5]
// BITS: error: transfer from mesh '{{m[01]}}' to mesh '{{m[01]}}': expected resharding steps of i64, found i65
// HOLE: error: transfer from mesh 'm1' to mesh 'm0': tile [2:4, 0:4] of device 1 is not filled completely
// TWICE: error: transfer from mesh 'm0' to mesh 'm1': phase 0, device 1 to 2, slice [3:4, 0:4]: part of it arrives twice
// SOURCE: error: transfer from mesh 'm0' to mesh 'm1': phase 0, device 0 to 2, slice [2:4, 0:4]: exceeds the source tile [0:2, 0:4]
// TARGET: error: transfer from mesh 'm1' to mesh 'm0': phase 0, device 3 to 1, slice [0:4, 0:4]: exceeds the target tile [2:4, 0:4]
// PHASE: error: transfer from mesh 'm1' to mesh 'm0': phase 1, device 0 to 1, slice [2:4, 0:4]: device 0 has not received that slice
// BEFORE: error: transfer from mesh 'm1' to mesh 'm0': phase -1, device 3 to 1, slice [2:4, 0:4]: phases count from 0
// SAME: error: transfer from mesh 'm0' to mesh 'm1': phase 1, device {{[23]}} to {{[23]}}, slice [0:2, 0:4]: device {{[23]}} has not received that slice
// DEVICE: error: transfer from mesh 'm1' to mesh 'm0': phase 0, device 3 to 2, slice [2:4, 0:4]: 2 is no device of the target mesh
// SECOND: error: expected one transfer of a value to mesh 'm1', found a second one
// SHARDING: error: transfer from mesh 'm0' to mesh 'm1': expected a sharding on the source, found !mpmd.mesh_tensor<"m0", tensor<4x4xf32>>
// NOSOURCE: error: transfer from mesh 'm1' to mesh 'm0': phase 0, device 0 to 1, slice [2:4, 0:4]: 0 is no device of the source mesh
