// Files that are no modules, and files that are not there.
// RUN: not shardopt-opt %S/Inputs/truncated.mlirbc 2>&1 | FileCheck %s --check-prefix=TRUNCATED
// RUN: not shardopt-opt %S/Inputs/foreign.bin 2>&1 | FileCheck %s --check-prefix=FOREIGN
// One flipped bit makes the C++ reader corrupt its heap; the tool survives that with a diagnosis.
// RUN: not shardopt-opt %S/Inputs/aborting.mlirbc -o %t.out 2>&1 | FileCheck %s --check-prefix=ABORTING
// RUN: not ls %t.out
// RUN: not shardopt-opt %t.missing 2>&1 | FileCheck %s --check-prefix=MISSING

// TRUNCATED: truncated.mlirbc: error: attempting to parse
// FOREIGN: shardopt-opt: error: '{{.*}}foreign.bin' holds neither MLIR text nor MLIR bytecode (first bytes: 7f 45 4c 46 02 01 01 00)
// ABORTING: aborting.mlirbc: {{(error|not a readable module): .+}}
// MISSING: shardopt-opt: error: cannot read '{{.*}}.missing': No such file or directory
