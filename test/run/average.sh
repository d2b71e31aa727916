#!/usr/bin/env bash
# choir average: the mean of checkpoints is a run that every command takes; what has no mean is refused by name.
. "$(dirname "$0")/lib/common.sh"

train 2 run checkpoint.keep=0 checkpoint.interval=4 eval.interval=0
expect "a run with five checkpoints" 0 "run/checkpoints/step_00000020"
run 2 average run --last 3 --out mean
expect "the mean of the last three" 0 "mean of 3 checkpoints: steps 12, 16, 20" "mean/checkpoints/step_00000000"
run 1 average run --steps 20,12,16 --out mean_1
expect "... named one by one, on one rank" 0 "mean of 3 checkpoints: steps 12, 16, 20"
parameters() { tensors "$1" | grep '^parameters/'; }
same_parameters() { same "parameters $1" "parameters $2"; }
check "... is the same, bit by bit" same_parameters mean mean_1
check "... and not the newest" eval '! same_parameters mean run'
run 1 average run --steps 16,20 --out other
check "... nor the mean of others" eval '! same_parameters mean other'
values() {  # values CHECKPOINT: the weights of one tensor, 32 numbers in fp32
  local at
  at=$(awk -F'[:,]' '/"name"/ { here = /"parameters\/final_norm.weight"/ } here && /"offset"/ { print $2 + 0 }' "$1/manifest.json")
  od -An -v -tf4 -w4 -j "$at" -N 128 "$1/state.h5"
}
is_mean() {  # is_mean RUN: ... of steps 12, 16 and 20 of the run, to 4 roundings
  paste -d' ' <(values run/checkpoints/step_00000012) <(values run/checkpoints/step_00000016) <(values run/checkpoints/step_00000020) \
    <(values "$1/checkpoints/step_00000000") | awk '
    { d = ($1 + $2 + $3) / 3 - $4; if (d < 0) d = -d; if (NF != 4 || d > 2.5e-7) bad = 1 } END { exit bad || NR != 32 }'
}
check "... each weight is the mean of three" is_mean mean
run_broken mean-of-last-two 2 average run --last 3 --out weighted
expect "a mean in which the last counts as much as all before it" 0 "mean of 3 checkpoints: steps 12, 16, 20"
check "... is noticed" eval '! is_mean weighted'

run 1 inspect mean/checkpoints/step_00000000
expect "inspect" 0 "average of 3 checkpoints"
check "the checkpoints are in its provenance" grep -qa "run/checkpoints/step_00000016" mean/checkpoints/step_00000000/state.h5
run 0 runs mean
check "the list of runs calls it averaged" matches stdout "^mean +averaged "
run 2 eval mean
expect "eval" 0 "val_loss="
run 1 generate mean --tokens 3
expect "generate" 0
run 1 export mean --format nanogpt --out exported
expect "export" 0 "format=nanogpt"
run 1 import exported --out imported model.norm_eps=1e-5
expect "import of the export" 0 "imported/checkpoints/step_00000000"
train 2 warm checkpoint.init_from=mean train.max_steps=2
expect "checkpoint.init_from" 0 "warm start from mean/checkpoints/step_00000000" "2 (2 now)"
run 3 train mean/deck.json
expect "the new run trains, in its own directory" 0 "resumed from mean/checkpoints/step_00000000" "mean/checkpoints/step_00000020"
run 0 runs mean
check "... whose list keeps the deck that it was made of" eval 'matches stdout "^mean +finished " && lacks stdout mean/deck.json'
check "... and the averaged run is untouched" test "$(newest run)" = step_00000020

# Weights in 16 bits, and norms with running statistics.
train 2 narrow train.precision=bf16-true checkpoint.keep=0 eval.interval=0
run 2 average narrow --last 2 --out narrow_mean
expect "weights of 16 bits are averaged and rounded once" 0 "mean of 2 checkpoints: steps 10, 20"
run 1 eval narrow_mean
expect "... and evaluated" 0 "val_loss="

run 2 average run --last 6 --out six
expect "more than there are" 2 "has 5 checkpoints that can be averaged, not 6: steps 4, 8, 12, 16, 20"
mkdir alone && cp -r run/checkpoints/step_00000004 alone/
run 0 average alone --last 2 --out two
expect "... of one" 2 "has 1 checkpoint that can be averaged, not 2: steps 4"
run 2 average run --last 2 --out mean
expect "a run that exists" 2 "'mean' is not empty"
run 1 average run --steps 4,5 --out missing
expect "a step that is not there" 2 "has no checkpoint of step 5" "its steps are: 4, 8, 12, 16, 20"
run 1 average run --steps 4,4 --out twice
expect "a step that is named twice" 2 "names a step twice"
run 1 average run --steps 4,x --out word
expect "a word for a step" 2 "'x' is not a step"
run 2 average run --out nothing
expect "neither --last nor --steps" 2 "neither --last nor --steps is given"
run 2 average nowhere --last 2 --out nothing
expect "a run that does not exist" 2 "nowhere"
check "nothing is left of them" test ! -e six -a ! -e missing -a ! -e nothing
mkdir disk
if mount -t tmpfs -o size=200k tmpfs disk 2>/dev/null; then
  mounted=$work/disk
  run 2 average run --last 2 --out disk/mean
  expect "a disk without space" 6 "disk/mean"
  check "... nothing is left on it" test ! -e disk/mean
  umount disk && mounted=""
else skip "a disk without space" "no tmpfs can be mounted"; fi
