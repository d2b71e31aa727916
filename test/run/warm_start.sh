#!/usr/bin/env bash
# checkpoint.init_from: a run starts with parameters of another one, or of several, written in any
# layout.
. "$(dirname "$0")/lib/common.sh"

train 2 first train.max_steps=10 optimizer.decay_steps=20
expect "the run that is taken from" 0 "first/checkpoints/step_00000010"

# first_loss NAME: the loss of its first step.
first_loss() { grep -m 1 '^{"step":' "$1/metrics.jsonl" | sed -E 's/.*"loss":([0-9.]+).*/\1/'; }
below() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a < b) }'; }

train 1 warm checkpoint.init_from=first train.max_steps=2 optimizer.decay_steps=20
expect "all of it" 0 "warm start from first/checkpoints/step_00000010" "2 (2 now)"
check "... nothing begins anew" lacks warm/start.txt "begin anew"
train 1 cold train.max_steps=2 optimizer.decay_steps=20
expect "without it" 0 "2 (2 now)"
check "... the loss begins lower" below "$(first_loss warm)" "$(first_loss cold)"

train 2 tensor checkpoint.init_from=first parallel.tensor=2 train.max_steps=2 optimizer.decay_steps=20
expect "under another layout" 0 "warm start from first"
check "... the same first loss to 1e-5" close_losses warm tensor 1e-5

train 1 part checkpoint.init_from=first 'checkpoint.init_take=["blocks.*","embedding.*"]' \
  'checkpoint.init_skip=["blocks.0.*"]' train.max_steps=2 optimizer.decay_steps=20
expect "a part" 0 "warm start from first"
started "... and what begins anew" part "begin anew" "in checkpoint.init_skip" "not in checkpoint.init_take"
train 1 wider checkpoint.init_from=first model.ffn_width=192 train.max_steps=2 optimizer.decay_steps=20
expect "other shapes are refused" 2 "checkpoint.init_from: 6 parameters of this model have another shape or type in first" \
  "blocks.0.feed_forward.input.weight: stored as f32 [128, 32], wanted as f32 [192, 32]" "checkpoint.init_skip='["
train 1 wider checkpoint.init_from=first model.ffn_width=192 'checkpoint.init_skip=["blocks.?.feed_forward.*"]' train.max_steps=2 optimizer.decay_steps=20
expect "... or begin anew by name, which the log says" 0 "not, which begin anew (" "in checkpoint.init_skip; " "; and "

train 1 warm checkpoint.init_from=first train.max_steps=3 optimizer.decay_steps=20
expect "a run that resumes takes nothing" 0 "resumed from warm" "3 (1 now)"
check "... and says so by its silence" lacks out "warm start"

train 2 typo checkpoint.init_from=first 'checkpoint.init_take=["block.*"]'
expect "a pattern that matches nothing" 2 "checkpoint.init_take: 'block.*' matches no parameter"
train 2 nothing checkpoint.init_from=first 'checkpoint.init_skip=["*"]'
expect "nothing is left to take" 2 "checkpoint.init_from: nothing of first"
train 1 alone 'checkpoint.init_take=["*"]'
expect "patterns without a checkpoint" 2 "checkpoint.init_take selects from checkpoint.init_from"
train 1 missing checkpoint.init_from=no/such/run
expect "a checkpoint that is not there" 6 "no/such/run"

# Several runs: patterns of the new model's parameters, each from a different run.
train 1 second run.seed=7 train.max_steps=1
expect "another run" 0 "1 (1 now)"
from='checkpoint.init_from={"embedding.*": "first", "blocks.0.*": "first", "blocks.1.*": "second"}'
both=("$from" 'train.freeze=["embedding.*", "blocks.*"]' 'optimizer.scale={"final_norm.*": 0.5}')
train 2 both "${both[@]}" train.max_steps=1 parallel.tensor=2
expect "parts of two runs" 0 "warm start from 2 runs" "blocks.1.*: " "of second/checkpoints/step_00000001" \
  "begin anew: 2 tensors, 64 parameters: final_norm" "not used: "
started "... with learning rates by patterns" both "learning rate x 0.5"
parts() { tensors "$1" | grep -E "^parameters/$2"; }
same_parts() { diff <(parts "$1" "$3") <(parts "$2" "$3") && [ -n "$(parts "$1" "$3")" ]; }
check "... to the bit, of the one" same_parts both first '(embedding|blocks\.0)\.'
check "... and of the other" same_parts both second 'blocks\.1\.'
check "... which are not the same" eval '! same_parts first second "blocks\.1\."'
train 1 both "${both[@]}" train.max_steps=2
expect "a run that resumes takes nothing of them" 0 "resumed from both" "2 (1 now)"
check "... and says so by its silence" lacks out "warm start"
run 0 train --check "$debug" "${small[@]}" run.dir=checked "$from"
expect "a check names them" 0 "blocks.1.* of the model begins with the weights of second"

run 0 train --check "$debug" "${small[@]}" run.dir=checked "$from" model.ffn_width=192
expect "... and finds shapes that do not fit" 2 "that 'blocks.0.*' matches cannot be taken from first" "there, f32 ["
check "... without deck OK" lacks out "deck OK"
run 0 train --check "$debug" "${small[@]}" run.dir=checked checkpoint.init_from=first 'checkpoint.init_skip=["*"]'
expect "a check finds that nothing is left to take" 2 "checkpoint.init_from: nothing of first"
run 0 train --check "$debug" "${small[@]}" run.dir=checked 'optimizer.scale={"block.*": 0.1}'
expect "a check finds a pattern that matches nothing" 2 "optimizer.scale: 'block.*' matches no parameter"
run 0 train --check "$debug" "${small[@]}" run.dir=first model.n_layer=3
expect "a check finds a changed model" 2 "its model has other weights" "model.n_layer: 2 -> 3" "run.dir=NEW checkpoint.init_from="
check "... and does not advise to allow it" lacks out "allow_changes"
run 0 train --check "$debug" "${small[@]}" run.dir=first train.max_steps=10 optimizer.learning_rate=0.5 run.seed=8
expect "a check finds a changed key" 2 "the deck is not that of" "run.seed: " "checkpoint.allow_changes="
run 0 train --check "$debug" "${small[@]}" run.dir=checked model.n_layer=100 model.n_embd=16384 model.n_head=64
expect "a check finds a model that is too large" 2 "out of memory"
train 2 wide "$from" model.ffn_width=192
expect "other shapes in a part" 2 "that 'blocks.0.*' matches cannot be taken from first" "there, f32 [" "checkpoint.init_skip=["
train 1 twice 'checkpoint.init_from={"blocks.*": "first", "*.1.*": "second"}'
expect "two patterns of one parameter" 2 "'*.1.*' and 'blocks.*' both match blocks.1."
train 1 deeper 'checkpoint.init_from={"blocks.*": "first"}' model.n_layer=3
expect "a part that the run does not have" 2 "blocks.2.attention" "not there"
train 1 alone "$from" 'checkpoint.init_take=["*"]'
expect "patterns twice" 2 "checkpoint.init_take is for a single checkpoint.init_from"
train 2 gone 'checkpoint.init_from={"blocks.*": "first", "embedding.*": "no/such/run"}'
expect "one of several is not there" 6 "no/such/run"
train 1 none 'optimizer.scale={"block.*": 0.1}'
expect "a rate of nothing" 2 "optimizer.scale: 'block.*' matches no parameter" "the nearest are"
train 1 none optimizer.scale.blocks.*=0
expect "a rate of zero" 2 "the factor of 'blocks.*' is 0, not a number above 0"
