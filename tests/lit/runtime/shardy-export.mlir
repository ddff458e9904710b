// What Shardy's own export makes, without any attribute of ours.
// RUN: shardopt program %S/../../e2e/shardy_export.mlir | FileCheck %s
// RUN: shardopt run %S/../../e2e/shardy_export.mlir --quick-compile --steps 2 | FileCheck %s --check-prefix=STEPS
// RUN: shardopt run %S/../../e2e/shardy_export.mlir --quick-compile --check | FileCheck %s --check-prefix=CHECKED
// RUN: not shardopt run %S/../../e2e/shardy_export.mlir --timeline 2>&1 | FileCheck %s --check-prefix=PLAN

// CHECK:      route 0: f32[6, 16] {{.*}} -> f32[6, 16] {{.*}}
// CHECK:      mesh m1[x=2] devices [0, 1]
// CHECK:        RUN @p0_f1_fwd.main(%0, %1) // fragment stage 0
// CHECK-NEXT:   SEND #0 %{{.*}} to m2 route 0
// CHECK:        RUN @p0_f1_fwd.main(%0, %2) // fragment stage 0
// CHECK:        RUN @p2_f1_bwd.main({{.*}}) donates %0, {{.*}}, {{.*}} // fragment stage 0
// CHECK:      mesh m2[x=2, y=2] devices [2, 3, 4, 5]
// CHECK:        RECV #0 from m1 route 0
// CHECK:        RUN @p1_f2_fwd_bwd.main
// CHECK:        RUN @p1_f2_fwd_bwd_accumulate.main({{.*}}) donates
// CHECK:        RUN @p3_update.main

// STEPS:      step 0: {{.*}} s  scalars:
// STEPS-NEXT: step 1: {{.*}} s  scalars:

// CHECKED: check passed
// PLAN: is a module: what it was to take, only a plan tells
