#!/usr/bin/env bash
# train.ema: averaged weights beside the weights. They change nothing in the training, do not depend on the layout, and are
# used on request.
. "$(dirname "$0")/lib/common.sh"

quiet=(checkpoint.async=false)
without_averages() { tensors "$1" | grep -v '^ema/'; }
averages() { tensors "$1" | grep '^ema/'; }
same_without_averages() { same "without_averages $1" "without_averages $2"; }
same_averages() { same "averages $1" "averages $2"; }

train 2 plain "${quiet[@]}"
train 2 averaged "${quiet[@]}" train.ema=0.9 log.verbose=true
expect "a run with averages" 0 "averaged weights" "averaged/checkpoints/step_00000020"
check "... trains as without" same_without_averages plain averaged
check "... and stores one for every parameter" \
  test "$(averages averaged | grep -c '^ema/parameters/')" = "$(tensors plain | grep -c '^parameters/')"

train 2 half "${quiet[@]}" train.ema=0.9 train.max_steps=10 optimizer.decay_steps=20
train 2 half "${quiet[@]}" train.ema=0.9
expect "a run that is resumed" 0 "resumed from half/checkpoints/step_00000010" "20 (10 now)"
check "... has the same averages, bit by bit" same_averages averaged half

# Step 5 updates nothing, because its loss is not finite.
skipping=("${quiet[@]}" train.ema=0.9 train.nan_policy=skip fault.enable=true fault.nan_step=5 train.max_steps=6 checkpoint.interval=1
  checkpoint.keep=0 eval.interval=0)
after() { averages "$1/checkpoints/step_0000000$2"; }
# shellcheck disable=SC2086
keeps() { diff <(after $1) <(after $2) && [ -n "$(after $1)" ]; }
train 1 skips "${skipping[@]}"
expect "a run that skips an update" 0 "skips/checkpoints/step_00000006"
check "... keeps its averages in this step" keeps "skips 4" "skips 5"
check "... and not in the next" eval '! keeps "skips 5" "skips 6" >/dev/null'
run_broken averages-while-skipping 1 train "$debug" "${small[@]}" run.dir=drifts "${skipping[@]}"
expect "averages that go on while updates are skipped" 0 "drifts/checkpoints/step_00000006"
check "... are noticed" eval '! keeps "drifts 4" "drifts 5" >/dev/null'

# One batch on several layouts.
fixed=("${quiet[@]}" train.reproducible=true train.global_batch_size=16 train.ema=0.9)
train 1 one "${fixed[@]}"
train 2 two "${fixed[@]}" parallel.zero=1
train 4 four "${fixed[@]}" parallel.zero=3 train.max_steps=10 optimizer.decay_steps=20
train 2 four "${fixed[@]}" parallel.pipeline=2 model.n_layer=2
expect "a run that is resumed in another layout" 0 "resumed from four/checkpoints/step_00000010"
check "reproducible: the averages of ZeRO 1 are those of one rank" same_averages one two
check "... and those of ZeRO 3, then a pipeline" same_averages one four
run 4 verify "$root/inputs/verify_gpt.json" train.ema=0.5 --steps 4 \
  --layouts "dp=4 zero=1,dp=2 tp=2 zero=3,dp=2 pp=2 zero=2"
expect "fp64: averages in every layout" 0 "of 1.0e-12"

# State outside of the device, and masters of 16 bits.
train 2 mixed "${quiet[@]}" train.ema=0.9 train.precision=bf16-mixed parallel.zero=2
train 2 outside "${quiet[@]}" train.ema=0.9 train.precision=bf16-mixed parallel.zero=2 parallel.offload=file parallel.offload_dir="$work"
expect "averages in a file" 0 "summary:"
check "... are the same" same_averages mixed outside
train 2 narrow "${quiet[@]}" train.ema=0.9 train.precision=bf16-true eval.ema=true
expect "averages of masters of 16 bits" 0 "val_loss="

# Evaluation with the averages.
val_loss() { sed -nE 's/.*"val_loss":([^,}]*).*/\1/p' "$1/metrics.jsonl" | tail -n 1; }
told_loss() { sed -nE 's/.* val_loss=([^ ]*).*/\1/p' out | tail -n 1; }
close() { awk -v a="$1" -v b="$2" 'BEGIN { d = a - b; if (d < 0) d = -d; print a, b; exit !(a > 0 && d <= 1e-4 * a) }'; }
train 2 evaluated "${quiet[@]}" train.ema=0.9 eval.ema=true
expect "eval.ema=true" 0 "val_loss="
check "... evaluates without a trace in the training" same_weights averaged evaluated
check "... another loss than that of the weights" eval '! close "$(val_loss averaged)" "$(val_loss evaluated)"'
run 2 eval averaged --ema
expect "choir eval --ema" 0
check "... the loss of the averages" close "$(told_loss)" "$(val_loss evaluated)"
run 2 eval evaluated
check "choir eval follows eval.ema" close "$(told_loss)" "$(val_loss evaluated)"
run 2 eval evaluated eval.ema=false
check "... which can be overridden" close "$(told_loss)" "$(val_loss averaged)"
run 1 generate averaged --ema --tokens 8
expect "choir generate --ema" 0
run 1 export averaged --ema --format hf --out exported
expect "choir export --ema" 0 "format=hf"
run 1 import exported --out imported
data=(eval.batches=4 train.micro_batch_size=2 train.global_batch_size=24 'data.val=["text.txt"]' 'data.train=["text.txt"]')
run 1 eval imported "${data[@]}"
expect "... which is imported" 0 "val_loss="
imported=$(told_loss)
run 1 eval averaged --ema "${data[@]}"
check "... with the loss of the averages" close "$(told_loss)" "$imported"
run 2 average averaged --last 2 --out mean
run 1 eval mean
expect "the mean of checkpoints with averages" 0 "val_loss="

# Begun and ended on the way.
train 2 plain "${quiet[@]}" train.ema=0.9 train.max_steps=22
expect "averages that begin on the way" 0 "train.ema: the average begins here" "22 (2 now)"
train 2 half "${quiet[@]}" train.max_steps=22
expect "averages that end on the way" 0 "train.ema is 0: the averaged weights of half/checkpoints/step_00000020 are dropped" "22 (2 now)"
run 1 eval half --ema
expect "--ema without averages" 2 "--ema and eval.ema use averaged weights" "Leave --ema out"
run 1 eval half train.ema=0.9 eval.ema=true
expect "... in the checkpoint" 2 "half/checkpoints/step_00000022 has no averaged weights"
train 1 refused eval.ema=true
expect "eval.ema without train.ema" 2 "--ema and eval.ema use averaged weights" "Leave --ema out"
train 1 refused train.ema=1
expect "a decay of 1" 2 "train.ema"
