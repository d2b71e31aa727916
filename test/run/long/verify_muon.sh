#!/usr/bin/env bash
# Long tests of Muon: models of speech, whose matrices are kernels of convolutions, projectors and
# heads as well as blocks, in layouts of every axis; and precisions below fp64.
. "$(dirname "$0")/../lib/common.sh"
limit=1800
muon=(optimizer.name=muon optimizer.learning_rate=0.01 optimizer.muon.adamw_learning_rate=3e-3)

for family in asr salm duplex; do
  deck=$root/inputs/verify_$family.json
  run 4 verify "$deck" "${muon[@]}" --layouts quick
  expect "$family: every value of every axis on 4 ranks" 0 "VALID:"
  tail -n 1 stdout
  run 4 verify "$deck" "${muon[@]}" --steps 20 --layouts "dp=2 tp=2,dp=4 zero=3 zero_group=2,pp=2 tp=2 zero=1,dp=3 zero=2"
  expect "... after 20 steps" 0 "VALID: 4 layouts"
done
for family in asr salm duplex; do
  run 4 verify "$root/inputs/verify_$family.json" "${muon[@]}" train.precision=fp32 optimizer.moment_precision=bf16 \
    --precision fp32 --layouts "dp=2 tp=2,dp=4 zero=3,pp=2 dp=2"
  expect "$family in fp32 with a bf16 momentum, by the rounding of one rank" 0 "VALID: 3 layouts"
done
