#!/usr/bin/env bash
# The deck's `fault` section: it is refused unless it is enabled. Faults that bench/fault_drill.sh
# does not cover: other layouts and precisions, skipped steps, faults in an evaluation or a save.
. "$(dirname "$0")/lib/common.sh"
fault=(log.interval=100 parallel.timeout=30 fault.enable=true)
quick=("${fault[@]}" eval.interval=0 checkpoint.interval=0)

train 2 off fault.hang_rank=1 fault.hang_step=5
expect "a fault without fault.enable" 2 "fault.hang_rank, fault.hang_step: faults need fault.enable = true"
check "... nothing was started" absent off
train 2 beyond "${quick[@]}" fault.hang_rank=2 fault.hang_step=5
expect "a fault of a rank that is not there" 2 "fault.hang_rank = 2: there are 2 ranks" "name one of 0 to 1"
train 2 unknown "${quick[@]}" fault.nan_rank=1 fault.nan_step=5 fault.nan_parameter=blocks.7.qkv
expect "a fault of a parameter that is not there" 2 "fault.nan_parameter = \"blocks.7.qkv\": rank 1 trains no parameter of that name"
train 1 absent_data "${quick[@]}" fault.corrupt_data=no/such.tok
expect "a fault of a file that is not there" 2 "fault.corrupt_data = \"no/such.tok\"" "No such file"

nan=(fault.nan_rank=1 fault.nan_step=5 fault.nan_parameter=final_norm.weight)
train 2 sharded "${quick[@]}" "${nan[@]}" train.nan_policy=stop parallel.zero=3
expect "a NaN in a gradient, ZeRO 3" 4 "choir: fault: rank 1 gets a NaN into the gradient of final_norm.weight at step 5" \
  "step 5: the loss is" "not finite: final_norm.weight"
train 2 staged "${quick[@]}" "${nan[@]}" train.nan_policy=stop parallel.pipeline=2
expect "... on the last stage of a pipeline" 4 "step 5: the loss is" "not finite: final_norm.weight"
train 2 skipped "${quick[@]}" "${nan[@]}" train.nan_policy=skip
expect "... is skipped" 0 "step 5: loss" "step skipped (1 in a row)" "19 updates"
train 2 scaled "${quick[@]}" "${nan[@]}" train.nan_policy=stop train.precision=fp16-mixed
expect "... is taken for an overflow where losses are scaled" 0 "step 5: overflow with loss scale" "19 updates"

flip=(fault.flip_rank=1 fault.flip_step=6)
train 2 flipped_bf16 "${quick[@]}" "${flip[@]}" watch.weights=2 train.precision=bf16-mixed
expect "a bit of a master weight, two ranks" 4 "step 6: weights that should be the same bits differ" "rank 1 on" "there is no majority"
train 2 flipped_zero1 "${quick[@]}" "${flip[@]}" watch.weights=2 parallel.zero=1
expect "a bit of a weight, ZeRO 1" 4 "step 6: weights that should be the same bits differ" "rank 1 on"
for async in true false; do
  name=flipped_unseen_$async
  train 2 "$name" "${fault[@]}" "${flip[@]}" eval.interval=0 checkpoint.interval=5 checkpoint.async=$async
  expect "... is found by the next save, where nobody compares before, async $async" 4 \
    "step 10: weights that should be the same bits differ: rank 0 on" "(first in " "there is no majority"
  check "... and the checkpoint before is the last" test "$(ls "$name/checkpoints")" = $'latest\nstep_00000005'
done

train 2 one_fails "${fault[@]}" eval.interval=0 checkpoint.interval=5 checkpoint.keep=9 fault.write_fail_rank=1 fault.write_fail_step=5
expect "one rank cannot write its part" 0 "rank 1 cannot write its part of the save of step 5" "checkpoint of step 5 FAILED"
check "... of that save alone" eval '[ ! -e one_fails/checkpoints/step_00000005 ] && [ -e one_fails/checkpoints/step_00000010 ]'

train 2 in_save "${fault[@]}" eval.interval=0 checkpoint.interval=4 watch.save=1 fault.hang_rank=1 fault.hang_step=8 fault.phase=save
expect "a rank hangs in a save" 5 "watchdog: rank 1 hangs in phase \"checkpoint\"" "in phase \"checkpoint\" (allowed: 1.0 s); rank 1 is behind" "has not entered"
train 2 in_evaluation "${fault[@]}" watch.evaluation=1 fault.pause_rank=0 fault.pause_step=10 fault.phase=evaluation
expect "a rank is stopped in an evaluation" 5 "watchdog: rank" "(allowed: 1.0 s)" "rank 0"
