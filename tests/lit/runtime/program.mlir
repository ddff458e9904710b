// The instruction lists of a module: two meshes, four microbatches in 1F1B order, one transfer with a step inside its
// destination.
// RUN: shardopt program %S/../../e2e/exported_example.mlir | FileCheck %s
// RUN: shardopt program %S/../../e2e/exported_example.mlir --mesh m0 | FileCheck %s --check-prefix=ONE
// RUN: shardopt program %S/../../e2e/exported_example.mlir --json | FileCheck %s --check-prefix=JSON
// RUN: shardopt program %S/../../e2e/exported_example.mlir --memory | FileCheck %s --check-prefix=MEMORY
// RUN: not shardopt program %S/../../e2e/exported_example.mlir --mesh m7 2>&1 | FileCheck %s --check-prefix=MESH

// CHECK:      route 2: f32[] [] -> f32[] []
// CHECK-NEXT:   piece 0 = shard 0 []
// CHECK-NEXT:   piece 0 -> shard 0 []
// CHECK-NEXT:   shard 0 [] -> shard 1 []
// CHECK-NEXT: mesh m0[x=2, y=1] devices [0, 1]
// CHECK-NEXT:   %0 = argument 0 'w0' f32[8, 8] {{.*}} (state)
// CHECK:        RUN @prologue_m0
// CHECK:        %[[A:.*]]: f32[4, 8] {{.*}} = RUN @stage0_fwd({{.*}}) // fwd stage 0 microbatch 0
// CHECK-NEXT:   SEND #0 %[[A]] to m1 route 0
// CHECK:        // fwd stage 0 microbatch 1
// CHECK-NEXT:   SEND #1
// CHECK-NEXT:   %[[D:.*]]: f32[4, 8] {{.*}} = RECV #2 from m1 route 1
// CHECK-NEXT:   RUN @stage0_bwd({{.*}}, %[[A]], %[[D]], {{.*}}) donates {{.*}} // bwd stage 0 microbatch 0
// CHECK-NEXT:   FREE %[[A]], %[[D]]
// CHECK:        %[[L:.*]]: f32[] [] = RECV #8 from m1 route 2
// CHECK-NEXT:   BROADCAST #9 %[[L]] route 2
// CHECK-NEXT:   RUN @update_w0({{.*}}, %[[L]]) donates %0 // update stage 0
// CHECK:        result 0 'w0' = %[[W:.*]]
// CHECK-NEXT:   next %0 = %[[W]]
// CHECK-NEXT: mesh m1[x=1, y=2] devices [2, 3]
// CHECK:        RECV #0 from m0 route 0
// CHECK:        SEND #8 %{{.*}} to m0 route 2

// ONE:     mesh m0
// ONE-NOT: mesh m1

// JSON:      "format": "shardopt.program",
// JSON-NEXT: "version": 3,
// JSON:      "name": "stage0_fwd",
// JSON-NEXT: "bytecode": "sha256:
// JSON:      "op": "SEND",
// JSON-NEXT: "tag": 0,
// JSON-NEXT: "buffers": [5],
// JSON-NEXT: "target": "m1",
// JSON-NEXT: "routes": [0]
// JSON:      "op": "BROADCAST",

// MEMORY: m0 {{.*}} 784 {{.*}} 1488 {{.*}} RECV #2 from m1
// MEMORY: m1 {{.*}} 336 {{.*}} 788 {{.*}} RUN @stage1_fwd // fwd stage 1 microbatch 0

// MESH: error: mesh 'm7' does not exist: expected one of m0, m1
