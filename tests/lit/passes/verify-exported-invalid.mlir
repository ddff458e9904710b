// Each pair of lines breaks the module that lower-to-fragment-calls makes of Inputs/two-stages.mlir.
// RUN: shardopt-opt %S/Inputs/two-stages.mlir --shardopt-lower-to-fragment-calls -o %t.mlir
// RUN: sed -e 's/shardopt.kind = "bwd"/shardopt.kind = "update"/' %t.mlir > %t.kind
// RUN: not shardopt-opt %t.kind --shardopt-verify-exported 2>&1 | FileCheck %s --check-prefix=KIND
// RUN: sed -e 's/name = "1f1b"/name = "zero"/' %t.mlir > %t.schedule
// RUN: not shardopt-opt %t.schedule --shardopt-verify-exported 2>&1 | FileCheck %s --check-prefix=SCHEDULE
// RUN: sed -e 's/array<i64: 2, 3>/array<i64: 1, 3>/' %t.mlir > %t.devices
// RUN: not shardopt-opt %t.devices --shardopt-verify-exported 2>&1 | FileCheck %s --check-prefix=DEVICES
// RUN: sed -e '/@stage0_bwd(%arg0/s/{devices=\[2,1\]<=\[2\]}/{replicated}/' %t.mlir > %t.sharding
// RUN: not shardopt-opt %t.sharding --shardopt-verify-exported 2>&1 | FileCheck %s --check-prefix=SHARDING
// RUN: sed -e '/stablehlo.*mhlo.sharding/s/{devices=\[2,1\]<=\[2\]}/{devices=[2,1]<=[3]}/' %t.mlir > %t.inside
// RUN: not shardopt-opt %t.inside --shardopt-verify-exported 2>&1 | FileCheck %s --check-prefix=INSIDE
// RUN: sed -e '/func private/s/tf.aliasing_output = 0/tf.aliasing_output = 7/' %t.mlir > %t.alias
// RUN: not shardopt-opt %t.alias --shardopt-verify-exported 2>&1 | FileCheck %s --check-prefix=ALIAS
// RUN: not shardopt-opt %S/Inputs/two-stages.mlir --shardopt-verify-exported 2>&1 | FileCheck %s --check-prefix=FRAGMENT

// KIND: error: expected a kind of the microbatch body (fwd, bwd, bwd_input, bwd_weight), found 'update'
// SCHEDULE: error: unknown schedule: 'zero'; did you mean 'zero-bubble'?
// DEVICES: error: device 1 is in mesh 'm0' and in mesh 'm1'
// SHARDING: error: argument 0 of @stage0_bwd: expected mhlo.sharding "{devices=[2,1]<=[2]}", found "{replicated}"
// ALIAS: error: function @stage{{.*}}: argument {{.*}} aliases result 7, but there are
// INSIDE: error: expected {{.*}}, found '{devices=[2,1]<=[3]}'
// FRAGMENT: error: expected a fragment call, a loop or a transfer, found 'mpmd.fragment'
