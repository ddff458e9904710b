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
// RUN: not shardopt-opt %s --shardopt-verify-exported 2>&1 | FileCheck %s --check-prefix=LIES
// RUN: sed -e '/@stage1_fwd/s/shardopt.stage = 1/shardopt.stage = 99/' -e '/@stage0_bwd/s/shardopt.stage = 0/shardopt.stage = -1/' %t.mlir > %t.far
// RUN: not shardopt-opt %t.far --shardopt-verify-exported 2>&1 | FileCheck %s --check-prefix=FAR
// RUN: not shardopt-opt %S/Inputs/two-stages.mlir --shardopt-verify-exported 2>&1 | FileCheck %s --check-prefix=FRAGMENT
// RUN: sed -e '/@main/s/<"m1" : <\["x"=2\]>>/&, <"m1" : <["x"=2]>>/' -e '/@main/s/array<i64: 2, 3>\]/array<i64: 2, 3>, array<i64: 4, 5>]/' %t.mlir > %t.meshes
// RUN: not shardopt-opt %t.meshes --shardopt-verify-exported 2>&1 | FileCheck %s --check-prefix=MESHES
// RUN: sed -e '/@main/s/) -> (/, %%arg9: !mpmd.mesh_tensor<"m2", tensor<f32>>) -> (/' %t.mlir > %t.unknown
// RUN: not shardopt-opt %t.unknown --shardopt-verify-exported 2>&1 | FileCheck %s --check-prefix=UNKNOWN
// RUN: sed -e '/@main/s/) -> (/, %%arg9: tensor<f32>) -> (/' %t.mlir > %t.plain
// RUN: not shardopt-opt %t.plain --shardopt-verify-exported 2>&1 | FileCheck %s --check-prefix=PLAIN
// RUN: sed -e '/@main/s/ {tf.aliasing_output = 0 : i32}//' -e '/@main/s/) -> (/, %%arg9: !mpmd.mesh_tensor<"m0", tensor<4x4xf32>> {tf.aliasing_output = 0 : i32}) -> (/' %t.mlir > %t.donated
// RUN: not shardopt-opt %t.donated --shardopt-verify-exported 2>&1 | FileCheck %s --check-prefix=DONATED
// RUN: sed -e '/%%2:2 = mpmd.for/,/^    } :/H' -e '/%%3 = mpmd.fragment_call.*update/{x;s/%%2:2/%%9:2/;p;x}' %t.mlir > %t.loops
// RUN: not shardopt-opt %t.loops --shardopt-verify-exported 2>&1 | FileCheck %s --check-prefix=LOOPS
// RUN: sed -e '/@stage1_fwd/s/shardopt.stage = 1/shardopt.stage = 0/' %t.mlir > %t.home
// RUN: not shardopt-opt %t.home --shardopt-verify-exported 2>&1 | FileCheck %s --check-prefix=HOME
// RUN: sed -e '/private @stage0_fwd/,/return/s/stablehlo.add %%arg0, %%arg1 {.*}/call @stage0_update(%%arg0, %%arg1)/' -e 's/call @stage0_update(%%arg0, %%arg1) : tensor<4x4xf32>/call @stage0_update(%%arg0, %%arg1) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>/' %t.mlir > %t.calls
// RUN: not shardopt-opt %t.calls --shardopt-verify-exported 2>&1 | FileCheck %s --check-prefix=CALLS
// RUN: sed -e '2i sdy.mesh @m1 = <["x"=2]>' -e '/private @stage1_update/s/{mhlo.sharding = "{replicated}"[^}]*}/{sdy.sharding = #sdy.sharding<@m1, [{"x"}, {}]>}/g' -e '/private @stage1_update/,/return/s/ {mhlo.sharding = "{replicated}"}//' %t.mlir > %t.stated
// RUN: not shardopt-opt %t.stated --shardopt-verify-exported 2>&1 | FileCheck %s --check-prefix=STATED
// RUN: sed -e '/mpmd.for/s/$/ %%8 = stablehlo.constant dense<0> : tensor<i32>/' %t.mlir > %t.body
// RUN: not shardopt-opt %t.body --shardopt-verify-exported 2>&1 | FileCheck %s --check-prefix=BODY
// RUN: sed -e '/private @microbatch/s/<"m1" : <\["x"=2\]>>/&, <"m2" : <["x"=2]>>/' %t.mlir > %t.topology
// RUN: not shardopt-opt %t.topology --shardopt-verify-exported 2>&1 | FileCheck %s --check-prefix=TOPOLOGY
// RUN: sed -e 's/mpmd.return %%5#0/mpmd.return %%arg0/' %t.mlir > %t.carried
// RUN: not shardopt-opt %t.carried --shardopt-verify-exported 2>&1 | FileCheck %s --check-prefix=CARRIED
// RUN: sed -e 's/@stage0_fwd(%%arg2, %%arg0)/@stage0_fwd(%%arg2, %%arg3)/' %t.mlir > %t.readers
// RUN: not shardopt-opt %t.readers --shardopt-verify-exported 2>&1 | FileCheck %s --check-prefix=READERS
// RUN: sed -e '/stablehlo.multiply/s/{replicated}/{unreduced}/' %t.mlir > %t.terms
// RUN: not shardopt-opt %t.terms --shardopt-verify-exported 2>&1 | FileCheck %s --check-prefix=TERMS
// RUN: sed -e 's/<@m1, \[{}, {}\]>/<@m1, [{}, {}], unreduced={"x"}>/g' -e '/private @stage1/s/{replicated}/{unreduced}/g' %t.mlir > %t.whole
// RUN: not shardopt-opt %t.whole --shardopt-verify-exported 2>&1 | FileCheck %s --check-prefix=WHOLE
// RUN: sed -e '/stablehlo.multiply/s/{replicated}/{devices=[2]<=[2]}/' %t.mlir > %t.rank
// RUN: not shardopt-opt %t.rank --shardopt-verify-exported 2>&1 | FileCheck %s --check-prefix=RANK
// RUN: sed -e '/@main/s/tf.aliasing_output = 1/shardopt.batch = 2 : i64, &/' -e 's/bubble = [^ ]*/bubble = 1.5/' -e 's/iterations = 2 : ui32/&, shardopt.in_flight = array<i64: 0, 1>/' -e '/@stage0_prologue/s/shardopt.cost = {/&collectives = [], communication_bytes = 1 : i64, /' -e 's/shardopt.kind = "bwd"/shardopt.backward, &/' %t.mlir > %t.figures
// RUN: not shardopt-opt %t.figures --shardopt-verify-exported 2>&1 | FileCheck %s --check-prefix=FIGURES
// RUN: sed -e 's/iterations = 2/iterations = 70000/' %t.mlir > %t.iterations
// RUN: not shardopt-opt %t.iterations --shardopt-verify-exported 2>&1 | FileCheck %s --check-prefix=ITERATIONS
// RUN: sed -e '/@main/s/{tf.aliasing_output = 0 : i32}/{shardopt.memory = "host", tf.aliasing_output = 0 : i32}/' %t.mlir > %t.host
// RUN: not shardopt-opt %t.host --shardopt-verify-exported 2>&1 | FileCheck %s --check-prefix=HOST
// RUN: sed -e '/@main/s/{tf.aliasing_output = 0 : i32}/{shardopt.memory = "disk", tf.aliasing_output = 0 : i32}/' %t.mlir > %t.disk
// RUN: not shardopt-opt %t.disk --shardopt-verify-exported 2>&1 | FileCheck %s --check-prefix=DISK
// RUN: sed -e '/@main/s/{tf.aliasing_output = 0 : i32}/{shardopt.memory = "host"}/' %t.mlir > %t.kept
// RUN: not shardopt-opt %t.kept --shardopt-verify-exported 2>&1 | FileCheck %s --check-prefix=KEPT

// HOST: error: argument 0 lies in the memory of the host: expected fragments outside of the loop to read it, found 'mpmd.call'
// DISK: error: argument 0: expected 'host' in 'shardopt.memory', found "disk"
// KEPT: error: argument 0 lies in the memory of the host: expected a donated argument that a result replaces
// KIND: error: expected a kind of the microbatch body (fwd, bwd, bwd_input, bwd_weight), found 'update'
// SCHEDULE: error: unknown schedule: 'zero'; did you mean 'zero-bubble'?
// DEVICES: error: device 1 is in mesh 'm0' and in mesh 'm1'
// SHARDING: error: argument 0 of @stage0_bwd: expected mhlo.sharding "{devices=[2,1]<=[2]}", found "{replicated}"
// ALIAS: error: function @stage{{.*}}: argument {{.*}} aliases result 7, but there are
// INSIDE: error: expected {{.*}}, found '{devices=[2,1]<=[3]}'
// FAR: error: expected a stage from 0 to 6, found 99
// FAR: note: expected a stage from 0 to 6, found -1
// FIGURES: error: argument 1: expected a dimension below 2 as 'shardopt.batch', found 2 : i64
// FIGURES: note: expected 0 communication_bytes in 'shardopt.cost', the sum of its collectives, found 1
// FIGURES: note: expected a share of at most 1 as bubble in 'shardopt.schedule', found 1.5
// FIGURES: note: expected numbers from 1 in 'shardopt.in_flight', found array<i64: 0, 1>
// FIGURES: note: expected 'shardopt.backward' on forwards alone, found it on kind 'bwd'
// FRAGMENT: error: expected a fragment call, a loop or a transfer, found 'mpmd.fragment'
// MESHES: error: mesh 'm1' stands twice in the topology
// UNKNOWN: error: argument 3: mesh 'm2' is not in the topology (m0, m1)
// PLAIN: error: argument 3: expected an !mpmd.mesh_tensor type, found tensor<f32>
// DONATED: error: argument 3 is donated to result 0: expected equal shardings, found !mpmd.mesh_tensor<"m0", tensor<4x4xf32>> and !mpmd
// LOOPS: error: expected at most one microbatch loop, found 2
// HOME: error: fwd of stage 0 runs on mesh 'm0' and on mesh 'm1'
// CALLS: error: function @stage0_fwd: expected plain StableHLO without calls, found 'func.call'
// STATED: error: argument 0 of @stage1_update: expected sdy.sharding [{}, {}], found [{"x"}, {}]
// BODY: error: expected a loop body of mpmd.call and mpmd.return, found stablehlo.constant, mpmd.call, mpmd.return
// TOPOLOGY: error: function @microbatch: expected the topology of @main
// CARRIED: error: carried value 0: expected its own argument, or the result of a fragment call in the body
// READERS: error: carried value 0 is written by bwd of stage 0 but read by fwd of stage 0: the schedule may run them in another order
// ITERATIONS: error: expected 1 to 65536 iterations, found 70000
// TERMS: :{{[0-9]+}}:{{[0-9]+}}: error: 'stablehlo.multiply' has a result that is unreduced along 'x': expected an operand that is split along 'x' on a contracted dimension
// WHOLE: error: argument 1 of '@main': expected a value that is summed up, found !mpmd.mesh_tensor<"m1", tensor<4x4xf32>, sharding=<@m1, [{}, {}], unreduced={"x"}>>
// WHOLE: note: result 1 of '@main': expected a value that is summed up
// WHOLE: note: expected a transfer of a value that is summed up
// RANK: error: expected tiles of a tensor of rank 2, found '{devices=[2]<=[2]}'

// LIES: [[@LINE+6]]:8: error: function @twice: argument 0 is donated to result 0: expected equal shardings, found !mpmd.mesh_tensor<"m0", tensor<4xf32>, sharding=<@m0, [{"x"}]>> and !mpmd.mesh_tensor<"m0", tensor<4xf32>, sharding=<@m0, [{}]>>
!split = !mpmd.mesh_tensor<"m0", tensor<4xf32>, sharding=<@m0, [{"x"}]>>
!whole = !mpmd.mesh_tensor<"m0", tensor<4xf32>, sharding=<@m0, [{}]>>
func.func public @main(%x: !split) -> !whole
    attributes {topology = #mpmd.topology<<"m0" : <["x"=2]>>>, shardopt.devices = [array<i64: 0, 1>]} {
  // It would give XLA the memory of a tile for all of the result.
  %r = mpmd.fragment_call<mesh="m0", origin=["layer_0"]> @twice(%x) {shardopt.kind = "update", shardopt.stage = 0 : i64} : (!split) -> !whole
  return %r : !whole
}
func.func private @twice(%x: tensor<4xf32> {mhlo.sharding = "{devices=[2]<=[2]}", tf.aliasing_output = 0 : i32}) -> (tensor<4xf32> {mhlo.sharding = "{replicated}"})
    attributes {mesh_shape = #sdy.mesh<["x"=2]>} {
  %r = stablehlo.add %x, %x {mhlo.sharding = "{replicated}"} : tensor<4xf32>
  return %r : tensor<4xf32>
}
