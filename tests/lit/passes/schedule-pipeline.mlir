// RUN: shardopt-opt %S/Inputs/two-stages.mlir --shardopt-schedule-pipeline --shardopt-verify-scheduled | FileCheck %s --check-prefixes=CHECK,OFOB
// RUN: shardopt-opt %S/Inputs/two-stages.mlir --shardopt-schedule-pipeline="schedule=gpipe" --shardopt-verify-scheduled | FileCheck %s --check-prefixes=CHECK,GPIPE
// RUN: printf '0F0,0SEND_F0,0F1,0SEND_F1,0B0,0B1\n1RECV_F0,1F0,1B0,1F1,1B1\n' > %t.csv
// RUN: shardopt-opt %S/Inputs/two-stages.mlir --shardopt-schedule-pipeline="schedule=%t.csv" --remarks 2>&1 | FileCheck %s --check-prefix=CSV
// RUN: sed 's/{iterations = 2 : ui32, shardopt.schedule/{iterations = 2 : ui32, shardopt.predicted = {schedule = "1f1b", step_seconds = 10.0 : f64, formula_seconds = 10.0 : f64}, shardopt.schedule/' %S/Inputs/two-stages.mlir > %t.mlir
// RUN: shardopt-opt %t.mlir --shardopt-schedule-pipeline 2>&1 | FileCheck %s --check-prefix=LONGER
// RUN: sed 's/step_seconds = 10.0/step_seconds = 20.0/' %t.mlir > %t.short.mlir
// RUN: shardopt-opt %t.short.mlir --shardopt-schedule-pipeline --remarks 2>&1 | FileCheck %s --check-prefix=SHORTER
// RUN: sed 's/step_seconds = 10.0/step_seconds = 14.2/' %t.mlir > %t.near.mlir
// RUN: shardopt-opt %t.near.mlir --shardopt-schedule-pipeline --remarks 2>&1 | FileCheck %s --check-prefix=NEAR
// RUN: shardopt-opt %S/Inputs/two-stages.mlir --shardopt-schedule-pipeline="memory-budget=191" 2>&1 | FileCheck %s --check-prefix=MEMORY

// F0 takes 2 s, the transfer 2 s, the last stage 3 s, the transfer back 1.5 s, B0 2 s. The second microbatch leaves the
// last stage at 10 s, and the step ends at 13.5 s. Mesh m0 works 8 of 13.5 s, mesh m1 6.
// A device of m0 holds half of two arguments and an accumulator (96 bytes), half of an activation (32) for each of two
// microbatches, and half of what it gets back (32); one of m1 a weight, an accumulator and what it gets (64 each), over
// which it writes what it sends back.
// CHECK: mpmd.for
// CHECK-SAME: shardopt.schedule = {bubble = 0.4814{{[0-9]*}} : f64, makespan_seconds = 1.35{{0*}}e+01 : f64
// OFOB-SAME: name = "1f1b", peak_bytes = array<i64: 192, 192>
// GPIPE-SAME: name = "gpipe", peak_bytes = array<i64: 192, 192>

// CSV: remark: 1 RECV_F, 2 SEND_F of '{{.*}}csv' are left out
// CSV: tasks = ["0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"]

// The loop takes 13.5 s, zeros and update 1 s.
// LONGER: warning: a step of the finished plan takes 14.5 s, 45% more than the 10 s that its stages were chosen for
// SHORTER: remark: a step of the finished plan takes 14.5 s, 28% less than the 20 s that its stages were chosen for
// MEMORY: warning: mesh 'm0' holds up to 192 bytes a device under schedule '1f1b', where 191 bytes are allowed; a smaller memory-budget leaves room
// MEMORY: warning: mesh 'm1' holds up to 192 bytes
// NEAR-NOT: finished plan
// NEAR: step_seconds = 1.42
// NEAR-NOT: finished plan
