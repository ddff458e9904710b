// RUN: not shardopt-opt %S/insert-transfers.mlir --shardopt-insert-transfers="strategy=multicast" 2>&1 | FileCheck %s --check-prefix=STRATEGY
// RUN: sed -e 's/!b = .*/!b = !mpmd.mesh_tensor<"m1", tensor<4x4xf32>>/' %S/insert-transfers.mlir > %t.plain
// RUN: not shardopt-opt %t.plain --shardopt-insert-transfers 2>&1 | FileCheck %s --check-prefix=SHARDING
// RUN: sed -e 's/shardopt.cluster = /shardopt.klaster = /' %S/insert-transfers.mlir > %t.cluster
// RUN: not shardopt-opt %t.cluster --shardopt-insert-transfers 2>&1 | FileCheck %s --check-prefix=CLUSTER
// RUN: not shardopt-opt %S/insert-transfers.mlir --shardopt-insert-transfers="cluster=cpu-test:1x3" 2>&1 | FileCheck %s --check-prefix=DEVICES
// RUN: not shardopt-opt %s --shardopt-insert-transfers 2>&1 | FileCheck %s --check-prefix=LOOP

// STRATEGY: error: {{.*}}option 'strategy' of shardopt-insert-transfers expects auto | send_recv | local_allgather | broadcast, found 'multicast'
// SHARDING: plain:{{[0-9]+}}:11: error: expected a sharding on the destination of the transfer (run the shard phase first), found none
// CLUSTER: error: expected attribute 'shardopt.cluster' on the module (written by the stage phase), found none
// DEVICES: error: expected devices 0 to 2 of cluster cpu-test:1x3, found device 3 in mesh 'm1'
// LOOP: error: expected one mpmd.for in @main (run the microbatch phase first), found 0
func.func @main() {
  return
}
