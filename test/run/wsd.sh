#!/usr/bin/env bash
# optimizer.schedule=wsd: a run at its plateau is continued into a decay of any length by one command,
# and equals, bit by bit, the run that had this decay from its start.
. "$(dirname "$0")/lib/common.sh"

wsd=(optimizer.schedule=wsd checkpoint.async=false)
later_losses() { losses "$1" | awk -v after="$2" '$1 > after'; }
same_later_losses() { diff <(later_losses "$1" "$3") <(later_losses "$2" "$3") && [ -n "$(later_losses "$1" "$3")" ]; }

train 2 stable "${wsd[@]}" train.max_steps=12
expect "the plateau" 0 "stable/checkpoints/step_00000012"
train 2 whole "${wsd[@]}" optimizer.wsd_decay_steps=8 checkpoint.keep=1 checkpoint.best=false
expect "a run with its decay" 0 "linear, from step 12 to 20; the checkpoint before it is kept" "whole/checkpoints/step_00000012"
check "the checkpoint where the decay begins is kept beside the newest" \
  test "$(ls whole/checkpoints | grep '^step_' | tr '\n' ' ')" = "step_00000012 step_00000020 "

train 2 decayed "${wsd[@]}" checkpoint.resume=stable optimizer.wsd_decay_steps=8 train.max_steps=20
expect "one command continues the plateau into a decay" 0 "resumed from stable/checkpoints/step_00000012" \
  "optimizer.wsd_decay_steps: 0 -> 8" "learning rate: wsd, peak " "20 (8 now)"
check "... with the losses of the run that had it from the start" same_later_losses whole decayed 12
check "... and its tensors, bit by bit" same_tensors whole decayed

longer=("${wsd[@]}" optimizer.wsd_decay_steps=10 optimizer.wsd_decay_shape=minus_sqrt)
train 2 longer_whole "${longer[@]}" train.max_steps=22
expect "another decay from the start" 0 "step=22 "
train 2 longer "${longer[@]}" train.max_steps=22 checkpoint.resume=whole/checkpoints/step_00000012
expect "the kept checkpoint of the first decay continues into the other" 0 "22 (10 now)"
check "... bit by bit" same_tensors longer_whole longer
check "... which is not the first" eval '! same_later_losses whole longer 13'

train 2 stable "${wsd[@]}" train.max_steps=22
expect "the plateau itself goes on" 0 "resumed from stable/checkpoints/step_00000012" "22 (10 now)"
train 2 stable "${longer[@]}" train.max_steps=24
expect "a decay that would have begun earlier is reported" 0 \
  "the decay begins at step 14, 8 steps before this checkpoint" "optimizer.wsd_decay_steps to at most 2"
train 2 refused optimizer.wsd_decay_steps=8
expect "a decay without the schedule" 2 "optimizer.wsd_decay_steps = 8 is for optimizer.schedule = \"wsd\", not \"cosine\""
run_broken condition-ignored 2 train "$debug" "${small[@]}" run.dir=unrefused optimizer.wsd_decay_steps=8 train.max_steps=6
expect "... which only the condition of the key refuses" 0 "summary:"
