// Messages for editors: one object a line, with places in the file, notes inside, and nothing else.
// RUN: not shardopt-opt %s --shardopt-verify-imported --diagnostics-format=json 2>&1 | FileCheck %s
// RUN: not shardopt-opt %s --pass-pipeline='builtin.module(cse' --diagnostics-format=json 2>&1 | FileCheck %s --check-prefix=TOOL
// RUN: shardopt-opt %s -pass-pipeline='builtin.module(builtin.module(cse))' --diagnostics-format=json -o %t 2>&1 | FileCheck %s --check-prefix=WARNING
// RUN: not shardopt-opt %s --shardopt-verify-imported --diagnostics-format=json 2>&1 | python3 -c "import json, sys; [json.loads(line) for line in sys.stdin]"

// CHECK: {"severity": "error", "message": "expected '@main' to be the only function, found '@other'", "file": "{{.*}}json-diagnostics.mlir", "line": [[@LINE+9]], "column": 1
// CHECK: {"severity": "note", "message": "to run shardopt-verify-imported again: shardopt-opt
// CHECK-NOT: ^
// TOOL: {"severity": "error", "message": "pipeline: {{.*}}found the end{{.*}}"}{{$}}
// TOOL-NOT: {{.}}
// WARNING: {"severity": "warning", "message": "no op matches 'builtin.module'
func.func @main() {
  return
}
func.func private @other() {
  return
}
