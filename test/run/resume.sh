#!/usr/bin/env bash
# Nothing is lost: a run that was killed at any point continues as if it had not been, bit by bit.
. "$(dirname "$0")/lib/common.sh"

train 2 straight
expect "straight through" 0 "summary:"

killed() {  # killed NAME RANKS OVERRIDE...: is killed as requested, runs again, and equals the uninterrupted run
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
expect "in_step: continues" 0 "resumed from in_step/checkpoints/step_00000010" "20 (10 now)" \
  "the run continues from step 10: the steps up to 13, which were logged, are computed again"
equals_straight in_step

killed early 2 fault.enable=true fault.kill_rank=0 fault.kill_step=5
train 2 early
expect "early: starts anew, there was no checkpoint" 0 "20 (20 now)" \
  "no checkpoint in early yet: the run starts again at step 1, and the steps that were logged, up to step 4, are computed again"
equals_straight early

# Killed in the middle of a save. Up to the rename the checkpoint before counts, afterwards the new
# one.
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

# A deck that was changed in between: every change is reported; changes that would make it another
# run are refused.
train 2 straight
expect "a complete run" 0 "the run is complete, with 20 steps for train.max_steps = 20; a larger number continues it"
run 0 train --check "$debug" "${small[@]}" run.dir=straight
expect "... is called so by a check" 0 "the run is complete, with 20 steps for train.max_steps = 20; a larger number continues it" "deck OK"
train 2 straight train.max_steps=10
expect "... of which fewer steps are asked" 0 "the run is complete, with 20 steps for train.max_steps = 10"
check "... has no step 21 of 10" lacks out " of 10 takes"
cp -r straight longer
train 2 longer train.max_steps=30 log.interval=2 run.name=train.precision
expect "a longer run" 0 "resumed from longer/checkpoints/step_00000020" "changed since that checkpoint:" \
  "  train.max_steps: 20 -> 30" "  log.interval: 1 -> 2" "  run.dir: \"straight\" -> \"longer\"" \
  "learning rate: cosine, peak " "step 21 of 30 takes " "without the change" "30 (10 now)"
check "... is no warning, because the precision is the same" has out "[I] changed since that checkpoint:"
started "... also in start.txt" longer "  train.max_steps: 20 -> 30"
check "... before the screen" eval "sed '/  training  /q' stdout | grep -qF 'train.max_steps: 20 -> 30'"
before=$(cat straight/deck.json straight/checkpoints/latest/manifest.json straight/metrics.jsonl straight/start.txt | cksum)
refused() {  # refused NAME OVERRIDE WORDS...
  local name=$1 key=${2%%=*}
  train 2 straight train.max_steps=30 "$2"
  expect "$name is refused" 2 "${@:3}" "checkpoint.allow_changes='[\"$key\"]'" "choose another run.dir"
  check "$name: nothing was written" test "$before" = \
    "$(cat straight/deck.json straight/checkpoints/latest/manifest.json straight/metrics.jsonl straight/start.txt | cksum)"
  check "$name: no screen" lacks out "  training   "
}
refused "another seed" run.seed=7 "run.seed: 1337 -> 7"
refused "another split" data.val_fraction=0.3 "data.val_fraction: 0.1 -> 0.3"
refused "another tokenizer" data.tokenizer=byte "data.tokenizer: \"char\" -> \"byte\""
train 2 straight train.max_steps=30 model.n_layer=3
expect "another model is refused" 2 "model.n_layer: 2 -> 3" "its model has other weights" "checkpoint.init_from=straight/"
check "... without advice that cannot work" lacks out "allow_changes"
cp -r straight otherwise
train 2 otherwise train.max_steps=22 run.seed=7 checkpoint.allow_changes=run.seed
expect "another seed, allowed" 0 "  run.seed: 1337 -> 7" "22 (2 now)"
train 2 straight train.micro_batch_size=4 model.n_layer=3 checkpoint.allow_changes=true
expect "a checkpoint of another shape" 6 "does not match" "blocks.2"

# The data are identified by their contents: they may move, but must not change under the same name.
cp text.txt moved.txt
train 2 half_again train.max_steps=10 optimizer.decay_steps=20
run 2 train "$debug" 'data.train=["moved.txt"]' run.dir=half_again
expect "the same text in another place" 0 "data.train: [\"text.txt\"] -> [\"moved.txt\"]" "20 (10 now)"
train 2 behind train.max_steps=10 optimizer.decay_steps=20
cp text.txt kept.txt && make_text text.txt 1300
train 2 behind
expect "another text of the same name" 2 "the data were: train " "and are now:   train " "checkpoint.allow_changes='[\"data.train\"]'"
train 2 behind checkpoint.allow_changes=data.train
expect "... allowed" 0 "20 (10 now)"
mv kept.txt text.txt
