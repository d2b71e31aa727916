#!/usr/bin/env bash
# checkpoint.init_from: a run begins with parameters of another one, whatever layout wrote them.
. "$(dirname "$0")/lib/common.sh"

train 2 first train.max_steps=10 optimizer.decay_steps=20
expect "the run that is taken from" 0 "first/checkpoints/step_00000010"

# first_loss NAME: of its first step.
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
expect "other shapes" 0 "warm start from first"
started "... begin anew" wider "begin anew" "wanted as"

train 1 warm checkpoint.init_from=first train.max_steps=3 optimizer.decay_steps=20
expect "a run that resumes takes nothing" 0 "resumed from warm" "3 (1 now)"
check "... and says so by its silence" lacks out "warm start"

train 2 typo checkpoint.init_from=first 'checkpoint.init_take=["block.*"]'
expect "a pattern that matches nothing" 2 "checkpoint.init_take: 'block.*' matches no parameter"
train 2 nothing checkpoint.init_from=first 'checkpoint.init_skip=["*"]'
expect "nothing is left to take" 2 "checkpoint.init_from: nothing of first"
train 1 alone 'checkpoint.init_take=["*"]'
expect "patterns without a checkpoint" 2 "checkpoint.init_take chooses from checkpoint.init_from"
train 1 missing checkpoint.init_from=no/such/run
expect "a checkpoint that is not there" 6 "no/such/run"
