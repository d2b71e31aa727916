#!/usr/bin/env bash
# A family of models that choir does not have, in a program that passes it to choir::run() (test/toy_family): it trains,
# evaluates, resumes on another layout, is verified, planned and benched by everything as it is.
. "$(dirname "$0")/lib/common.sh"
choir=$build/choir_toy
toy=$root/test/toy_family/toy.json

run 1 train "$toy" run.dir=alone
expect "it trains" 0 "  data       tokens by a rule" "val_loss=" "alone/checkpoints/step_00000040"
learns() { losses alone | awk 'NR == 1 { first = $2 } { last = $2 } END { exit !(NR == 40 && last < 0.5 * first) }'; }
check "it learns" learns
validation=$(grep -o 'val_loss=[0-9.]*' out | tail -n 1)
run 1 eval alone
expect "it is evaluated as training did" 0 "$validation"

run 4 train "$toy" run.dir=moved parallel.tensor=2 parallel.sequence=true parallel.zero=2 train.max_steps=20
expect "half of it on dp 2 x tp 2" 0 "moved/checkpoints/step_00000020"
run 2 train "$toy" run.dir=moved parallel.pipeline=2 parallel.schedule=zb-h1
expect "... resumed on a pipeline" 0 "resumed from moved/checkpoints/step_00000020" "40 (20 now)"
check "... with the losses of one rank" close_losses alone moved 1e-12

run 2 train "$toy" run.dir=begun 'checkpoint.init_from={"*": "alone"}' train.max_steps=1
expect "its parts begin with those of another run" 0 "warm start from 1 run" "of alone/checkpoints/step_00000040"
run 2 train "$toy" run.dir=long 'checkpoint.init_from={"*": "alone"}' model.length=8
expect "... which the family can refuse" 2 "learnt from sequences of" ", not 8"

run 4 verify "$toy" --layouts quick --steps 3
expect "every layout trains as one rank does" 0 "VALID"
# The second layer has a loss of its own, which is on the first of two stages.
sized=("$toy" model.size_weight=0.3 train.max_steps=10 eval.interval=10 checkpoint.interval=0)
run 1 train "${sized[@]}" run.dir=sized
expect "a loss of a unit is in the log and in the evaluation, by name" 0 " token_loss=" " size_loss=" " val_size_loss="
run 2 train "${sized[@]}" run.dir=sized_pp parallel.pipeline=2 train.recompute=full
expect "... on a pipeline, too" 0 " size_loss=" " val_size_loss="
check "... with the losses of one rank" close_losses sized sized_pp 1e-12
sizes() { sed -nE 's/.*"size_loss":([^,}]*).*/\1/p' "$1/metrics.jsonl"; }
same_sizes() {
  paste -d' ' <(sizes sized) <(sizes sized_pp) |
    awk '{ d = $1 - $2; if (NF != 2 || d > 1e-12 || d < -1e-12) exit 1 } END { exit NR < 10 }'
}
check "... term by term" same_sizes
run 4 verify "$toy" model.size_weight=0.3 --steps 3 --layouts \
  "pp=2,pp=2 tp=2,pp=2 tp=2 sequence=true recompute=full,pp=2 schedule=zb-h1,pp=2 schedule=interleaved virtual_stages=2,dp=2 cp=2,dp=2 zero=3,dp=4"
expect "every layout trains it as one rank does" 0 "VALID"
run 0 train --check "$toy" model.size_weight=1 model.n_layer=1
expect "without a second layer there is no such loss" 2 "model.size_weight needs a second layer"

# Blocks of two kinds in one stack: every second layer has other matrices.
mixed=("$toy" model.gated_interval=2 model.n_layer=4)
run 1 train "${mixed[@]}" run.dir=mixed train.max_steps=10 log.verbose=true
expect "layers of two kinds" 0 "layers.0 " "(and 1 alike: 2)" "layers.1 " "(and 1 alike: 3)"
run 2 train "${mixed[@]}" run.dir=mixed_pp train.max_steps=10 parallel.pipeline=2
check "... on a pipeline: the losses of one rank" close_losses mixed mixed_pp 1e-12
run 4 verify "${mixed[@]}" --steps 3 --layouts "pp=2 tp=2,dp=2 pp=2 zero=2,dp=2 tp=2 zero=3 recompute=full,pp=2 schedule=interleaved virtual_stages=2"
expect "every layout trains them as one rank does" 0 "VALID"

run 0 plan --all "$toy" --ranks 4 --target cpu
expect "it is planned" 0 "memory"
run 2 bench step "$toy" --steps 3 --warmup 0 train.precision=fp32
expect "it is benched" 0 "VALID"
run 0 train --check "$toy" model.block_size=8
expect "a key of another family is refused" 2 'model.block_size is for model.type = "gpt", not "toy"'
run 1 generate alone
expect "what it cannot do is refused" 2
