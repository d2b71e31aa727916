#!/usr/bin/env bash
# Nothing is lost: a run that was killed, anywhere, continues as if nothing had been, bit by bit.
. "$(dirname "$0")/lib/common.sh"

train 2 straight
expect "straight through" 0 "summary:"

killed() {  # killed NAME RANKS OVERRIDE...: is killed as asked, runs again, and equals the run straight through
  local name=$1 ranks=$2
  shift 2
  train "$ranks" "$name" "$@"
  expect_killed "$name: killed"
}
equals_straight() {
  check "$1: the losses of straight through, bit by bit" same_losses straight "$1"
  check "$1: every tensor of straight through, bit by bit" same_tensors straight "$1"
}

# Without async: steps of this size are faster than a save, which may be in flight four steps later.
killed in_step 2 fault.enable=true fault.kill_rank=1 fault.kill_step=14 checkpoint.async=false
train 2 in_step
expect "in_step: continues" 0 "resumed from in_step/checkpoints/step_00000010" "20 (10 now)"
equals_straight in_step

killed early 2 fault.enable=true fault.kill_rank=0 fault.kill_step=5
train 2 early
expect "early: starts anew, there was no checkpoint" 0 "20 (20 now)"
equals_straight early

# In the middle of a save. Up to the rename the one before counts, from then on the new one.
train 2 half train.max_steps=10 optimizer.decay_steps=20
expect "the first half" 0 "half/checkpoints/step_00000010"
for instant in layout:10 write:10 manifest:10 rename:10 latest:20; do
  name=save_${instant%:*}
  cp -r half "$name"
  killed "$name" 2 fault.enable=true fault.kill_in_save="${instant%:*}"
  run 2 generate "$name" --tokens 1
  expect "$name: what is complete can be loaded" 0
  train 2 "$name"
  expect "$name: continues" 0 "resumed from $name/checkpoints/step_000000${instant#*:}"
  equals_straight "$name"
done

train 3 half
expect "on another number of ranks" 0 "resumed from half/checkpoints/step_00000010" "summary:"
check "the losses agree to 1e-5" close_losses straight half 1e-5
cp -r straight other_way
rm -r other_way/checkpoints/step_00000020
train 4 other_way
expect "'latest' names a checkpoint that is gone" 0 "resumed from other_way/checkpoints/step_00000010"
check "the losses agree to 1e-5 again" close_losses straight other_way 1e-5

train 2 half checkpoint.resume=none
expect "checkpoint.resume=none starts anew" 0 "20 (20 now)"
check "... and writes new metrics" test "$(grep -c '^{"step":' half/metrics.jsonl)" = 20
train 2 branch checkpoint.resume=straight/checkpoints/step_00000010
expect "checkpoint.resume=PATH" 0 "resumed from straight/checkpoints/step_00000010" "20 (10 now)"
check "... continues bit by bit" same_tensors straight branch
train 2 branch_of_run checkpoint.resume=straight train.max_steps=22 optimizer.decay_steps=20
expect "checkpoint.resume=RUN takes the newest" 0 "resumed from straight/checkpoints/step_00000020" "22 (2 now)"
train 2 nowhere checkpoint.resume=no/such/checkpoint
expect "checkpoint.resume of nothing" 6 "no/such/checkpoint"
train 2 straight train.micro_batch_size=4 model.n_layer=3
expect "a checkpoint of another shape" 6 "does not fit" "blocks.2"
