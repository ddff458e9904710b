// Each pair of lines breaks the accepted module of Inputs/two-stages.mlir in one place.
// RUN: sed -e 's/shardopt.cluster = /shardopt.klaster = /' %S/Inputs/two-stages.mlir > %t.cluster
// RUN: not shardopt-opt %t.cluster --shardopt-verify-staged 2>&1 | FileCheck %s --check-prefix=CLUSTER
// RUN: sed -e 's/devices_per_host = [0-9]* : i64/devices_per_host = 2147483648 : i64/' %S/Inputs/two-stages.mlir > %t.huge
// RUN: not shardopt-opt %t.huge --shardopt-verify-staged 2>&1 | FileCheck %s --check-prefix=HUGE
// RUN: sed -e 's/array<i64: 2, 3>/array<i64: 1, 4>/' %S/Inputs/two-stages.mlir > %t.devices
// RUN: not shardopt-opt %t.devices --shardopt-verify-staged 2>&1 | FileCheck %s --check-prefix=DEVICES
// RUN: sed -e 's/array<i64: 0, 1>, array<i64: 2, 3>/array<i64: 0, 1>/' %S/Inputs/two-stages.mlir > %t.rows
// RUN: not shardopt-opt %t.rows --shardopt-verify-staged 2>&1 | FileCheck %s --check-prefix=ROWS
// RUN: sed -e 's/"m1" : <\["x"=2\]>>>,/"m1" : <["x"=2]>>, <"m1" : <["x"=2]>>>,/' -e 's/array<i64: 2, 3>\]/array<i64: 2>, array<i64: 3>]/' -e 's/array<i64: 2>,/array<i64: 2, 3>,/' -e 's/array<i64: 3>\]/array<i64: 4, 5>]/' %S/Inputs/two-stages.mlir > %t.names
// RUN: not shardopt-opt %t.names --shardopt-verify-staged 2>&1 | FileCheck %s --check-prefix=NAMES
// RUN: sed -e '/private @microbatch/,/{$/s/"x"=2/"x"=4/' %S/Inputs/two-stages.mlir > %t.body
// RUN: not shardopt-opt %t.body --shardopt-verify-staged 2>&1 | FileCheck %s --check-prefix=BODY
// RUN: sed -e 's/%x: !a) -> (!a, !b)$/%x: !a, %y: !mpmd.mesh_tensor<"m2", tensor<f32>>) -> (!a, !b)/' %S/Inputs/two-stages.mlir > %t.mesh
// RUN: not shardopt-opt %t.mesh --shardopt-verify-staged 2>&1 | FileCheck %s --check-prefix=MESH
// RUN: sed -e 's/%x: !a) -> (!a, !b)$/%x: !a, %y: !mpmd.mesh_tensor<"m0", tensor<3xf32>, sharding=<@m0, [{"z"}]>>) -> (!a, !b)/' %S/Inputs/two-stages.mlir > %t.axis
// RUN: not shardopt-opt %t.axis --shardopt-verify-staged 2>&1 | FileCheck %s --check-prefix=AXIS
// RUN: sed -e 's/shardopt.kind = "bwd"/shardopt.kind = "update"/' %S/Inputs/two-stages.mlir > %t.kind
// RUN: not shardopt-opt %t.kind --shardopt-verify-staged 2>&1 | FileCheck %s --check-prefix=KIND
// RUN: sed -e 's/shardopt.kind = "bwd"/shardopt.kind = 7 : i64/' -e 's/array<i64: 2, 3>\]/"2, 3"]/' -e 's/{seconds = 3.0 : f64}/{seconds = "3"}/' %S/Inputs/two-stages.mlir > %t.type
// RUN: not shardopt-opt %t.type --shardopt-verify-staged 2>&1 | FileCheck %s --check-prefix=TYPE
// RUN: sed -e 's/, shardopt.kind = "bwd"//' %S/Inputs/two-stages.mlir > %t.no-kind
// RUN: not shardopt-opt %t.no-kind --shardopt-verify-staged 2>&1 | FileCheck %s --check-prefix=NOKIND
// RUN: sed -e 's/%h1, %w1, %g1, %i1) {shardopt.cost = {seconds = 3.0 : f64}/%h1, %w1, %g1, %i1) {shardopt.cost = {}/' -e 's/origin=\["layer_1"\], stage=1> (%h1/origin=["layer_1"]> (%h1/' %S/Inputs/two-stages.mlir > %t.stage
// RUN: not shardopt-opt %t.stage --shardopt-verify-staged 2>&1 | FileCheck %s --check-prefix=STAGE
// RUN: sed -e 's/origin=\["layer_1"\], stage=1> (%h1/origin=["layer_1"], stage=0> (%h1/' %S/Inputs/two-stages.mlir > %t.home
// RUN: not shardopt-opt %t.home --shardopt-verify-staged 2>&1 | FileCheck %s --check-prefix=HOME
// RUN: sed -e 's/origin=\["layer_1"\], stage=1> (%h1/origin=["layer_1"], stage=-1> (%h1/' %S/Inputs/two-stages.mlir > %t.below
// RUN: not shardopt-opt %t.below --shardopt-verify-staged 2>&1 | FileCheck %s --check-prefix=BELOW
// RUN: sed -e 's/shardopt.kind = "bwd"/shardopt.kind = "fwd"/' %S/Inputs/two-stages.mlir > %t.flow
// RUN: not shardopt-opt %t.flow --shardopt-verify-staged 2>&1 | FileCheck %s --check-prefix=FLOW
// RUN: sed -e 's/%i1 = mpmd.transfer %i : (!index) -> !index1/%j1 = mpmd.transfer %i : (!index) -> !index/' -e 's/, %i1) {/) {/' -e 's/, %k: tensor<ui32>) {/) {/' -e 's/(!b, !b, !b, !index1)/(!b, !b, !b)/' %S/Inputs/two-stages.mlir > %t.transfer
// RUN: not shardopt-opt %t.transfer --shardopt-verify-staged 2>&1 | FileCheck %s --check-prefix=TRANSFER
// RUN: sed -e 's/iterations = 2 : ui32/&, shardopt.intra_op = ["data"]/' %S/Inputs/two-stages.mlir > %t.methods
// RUN: not shardopt-opt %t.methods --shardopt-verify-staged 2>&1 | FileCheck %s --check-prefix=METHODS
// RUN: sed -e 's/iterations = 2 : ui32/&, shardopt.token_slices = {lengths = array<i64: 3, 0>, layers = array<i64: 0, 1, 1>}/' %S/Inputs/two-stages.mlir > %t.slices
// RUN: not shardopt-opt %t.slices --shardopt-verify-staged 2>&1 | FileCheck %s --check-prefix=SLICES
// RUN: sed -e 's/iterations = 2 : ui32/&, shardopt.in_flight = array<i64: 2, 1>, shardopt.token_slices = {lengths = array<i64: 3, 1>, layers = array<i64: 0, 1, 2>}/' %S/Inputs/two-stages.mlir > %t.sliced
// RUN: not shardopt-opt %t.sliced --shardopt-verify-staged 2>&1 | FileCheck %s --check-prefix=SLICED
// RUN: sed -e 's/iterations = 2 : ui32/&, shardopt.token_slices = {lengths = array<i64: 3, 1>}/' %S/Inputs/two-stages.mlir > %t.half
// RUN: not shardopt-opt %t.half --shardopt-verify-staged 2>&1 | FileCheck %s --check-prefix=HALF
// RUN: sed -e 's/stage=1> (%%h1/stage=99> (%%h1/' %S/Inputs/two-stages.mlir > %t.far
// RUN: not shardopt-opt %t.far --shardopt-verify-staged 2>&1 | FileCheck %s --check-prefix=FAR
// RUN: sed -e 's/"m1" : <\["x"=2\]>/"m1" : <["x"=2, "z"=1048576]>/' -e 's/shardopt.devices = \[array<i64: 0, 1>, array<i64: 2, 3>\]/shardopt.other = 0/' %S/Inputs/two-stages.mlir > %t.big
// RUN: not shardopt-opt %t.big --shardopt-verify-staged 2>&1 | FileCheck %s --check-prefix=BIG
// RUN: not shardopt-opt %s --shardopt-verify-staged 2>&1 | FileCheck %s --check-prefix=TOPOLOGY
// RUN: sed -e 's/^      %%n:2 = mpmd.call/      %%c = stablehlo.constant dense<0> : tensor<i32> &/' %S/Inputs/two-stages.mlir > %t.inloop
// RUN: not shardopt-opt %t.inloop --shardopt-verify-staged 2>&1 | FileCheck %s --check-prefix=INLOOP
// RUN: sed -e 's/^    %%i1 = /    %%c = stablehlo.constant dense<0> : tensor<i32> &/' %S/Inputs/two-stages.mlir > %t.other
// RUN: not shardopt-opt %t.other --shardopt-verify-staged 2>&1 | FileCheck %s --check-prefix=OTHER
// RUN: sed -e 's/mpmd.return %%n#0/mpmd.return %%g0/' %S/Inputs/two-stages.mlir > %t.own
// RUN: not shardopt-opt %t.own --shardopt-verify-staged 2>&1 | FileCheck %s --check-prefix=OWN
// RUN: sed -e 's/%%x, %%g0, %%g1, %%i)/%%g0, %%g0, %%g1, %%i)/' %S/Inputs/two-stages.mlir > %t.twice
// RUN: not shardopt-opt %t.twice --shardopt-verify-staged 2>&1 | FileCheck %s --check-prefix=TWICE

// CLUSTER: error: expected attribute 'shardopt.cluster' on the module (written by the stage phase), found none
// HUGE: error: attribute 'shardopt.cluster': cluster 'test': expected at most 65536 devices, got 2147483648
// DEVICES: error: expected disjoint meshes, found device 1 in 'm0' and in 'm1'
// DEVICES: note: expected devices 0 to 3 of cluster test:1x4, found device 4 in mesh 'm1'
// ROWS: error: expected 2 rows in 'shardopt.devices' (one a mesh of the topology), found 1
// NAMES: error: expected unique mesh names in the topology, found 'm1' twice
// BODY: error: expected the topology of '@main' on '@microbatch', found #mpmd.topology<
// MESH: error: argument 3 of '@main': expected a mesh of the topology (m0, m1), found 'm2'
// AXIS: error: argument 3 of '@main': sharding [{"z"}] names axis 'z', which is not an axis of mesh m0[x=2]
// KIND: error: expected 'shardopt.kind' 'fwd' or 'bwd' {{.*}} on the fragment here, found 'update'
// TYPE: type:11:3: error: expected 'shardopt.devices' of the form [array<i64: {{.*}}], found "2, 3"
// TYPE: note: expected 'shardopt.cost' of the form {seconds = {{.*}}}, found "3" as seconds
// TYPE: note: expected 'shardopt.kind' of the form "fwd", found 7 : i64
// NOKIND: error: expected 'shardopt.kind' 'fwd' or 'bwd' {{.*}} on the fragment here, found none
// SLICES: error: expected lengths from 1 in 'shardopt.token_slices', found [3, 0]
// SLICES: note: expected layers that grow from 0 in 'shardopt.token_slices', found [0, 1, 1]
// SLICED: error: expected slices of 2 stages in 'shardopt.token_slices', found 4
// HALF: error: expected 'shardopt.token_slices' to have lengths and layers, found {lengths = array<i64: 3, 1>}
// METHODS: error: expected 2 names in 'shardopt.intra_op', found 1
// STAGE: error: expected a stage on the fragment of mesh 'm1', found none
// HOME: error: expected stage 0 on mesh 'm0', found its fwd fragment on mesh 'm1'
// BELOW: error: expected a stage from 0 on, found -1
// FLOW: error: expected the fwd fragment of stage 0 to read nothing of later stages, found operand 0 made by stage 1
// TRANSFER: error: expected a transfer between two meshes, found one within mesh 'm0'
// FAR: error: expected stages below 9, found stage 99
// BIG: error: expected a mesh of at most 1048576 devices, found 2097152
// TOPOLOGY: error: expected one mpmd.for in @main (run the microbatch phase first), found 0
// INLOOP: error: expected only a call in the microbatch loop, found 'stablehlo.constant'
// OWN: own:26:7: error: expected the results of the call in order
// TWICE: error: expected carried value 0 among the operands once, found it 2 times
// OTHER: error: result 0 of 'stablehlo.constant': expected a mesh tensor, found tensor<i32>
// OTHER: note: expected fragments and transfers, found 'stablehlo.constant'
func.func @main() {
  return
}
