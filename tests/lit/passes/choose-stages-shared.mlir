// Several stages on one mesh: by a schedule that wants it, and as a plan file says.
// RUN: shardopt-opt %S/choose-stages.mlir --shardopt-cluster-layers="layers=2" --shardopt-stage="cluster=cpu-test:1x1 schedule=interleaved:2" | FileCheck %s
// RUN: shardopt-opt %S/choose-stages.mlir --shardopt-cluster-layers="layers=2" --shardopt-stage="cluster=cpu-test:1x2 plan=%S/Inputs/shared-mesh.plan.yaml" | FileCheck %s --check-prefix=GIVEN
// RUN: not shardopt-opt %S/choose-stages.mlir --shardopt-cluster-layers="layers=2" --shardopt-stage="cluster=cpu-test:1x1 schedule=interleaved:2 inter-op=megatron" 2>&1 | FileCheck %s --check-prefix=PLANNER
// RUN: not shardopt-opt %S/choose-stages.mlir --shardopt-cluster-layers="layers=2" --shardopt-stage="cluster=cpu-test:1x1 schedule=interleaved:3" 2>&1 | FileCheck %s --check-prefix=LAYERS
// RUN: not shardopt-opt %S/choose-stages.mlir --shardopt-cluster-layers="layers=2" --shardopt-stage="cluster=cpu-test:1x2 plan=%S/Inputs/shared-mesh.plan.yaml" --shardopt-shard --shardopt-insert-transfers --shardopt-schedule-pipeline="schedule=1f1b" 2>&1 | FileCheck %s --check-prefix=OTHER

// What the stages hold at once is counted by stage; a value goes from one to the other without a transfer.
// CHECK-LABEL: func.func public @main
// CHECK-SAME: shardopt.devices = [array<i64: 0>]
// CHECK-SAME: topology = #mpmd.topology<<"m0" : <["x"=1, "y"=1]>>>
// CHECK: mpmd.for {{.*}} {iterations = 2 : ui32, shardopt.in_flight = array<i64: {{[0-9]+, [0-9]+}}>, {{.*}} schedule = "interleaved:2"
// CHECK: mpmd.fragment<mesh="m0", origin=["layer_1"], stage=1>{{.*}} {shardopt.kind = "update"}
// CHECK-LABEL: func.func private @microbatch
// CHECK-NOT: mpmd.transfer
// CHECK: %[[H:.*]] = mpmd.fragment<mesh="m0", origin=["layer_0"], stage=0> {{.*}} {shardopt.kind = "fwd"}
// CHECK-NOT: mpmd.transfer
// CHECK: %[[LAST:.*]]:3 = mpmd.fragment<mesh="m0", origin=["layer_1"], stage=1> (%[[H]], {{.*}} {shardopt.backward, shardopt.kind = "fwd"}
// CHECK-NOT: mpmd.transfer
// CHECK: mpmd.fragment<mesh="m0", origin=["layer_0"], stage=0> ({{.*}}%[[LAST]]#0{{.*}}) {shardopt.kind = "bwd"}

// GIVEN: topology = #mpmd.topology<<"m0" : <["x"=1, "y"=2]>>>
// GIVEN: mpmd.for {{.*}} {iterations = 2 : ui32, shardopt.in_flight = array<i64: 2, 1>

// PLANNER: error: schedule 'interleaved:2' puts several stages on a mesh: expected inter-op=dp, found megatron
// LAYERS: error: no plan puts 3 stages on every mesh, of 2 layers on 1 device: on 1 mesh of 1 device that makes 3 stages, each of which needs a layer
// OTHER: error: schedule '1f1b' needs 1 stage on every mesh, got 2 stages on 1 meshes
