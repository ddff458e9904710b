// RUN: shardopt-opt %S/Inputs/two-stages.mlir --shardopt-schedule-pipeline --shardopt-verify-scheduled | FileCheck %s --check-prefixes=CHECK,OFOB
// RUN: shardopt-opt %S/Inputs/two-stages.mlir --shardopt-schedule-pipeline="schedule=gpipe" --shardopt-verify-scheduled | FileCheck %s --check-prefixes=CHECK,GPIPE
// RUN: printf '0F0,0SEND_F0,0F1,0SEND_F1,0B0,0B1\n1RECV_F0,1F0,1B0,1F1,1B1\n' > %t.csv
// RUN: shardopt-opt %S/Inputs/two-stages.mlir --shardopt-schedule-pipeline="schedule=%t.csv" --remarks 2>&1 | FileCheck %s --check-prefix=CSV

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
