#!/usr/bin/env bash
# optimizer.moment_precision = bf16: half the memory of the moments in plan and run, the bits of one
# rank in every layout, resuming to the bit, conversion of the other kind, and refusals.
. "$(dirname "$0")/lib/common.sh"

wide=(train.global_batch_size=8)
narrow=("${wide[@]}" optimizer.moment_precision=bf16)
exact=("${narrow[@]}" train.reproducible=true)
back=("${wide[@]}" train.reproducible=true)
moments_of() { sed -nE 's/^ *optimizer moments +([0-9.]+) MiB.*/\1/p' "$1" | head -n 1; }
train 1 wide "${wide[@]}"
expect "fp32 moments" 0 "summary:"
train 1 one "${exact[@]}"
expect "bf16 moments" 0 "summary:"
check "the losses of fp32 to the rounding of moments" close_losses wide one 0.01
check "... but not fp32 itself" eval "! close_losses wide one 1e-7"
planned() { run 0 plan --all "$debug" "${small[@]}" model.vocab_size=34 --ranks 1 --gpus-per-node 1 "$@"; }
planned "${narrow[@]}"
# Printed to 0.001 MiB.
check "half the bytes" awk -v wide="$(moments_of wide/start.txt)" -v narrow="$(moments_of stdout)" \
  'BEGIN { print wide, narrow; d = wide - 2 * narrow; exit !(narrow > 0.05 && d > -0.002 && d < 0.002) }'
planned "${exact[@]}"
check "... in the plan as in the run" test "$(moments_of stdout)" = "$(moments_of one/start.txt)"

train 4 four "${exact[@]}" parallel.zero=3 parallel.offload=file
expect "four ranks, ZeRO 3, moments in files" 0 "summary:"
check "... the losses of one rank, bit by bit" same_losses one four
check "... and its tensors" same_weights one four
train 2 halves "${exact[@]}" parallel.zero=1 train.max_steps=10 optimizer.decay_steps=20 checkpoint.async=false
expect "half a run" 0 "summary:"
train 2 halves "${exact[@]}" parallel.pipeline=2 train.max_steps=20 optimizer.decay_steps=20
expect "... continues in another layout" 0 "resumed from halves/checkpoints/step_00000010"
check "... to the bits of one rank" same_weights one halves
train 2 halves "${back[@]}" train.max_steps=22
expect "... and with the other moments" 0 "optimizer.moment_precision: \"bf16\" -> \"fp32\"" "22 (2 now)"
train 2 halves "${exact[@]}" train.max_steps=24
expect "... and back" 0 "optimizer.moment_precision: \"fp32\" -> \"bf16\"" "24 (2 now)"
train 2 muon "${exact[@]}" optimizer.name=muon train.precision=bf16-mixed
expect "Muon" 0 "summary:"

run 2 verify "$debug" "${narrow[@]}" --layouts "dp=2 zero=1,tp=2" --steps 2
expect "verify compares in fp64, with moments to match" 0 "optimizer.moment_precision is ignored: the runs are in fp64" "VALID: 2 layouts"
run 2 verify "$debug" "${narrow[@]}" --layouts "dp=2 zero=1,tp=2" --steps 2 --precision fp32
expect "... and in fp32 by the rounding of one rank" 0 "VALID: 2 layouts"
check "... with the moments of the deck" lacks stdout "is ignored"

train 1 refused optimizer.name=lars optimizer.moment_precision=bf16
expect "LARS" 2 "optimizer.moment_precision is for optimizer.name = \"adamw\" or \"muon\", not \"lars\""
train 1 refused train.precision=fp64 optimizer.moment_precision=bf16
expect "fp64" 2 "optimizer.moment_precision = \"bf16\" has no effect with train.precision = \"fp64\""
train 1 refused optimizer.moment_precision=fp8
expect "a precision that moments do not have" 2 "optimizer.moment_precision" "fp32" "bf16"
