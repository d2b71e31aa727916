#!/usr/bin/env bash
# choir rehearse at ten thousand ranks against one thousand: times at most twelvefold, the bytes of a step flat.
. "$(dirname "$0")/../lib/common.sh"
# shellcheck source=test/run/lib/rehearse.sh
. "$root/test/run/lib/rehearse.sh"
limit=600
compare() {  # compare NAME BYTES OVERRIDE...: BYTES as for `flat`
  local name=$1 bytes=$2
  shift 2
  rehearse "$name-1000" 1000 train.global_batch_size=0 train.grad_accum=1 "$@"
  expect "$name on 1,000 ranks" 0 "on 1,000 ranks"
  rehearse "$name-10000" 10000 train.global_batch_size=0 train.grad_accum=1 "$@"
  expect "$name on 10,000 ranks" 0 "on 10,000 ranks, 8 a node, 1,250 nodes"
  cat stdout
  flat "$name-10000.json" "$name-1000.json" "$bytes"
}
compare data 16
# Each of 4 buckets has slices of 64 elements at least, in parameters, gradients and moments.
compare zero1 8192 parallel.zero=1
compare zero3 8192 parallel.zero=3
compare node 16 parallel.zero=2 parallel.zero_group=node
compare axes 8192 parallel.tensor=2 parallel.pipeline=2 parallel.zero=1
