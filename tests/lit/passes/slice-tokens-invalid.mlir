// RUN: not shardopt-opt %s --shardopt-slice-tokens 2>&1 | FileCheck %s --check-prefix=LOOP
// RUN: sed -e 's/mesh = "m1"/mesh = "m0"/' %S/Inputs/causal.mlir > %t.shared
// RUN: not shardopt-opt %t.shared --shardopt-slice-tokens 2>&1 | FileCheck %s --check-prefix=SHARED
// RUN: sed -e 's/stablehlo.exponential/stablehlo.tanh/' %S/Inputs/causal.mlir > %t.none
// RUN: not shardopt-opt %t.none --shardopt-slice-tokens 2>&1 | FileCheck %s --check-prefix=NONE
// RUN: sed -e 's/compare GE/compare LE/' %S/Inputs/causal.mlir > %t.ahead
// RUN: not shardopt-opt %t.ahead --shardopt-slice-tokens 2>&1 | FileCheck %s --check-prefix=AHEAD
// RUN: sed -e 's/dense<0xFF800000>/dense<-10.0>/' %S/Inputs/causal.mlir > %t.low
// RUN: not shardopt-opt %t.low --shardopt-slice-tokens 2>&1 | FileCheck %s --check-prefix=LOW
// RUN: sed -e 's/%h = stablehlo.dot_general %row, %w, contracting_dims = \[2\] x \[0\]/%y = stablehlo.dot_general %row, %w, contracting_dims = [2] x [0]/' -e 's/    \/\/ Queries and keys.*/%h = stablehlo.reverse %y, dims = [1] {shardopt.layer = 0 : i64} : !x/' %S/Inputs/causal.mlir > %t.moved
// RUN: not shardopt-opt %t.moved --shardopt-slice-tokens 2>&1 | FileCheck %s --check-prefix=MOVED
// RUN: sed -e 's/%g = stablehlo.dot_general %row, %dv/%back = stablehlo.reverse %dv, dims = [1] {shardopt.layer = 1 : i64} : !x  %both = stablehlo.multiply %back, %h {shardopt.layer = 0 : i64} : !x  %g = stablehlo.dot_general %row, %both/' %S/Inputs/causal.mlir > %t.mixed
// RUN: not shardopt-opt %t.mixed --shardopt-slice-tokens 2>&1 | FileCheck %s --check-prefix=MIXED
// RUN: not shardopt-opt %S/Inputs/causal.mlir --shardopt-slice-tokens="token-slices=3,2" 2>&1 | FileCheck %s --check-prefix=SUM
// RUN: not shardopt-opt %S/Inputs/causal.mlir --shardopt-slice-tokens="token-slices=5" 2>&1 | FileCheck %s --check-prefix=MANY
// RUN: not shardopt-opt %S/Inputs/causal.mlir --shardopt-slice-tokens="token-slices=4,0" 2>&1 | FileCheck %s --check-prefix=NUMBER

// LOOP: error: expected one mpmd.for in @main (run the microbatch phase first), found 0
// SHARED: error: slices of tokens: expected each stage on a mesh of its own, found m0, m0
// NONE: error: cannot cut the step along its tokens: expected attention over a sequence, found none
// AHEAD: error: cannot cut the step along its tokens: 'stablehlo.reduce' sums scores of attention, which for keys behind their query are not known to be 0: expected a causal mask, made of positions (iota and compare) or constants
// LOW: error: cannot cut the step along its tokens: 'stablehlo.reduce' sums scores of attention, which for keys behind their query are not known to be 0
// MOVED: error: cannot cut the step along its tokens: 'stablehlo.reverse' moves data along the tokens
// MOVED: note: a slice of the tokens needs that here
// MIXED: error: cannot cut the step along its tokens: 'stablehlo.reverse' moves data along the tokens
// MIXED: note: a slice of the tokens needs that here
// SUM: error: token-slices: expected lengths that sum up to 4 tokens, found 3, 2
// MANY: error: token-slices: expected at most 4 slices, found 5
// NUMBER: error: token-slices: expected auto, a number of slices, or lengths, found 4,0
func.func @main() {
  return
}
