// RUN: not shardopt-opt %S/choose-stages.mlir --shardopt-verify-placed 2>&1 | FileCheck %s --check-prefix=CLUSTERED
// RUN: sed -e 's/shardopt.stages =/shardopt.other =/' %S/Inputs/placed.mlir > %t.none
// RUN: not shardopt-opt %t.none --shardopt-verify-placed 2>&1 | FileCheck %s --check-prefix=NONE
// RUN: sed -e 's/layers = array<i64: 1, 1>/layers = array<i64: 2, 2>/' %S/Inputs/placed.mlir > %t.gap
// RUN: not shardopt-opt %t.gap --shardopt-verify-placed 2>&1 | FileCheck %s --check-prefix=GAP
// RUN: sed -e 's/, {layers = array<i64: 1, 1>, mesh = "m1"}//' %S/Inputs/placed.mlir > %t.few
// RUN: not shardopt-opt %t.few --shardopt-verify-placed 2>&1 | FileCheck %s --check-prefix=FEW
// RUN: sed -e 's/mesh = "m1"}/mesh = "m2"}/' -e 's/recompute = "full"/recompute = "all"/' %S/Inputs/placed.mlir > %t.mesh
// RUN: not shardopt-opt %t.mesh --shardopt-verify-placed 2>&1 | FileCheck %s --check-prefix=MESH
// RUN: sed -e 's/shardopt.devices = \[array<i64: 0>, array<i64: 1>\]/shardopt.devices = [array<i64: 0>, array<i64: 0>]/' %S/Inputs/placed.mlir > %t.devices
// RUN: not shardopt-opt %t.devices --shardopt-verify-placed 2>&1 | FileCheck %s --check-prefix=DEVICES
// RUN: sed -e 's/shardopt.in_flight = array<i64: 2, 1>/shardopt.in_flight = array<i64: 2>/' %S/Inputs/placed.mlir > %t.flight
// RUN: not shardopt-opt %t.flight --shardopt-verify-placed 2>&1 | FileCheck %s --check-prefix=FLIGHT
// RUN: sed -e 's/add %a1, %g1 /add %a1, %g0 /' %S/Inputs/placed.mlir > %t.order
// RUN: not shardopt-opt %t.order --shardopt-verify-placed 2>&1 | FileCheck %s --check-prefix=ORDER
// RUN: sed -e 's/shardopt.in_flight/shardopt.out_flight/' %S/Inputs/placed.mlir > %t.noflight
// RUN: not shardopt-opt %t.noflight --shardopt-verify-placed 2>&1 | FileCheck %s --check-prefix=NOFLIGHT
// RUN: sed -e 's/recompute = "full"/offload = "everything"/' %S/Inputs/placed.mlir > %t.offload
// RUN: not shardopt-opt %t.offload --shardopt-verify-placed 2>&1 | FileCheck %s --check-prefix=OFFLOAD

// CLUSTERED: error: expected 'shardopt.layer' of type i64 on 'stablehlo.constant', found none
// NONE: error: expected attribute 'shardopt.stages' on '@main' (run shardopt-choose-stages first), found none
// GAP: error: expected layers from 1 on in stage 1 of 'shardopt.stages', found 2 to 2
// FEW: error: expected all 2 layers in 'shardopt.stages', found 1
// OFFLOAD: error: expected offload as none, optimizer, activations or all in stage 0 of 'shardopt.stages', found 'everything'
// MESH: error: expected recompute as one of none, selective, layer, full, selective:K or layer:K (the first K layers) in stage 0 of 'shardopt.stages', found 'all'
// MESH: note: expected a mesh of the topology (m0, m1) in stage 1 of 'shardopt.stages', found 'm2'
// DEVICES: error: expected disjoint meshes, found device 0 in 'm0' and in 'm1'
// FLIGHT: error: expected a number from 1 for each of 2 stages in 'shardopt.in_flight', found [2]
// ORDER: error: expected 'stablehlo.add' of stage 1 to read backward values of stages from 1 on, found one of stage 0
// NOFLIGHT: error: expected attribute 'shardopt.in_flight' on the loop, found none
